// Nodes that fail: each after times of its own, exponentially distributed, whatever the policy
// does, so that all policies of a table meet the same failures.
#pragma once

#include "common/result.h"
#include "common/rng.h"
#include "scheduler/model/cluster_state.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace rubato::sched::sim {

struct NodeFailures {
  TimeMs mtbf_ms = 0;            // of one node: mean time from its start to its failure
  TimeMs repair_ms = 3'600'000;  // from there until pods can be on it again
  std::uint64_t seed = 1;
  // Training after which a job writes its next checkpoint; that costs it no time. One that loses
  // what it has trained since goes back to it.
  TimeMs checkpoint_ms = 1'800'000;
};

// "mtbf=720,repair=60,seed=1,checkpoint=30": hours, minutes, a whole number, minutes; the mtbf must
// be there, what else is not said is as above. kInvalid says which part is wrong.
Result<NodeFailures> parse_failures(std::string_view text);

// How long one node is up, again and again. Equal seeds and nodes give equal times.
class Uptimes {
 public:
  Uptimes(const NodeFailures& failures, std::size_t node);
  TimeMs next();  // at least 1

 private:
  double mean_ms_;
  Rng rng_;
};

}  // namespace rubato::sched::sim
