#include "scheduler/policy/registry.h"

#include "common/check.h"
#include "scheduler/policy/afs.h"
#include "scheduler/policy/allox.h"
#include "scheduler/policy/antman.h"
#include "scheduler/policy/chronus.h"
#include "scheduler/policy/crius.h"
#include "scheduler/policy/drf.h"
#include "scheduler/policy/edf.h"
#include "scheduler/policy/elastic_flow.h"
#include "scheduler/policy/fifo.h"
#include "scheduler/policy/gandiva.h"
#include "scheduler/policy/gavel.h"
#include "scheduler/policy/hare.h"
#include "scheduler/policy/las.h"
#include "scheduler/policy/liquid.h"
#include "scheduler/policy/lucid.h"
#include "scheduler/policy/lyra.h"
#include "scheduler/policy/marginal_throughput.h"
#include "scheduler/policy/optimus.h"
#include "scheduler/policy/pollux.h"
#include "scheduler/policy/qssf.h"
#include "scheduler/policy/rubato.h"
#include "scheduler/policy/rubick.h"
#include "scheduler/policy/shockwave.h"
#include "scheduler/policy/shortest.h"
#include "scheduler/policy/sia.h"
#include "scheduler/policy/silod.h"
#include "scheduler/policy/synergy.h"
#include "scheduler/policy/themis.h"
#include "scheduler/policy/tiresias.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include <fmt/format.h>

namespace rubato::sched {
namespace {

struct Registered {
  Descriptor (*describe)();
  std::unique_ptr<Policy> (*make)(const std::vector<double>& parameters);
};

template <class P>
constexpr Registered registered() {
  return {P::describe, [](const std::vector<double>& parameters) -> std::unique_ptr<Policy> {
            if constexpr (std::is_default_constructible_v<P>)
              return std::make_unique<P>();
            else
              return std::make_unique<P>(parameters);
          }};
}

constexpr std::array kPolicies{
    registered<RubatoPolicy>(), registered<MarginalThroughput>(),
    registered<Fifo>(),         registered<FifoBackfill>(),
    registered<Sjf>(),          registered<Srtf>(),
    registered<Srsf>(),         registered<Las>(),
    registered<Tiresias>(),     registered<Edf>(),
    registered<Drf>(),          registered<Afs>(),
    registered<Optimus>(),      registered<Themis>(),
    registered<Qssf>(),         registered<ElasticFlow>(),
    registered<Allox>(),        registered<Gavel>(),
    registered<GavelFinish>(),  registered<Rubick>(),
    registered<Lyra>(),         registered<Shockwave>(),
    registered<Chronus>(),      registered<Pollux>(),
    registered<Sia>(),          registered<Crius>(),
    registered<Hare>(),         registered<Gandiva>(),
    registered<Lucid>(),        registered<AntMan>(),
    registered<Liquid>(),       registered<SiloD>(),
    registered<Synergy>(),
};

std::string names_of(const std::vector<Parameter>& parameters) {
  std::vector<std::string> names;
  names.reserve(parameters.size());
  for (const Parameter& parameter : parameters) names.push_back(parameter.name);
  return names.empty() ? "it has none" : fmt::format("it has {}", fmt::join(names, ", "));
}

Status check(const Parameter& parameter, double value) {
  const bool is_in_range = value >= parameter.least && value <= parameter.most;  // NaN is not
  if (is_in_range && (!parameter.is_whole || std::floor(value) == value)) return ok();
  return Error(Code::kInvalid,
               fmt::format("parameters.{} is {}, but must be a {} from {} to {}{}; change it",
                           parameter.name, value, parameter.is_whole ? "whole number" : "number",
                           parameter.least, parameter.most,
                           parameter.unit.empty() ? "" : " " + parameter.unit));
}

Result<std::vector<double>> values_of(const Descriptor& about,
                                      const std::map<std::string, double>& given) {
  for (const auto& [name, value] : given)
    if (std::ranges::find(about.parameters, name, &Parameter::name) == about.parameters.end())
      return Error(Code::kInvalid,
                   fmt::format("parameters.{} is not known to policy {}: {}; remove it", name,
                               about.name, names_of(about.parameters)));
  std::vector<double> values;
  for (const Parameter& parameter : about.parameters) {
    const auto found = given.find(parameter.name);
    const double value = found == given.end() ? parameter.standard : found->second;
    TRY_OK(check(parameter, value));
    values.push_back(value);
  }
  return values;
}

}  // namespace

std::vector<Descriptor> all_policies() {
  std::vector<Descriptor> all;
  all.reserve(kPolicies.size());
  for (const Registered& one : kPolicies) all.push_back(one.describe());
  return all;
}

Descriptor descriptor_of(const std::string& policy) {
  for (const Registered& one : kPolicies)
    if (Descriptor about = one.describe(); about.name == policy) return about;
  check_failed(__FILE__, __LINE__, "descriptor_of: no such policy");
}

Result<std::unique_ptr<Policy>> make_policy(const std::string& name,
                                            const std::map<std::string, double>& parameters) {
  std::vector<std::string> names;
  for (const Registered& one : kPolicies) {
    const Descriptor about = one.describe();
    names.push_back(about.name);
    if (about.name != name) continue;
    TRY(const std::vector<double> values, values_of(about, parameters));
    return one.make(values);
  }
  return Error(Code::kInvalid, fmt::format("policy: there is no policy \"{}\"; there are {}", name,
                                           fmt::join(names, ", ")));
}

const char* name_of(Knows knows) {
  switch (knows) {
    case Knows::kNothing:
      return "nothing";
    case Knows::kDuration:
      return "duration (oracle)";
    case Knows::kRemaining:
      return "remaining work (oracle)";
  }
  check_failed(__FILE__, __LINE__, "Knows");
}

std::optional<ValueTable> Policy::values(const Problem&) const { return std::nullopt; }

std::optional<StorageShares> Policy::share_storage(const ClusterState&,
                                                   const std::vector<Gpus>&) const {
  return std::nullopt;
}

std::optional<CpuMemoryShares> Policy::share_cpu_memory(const ClusterState&,
                                                        const std::vector<GpusOnNodes>&) const {
  return std::nullopt;
}

std::optional<TimeMs> Policy::next_wake(const ClusterState&) const { return std::nullopt; }

}  // namespace rubato::sched
