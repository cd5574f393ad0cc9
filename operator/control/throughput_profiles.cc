#include "operator/control/throughput_profiles.h"

#include "common/log.h"
#include "common/net/certificates.h"
#include "common/words.h"
#include "operator/api/codec.h"
#include "operator/api/resources.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>

namespace rubato::control {
namespace {

struct Speed {
  double sum = 0;    // tokens/s
  int jobs = 0;      // that run on it
  double known = 0;  // by a job that runs on something else, or not at all

  double mean() const { return jobs > 0 ? sum / jobs : known; }
};

using Placement = std::pair<std::string, std::int32_t>;  // GPU type, GPUs

struct Kind {
  const api::TrainingJobSpec* spec = nullptr;  // of one of its jobs
  std::map<Placement, Speed> speeds;
};

// What the job runs on, if that is of one type.
Placement placement_of(const api::TrainingJob& job) {
  const auto& allocation = job.status.allocation;
  if (!allocation || allocation->pods.empty()) return {};
  const std::string& type = allocation->pods.front().gpu_type;
  const bool is_one =
      std::ranges::all_of(allocation->pods, [&](const auto& pod) { return pod.gpu_type == type; });
  return is_one ? Placement{type, allocation->gpus} : Placement{};
}

std::map<std::string, Kind> kinds_of(const World& world) {
  std::map<std::string, Kind> kinds;
  for (const auto& object : world.jobs) {
    const auto& performance = object->job.status.performance;
    if (!performance) continue;
    const Placement runs_on = placement_of(object->job);
    for (const auto& point : performance->by_type) {
      if (point.tokens_per_second <= 0) continue;
      Kind& kind = kinds[object->profile];
      kind.spec = &object->job.spec;
      Speed& speed = kind.speeds[{point.gpu_type, point.gpus}];
      if (Placement{point.gpu_type, point.gpus} == runs_on) {
        speed.sum += point.tokens_per_second;
        ++speed.jobs;
      } else {
        speed.known = point.tokens_per_second;
      }
    }
  }
  return kinds;
}

// Makes room for a point, in place of the oldest that no job knows: one that a job knows would be
// missing again at once. False: jobs know as many as a profile holds.
bool make_room(const Kind& kind, std::vector<api::ThroughputPoint>& points) {
  if (points.size() < api::kThroughputPointsMost) return true;
  auto oldest = points.end();
  for (auto at = points.begin(); at != points.end(); ++at) {
    if (kind.speeds.contains({at->gpu_type, at->gpus})) continue;
    if (oldest == points.end() ||
        at->measured.value_or(WallTime{}) < oldest->measured.value_or(WallTime{}))
      oldest = at;
  }
  if (oldest == points.end()) return false;
  points.erase(oldest);
  return true;
}

bool is_fresh(const std::vector<api::ThroughputPoint>& points, WallTime now) {
  return std::ranges::any_of(points, [&](const auto& point) {
    return point.measured && std::chrono::abs(now - *point.measured) < kProfilePause;
  });
}

// True when something changed.
bool add(const Kind& kind, WallTime now, std::vector<api::ThroughputPoint>& points) {
  bool changed = false;
  const bool rests = is_fresh(points, now);
  for (const auto& [placement, speed] : kind.speeds) {
    const auto found = std::ranges::find_if(points, [&](const auto& point) {
      return point.gpu_type == placement.first && point.gpus == placement.second;
    });
    if (found == points.end()) {
      if (!make_room(kind, points)) continue;
      points.push_back({placement.first, placement.second, speed.mean(), now});
    } else if (!rests && speed.jobs > 0 &&
               std::abs(speed.mean() - found->tokens_per_second) >
                   kSpeedChange * found->tokens_per_second) {
      found->tokens_per_second = speed.mean();
      found->measured = now;
    } else {
      continue;
    }
    changed = true;
  }
  return changed;
}

const ProfileObject* find(const World& world, const std::string& kind) {
  const auto found = std::ranges::lower_bound(
      world.profiles, kind, {},
      [](const auto& object) -> const std::string& { return object->meta.name; });
  const bool is_there = found != world.profiles.end() && (*found)->meta.name == kind;
  return is_there ? found->get() : nullptr;
}

}  // namespace

std::string profile_of(const json::Value& spec) {
  json::Value model = spec["training"]["model"];
  if (model.is_object()) model.erase("initFrom");
  json::Value containers = json::Value::array();
  for (const json::Value& container : spec["template"]["spec"]["containers"].items())
    containers.push_back(
        json::Value::array({container["image"], container["command"], container["args"],
                            container["env"], container["resources"]}));
  const json::Value kind = json::Value::array(
      {spec["runtime"], std::move(model), spec["training"]["batch"], spec["training"]["precision"],
       spec["gpus"]["perPod"], std::move(containers)});
  return net::sha256_hex(json::dump(kind)).substr(0, 16);
}

std::string describe_profile(const api::TrainingJobSpec& spec) {
  std::string text(api::name_of(spec.runtime));
  if (spec.training) {
    const api::TrainingSpec& training = *spec.training;
    if (training.model)
      text += fmt::format(" {}", training.model->preset.empty()
                                     ? std::string(api::name_of(training.model->family))
                                     : training.model->preset);
    text += training.model ? fmt::format(", {} x {} tokens a step", training.batch.global,
                                         training.batch.sequence_length)
                           : fmt::format(", {} a step", counted(training.batch.global, "sample"));
  }
  return fmt::format("{}, {} a pod", text, counted(spec.gpus.per_pod, "GPU"));
}

ProfileWriter::ProfileWriter(kube::Client& client, Metrics& metrics)
    : client_(client), metrics_(metrics) {}

void ProfileWriter::look_at(const World& world, MonoTime now) {
  if (now < next_) return;
  const auto kinds = kinds_of(world);
  std::size_t room = kProfilesMost - std::min(kProfilesMost, world.profiles.size());
  int writes = 0;
  std::size_t left_out = 0;
  auto at = kinds.upper_bound(done_);
  for (std::size_t i = 0; i < kinds.size() && writes < kProfileWritesMost; ++i) {
    if (at == kinds.end()) at = kinds.begin();
    const auto& [name, kind] = *at++;
    const ProfileObject* seen = find(world, name);
    api::ThroughputProfileSpec spec =
        seen != nullptr ? seen->profile.spec
                        : api::ThroughputProfileSpec{name, describe_profile(*kind.spec), {}};
    if (!add(kind, world.wall, spec.points)) continue;
    if (seen == nullptr && room == 0) {
      ++left_out;
      continue;
    }
    if (seen == nullptr) --room;
    done_ = name;
    ++writes;
    const bool written = write(name, seen, api::encode(spec));
    if (!written) next_ = now + kProfilePause;
    metrics_
        .counter("rubato_throughput_profile_writes_total",
                 "Writes of ThroughputProfiles, by how they ended.",
                 {{"result", written ? "written" : "failed"}})
        .add(1);
  }
  metrics_
      .gauge("rubato_throughput_profiles_left_out",
             "Kinds of jobs without a ThroughputProfile, as there are 1000 in the cluster.")
      .set(static_cast<double>(left_out));
}

bool ProfileWriter::write(const std::string& kind, const ProfileObject* seen,
                          const json::Value& spec) {
  json::Value metadata = json::Value::object();
  Result<json::Value> written = json::Value();
  if (seen != nullptr) {
    metadata.set("resourceVersion", seen->meta.resource_version);  // not over what a person wrote
    written = client_.patch(api::kThroughputProfile, {"", kind}, kube::PatchType::kMerge,
                            json::Value::object({{"metadata", metadata}, {"spec", spec}}));
  } else {
    metadata.set("name", kind);
    written =
        client_.create(api::kThroughputProfile, "",
                       json::Value::object({{"apiVersion", api::kThroughputProfile.api_version()},
                                            {"kind", api::kThroughputProfile.kind},
                                            {"metadata", metadata},
                                            {"spec", spec}}));
  }
  if (!written.ok())
    LOG_WARNING("scheduler", "ThroughputProfile {} is not written: {}", kind,
                written.error().to_string());
  return written.ok();
}

}  // namespace rubato::control
