#include "scheduler/sim/scheduler.h"

#include "scheduler/common_parameters.h"
#include "scheduler/policy/registry.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace rubato::sched::sim {
namespace {

constexpr std::int64_t kGrownPerRound = 100;  // rescaleBudget.jobsPerRound

class ByPolicy : public Scheduler {
 public:
  // `words`: what it is called in results.
  ByPolicy(Descriptor about, std::string words, std::unique_ptr<Policy> policy, PolicyConfig config)
      : about_(std::move(about)), policy_(std::move(policy)), config_(std::move(config)) {
    about_.name = std::move(words);
  }
  const Descriptor& descriptor() const override { return about_; }
  Plan decide(const ClusterState& state) override { return make_plan(state, *policy_, config_); }
  std::optional<TimeMs> next_wake(const ClusterState& state) const override {
    return policy_->next_wake(state);
  }

 private:
  Descriptor about_;
  const std::unique_ptr<Policy> policy_;
  const PolicyConfig config_;
};

struct PolicyWords {
  std::string policy;
  std::map<std::string, double> parameters;
};

Result<PolicyWords> read_words(const std::string& words) {
  const std::size_t end_of_name = std::min(words.find(':'), words.size());
  PolicyWords read{.policy = words.substr(0, end_of_name), .parameters = {}};
  std::string_view rest = std::string_view(words).substr(end_of_name);
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const std::string_view part = rest.substr(0, rest.find(':'));
    rest.remove_prefix(part.size());
    const std::size_t equals = part.find('=');
    double value = 0;
    const char* const end = part.data() + part.size();
    const auto number = equals == std::string_view::npos
                            ? std::from_chars_result{nullptr, std::errc::invalid_argument}
                            : std::from_chars(part.data() + equals + 1, end, value);
    if (number.ec != std::errc() || number.ptr != end)
      return Error(Code::kInvalid,
                   fmt::format("policy \"{}\": expected NAME:PARAMETER=NUMBER:…", words));
    const std::string name(part.substr(0, equals));
    if (!read.parameters.emplace(name, value).second)
      return Error(Code::kInvalid,
                   fmt::format("policy \"{}\": {} stands twice; expected once", words, name));
  }
  return read;
}

Result<PolicyConfig> configured(PolicyConfig config, const PolicyWords& words) {
  config.policy = words.policy;
  config.parameters.clear();
  for (const auto& [name, value] : words.parameters) {
    TRY(const bool is_common, set_common_parameter(config, name, value));
    if (!is_common) config.parameters[name] = value;
  }
  return config;
}

Result<std::unique_ptr<Scheduler>> make_scheduler(std::string name, const PolicyWords& words) {
  TRY(PolicyConfig config, configured({.sharing = true, .grown_per_round = kGrownPerRound}, words));
  TRY(auto made, make_policy(config.policy, config.parameters));
  Descriptor about = descriptor_of(config.policy);
  config.storage_shares = about.shares_storage;
  config.cpu_memory_shares = about.shares_cpu_memory;
  return std::unique_ptr<Scheduler>(std::make_unique<ByPolicy>(std::move(about), std::move(name),
                                                               std::move(made), std::move(config)));
}

}  // namespace

Result<std::unique_ptr<Scheduler>> scheduler_named(
    const std::string& policy, const std::map<std::string, double>& parameters) {
  return make_scheduler(policy, {policy, parameters});
}

Result<std::unique_ptr<Scheduler>> scheduler_of_words(const std::string& words) {
  TRY(const PolicyWords read, read_words(words));
  return make_scheduler(words, read);
}

Result<PolicyConfig> with_policy(PolicyConfig config, const std::string& words) {
  TRY(const PolicyWords read, read_words(words));
  TRY(config, configured(std::move(config), read));
  TRY_OK(make_policy(config.policy, config.parameters));
  return config;
}

}  // namespace rubato::sched::sim
