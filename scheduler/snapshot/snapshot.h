// Snapshot: one whole scheduling problem, so that a plan can be made again elsewhere: by `rubatoctl
// plan`, by another simulator, from a bug report that is one file. make_plan(snapshot.state,
// snapshot.policy) gives the plan that the recorder's build made.
//
// As JSON: docs/snapshot.md says every field, its default and its bounds. Equal values are written
// as equal bytes, on one line without spaces; what was written is read back equal, doubles
// included. What is read can be planned: whatever make_plan relies on was checked.
//
// Errors are kInvalid and name the first field that is wrong, what was found, and what was
// expected:
//   jobs[3].gpus.min: -1, expected a whole number from 1 to 1048576
// Of a text that cannot be read as JSON the error has the reason kNotJson.
// Pure functions; time and memory are linear in the text, but for `nodeSets` (kListedNodesMost).
#pragma once

#include "common/json.h"
#include "common/result.h"
#include "scheduler/certificate/certificate.h"
#include "scheduler/fix.h"
#include "scheduler/model/cluster_state.h"
#include "scheduler/plan.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rubato::sched {

struct Snapshot {
  ClusterState state;
  PolicyConfig policy;
  bool operator==(const Snapshot&) const = default;
};

// The same without what time alone changes: the clock, and how much a job has attained and has
// left.
Snapshot without_time(Snapshot snapshot);

constexpr std::int64_t kSnapshotVersion = 1;

// Bounds of what is read. Together they keep every sum that a plan makes inside 64 bits.
constexpr std::size_t kSnapshotBytesMost = 64u << 20;
constexpr std::int64_t kNodesMost = 100'000;
constexpr std::int64_t kJobsMost = 100'000;
constexpr std::int64_t kQueuesMost = 10'000;
constexpr std::int64_t kGoodputMost = 4096;         // points of a job
constexpr std::int64_t kLevelsMost = 8;             // of topology
constexpr std::int64_t kTypesMost = 256;            // quotas of a queue, measured points of a job
constexpr Gpus kGpusMost = 1 << 20;                 // of one job, and of all nodes together
constexpr std::int64_t kHeldMost = 1 << 20;         // pods of all jobs together
constexpr std::int64_t kListedNodesMost = 1 << 22;  // in `eligible` and `avoid` of all jobs
constexpr std::int64_t kAmountMost = std::int64_t{1} << 61;  // of cores, memory, others
constexpr std::int64_t kQuotaMost = std::int64_t{1} << 40;
constexpr std::int64_t kWholeMost = std::int64_t{1} << 53;  // of other whole numbers
constexpr std::size_t kIdBytes = 512;
constexpr std::size_t kTextBytes = 64u << 10;

constexpr std::string_view kNotJson = "NotJSON";

Result<Snapshot> read_snapshot(std::string_view text);
Result<Snapshot> decode_snapshot(const json::Value& document);  // of any size
json::Value to_json(const Snapshot& snapshot);
std::string to_text(const Snapshot& snapshot);

// A plan of this state: actions in order, then one verdict for each job, by job id. Written only.
json::Value to_json(const Plan& plan, const ClusterState& state);
std::string to_text(const Plan& plan, const ClusterState& state);
// The same with the fixes of jobs, by their position in the state; an empty one is left out.
json::Value to_json(const Plan& plan, const ClusterState& state, const std::vector<Fix>& fixes);
// Amounts in what the policy counts in (rubato: GPUs).
json::Value to_json(const Certificate& certificate);

// The words of the JSON for values of enums.
const char* name_of(Shape shape);
const char* name_of(Preempts preempts);

}  // namespace rubato::sched
