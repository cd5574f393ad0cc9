// What each size is worth to each job in one round: the objective of a policy that has one, as
// integers. From here on nothing rounds: sums, prices and bounds are exact, and the same on every
// processor.
//
// A value is in units of 2^-32 of what the policy counts in (rubato: GPUs' worth of training at the
// efficiency of the job's minimum, times the weight of the job in this round). Holding nothing is
// worth 0. What a change costs a running job is subtracted already.
#pragma once

#include "scheduler/model/dense.h"
#include "scheduler/model/problem.h"

#include <cstdint>
#include <vector>

namespace rubato::sched {

constexpr std::int64_t kValueOne = std::int64_t{1} << 32U;
// More than any plan is worth, and room to add up: bounds are cut off here.
constexpr std::int64_t kValueMost = std::int64_t{1} << 62U;

// In what the policy counts in; exact below 2^53 units.
inline double amount_of(std::int64_t value) {
  return static_cast<double>(value) / static_cast<double>(kValueOne);
}

struct SizeValue {
  Gpus gpus = 0;
  std::int64_t value = 0;
  bool operator==(const SizeValue&) const = default;
};

struct JobValues {
  // Sizes in order, the least and the most that the job may have among them. Between two of them
  // no size is worth more than the better of the two.
  using List = std::vector<SizeValue>;
  struct OfType {
    TypeIndex type;
    std::size_t list = 0;  // in `lists`: types of which nothing is known share one
  };
  std::vector<OfType> types;  // that it may have; none: it takes no part
  std::vector<List> lists;
  const List& of(const OfType& type) const { return lists[type.list]; }
};

using ValueTable = Table<JobIndex, JobValues>;

}  // namespace rubato::sched
