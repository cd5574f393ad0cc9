#include "scheduler/policy/elastic_flow.h"

#include "scheduler/model/sizes.h"
#include "scheduler/perf/throughput.h"
#include "scheduler/policy/order.h"
#include "scheduler/policy/room.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

namespace rubato::sched {
namespace {

constexpr TimeMs kNever = std::numeric_limits<TimeMs>::max();
constexpr double kUnknownMs = 1e15;  // of work

// The last one is what is beyond the horizon.
using GpusBySlot = std::vector<Gpus>;

enum class Served { kByPlan, kBySurplus, kNot };  // now; the first displaces the others

struct Claim {
  JobIndex index;
  const Job* job = nullptr;
  TypeIndex type;
  std::vector<Gpus> sizes;   // rising, and each faster than the one before
  std::vector<double> pace;  // of each, in that of its minimum
  double work_ms = 0;        // at its minimum
  bool is_admitted = false;
  GpusBySlot plan = {};  // if it is admitted
  Gpus now = 0;

  double pace_of(Gpus gpus) const {
    const auto found = std::ranges::lower_bound(sizes, gpus);
    return gpus == 0 ? 0 : pace[static_cast<std::size_t>(found - sizes.begin())];
  }
  Gpus largest_within(Gpus gpus) const {
    const auto beyond = std::ranges::upper_bound(sizes, gpus);
    return beyond == sizes.begin() ? 0 : *(beyond - 1);
  }
  std::optional<Gpus> next() const {
    const auto beyond = std::ranges::upper_bound(sizes, now);
    return beyond == sizes.end() ? std::nullopt : std::optional(*beyond);
  }
};

struct Raise {
  bool starts;        // has no GPUs now
  double saved;       // GPU time later, ms by the GPU, if it does not start
  std::size_t place;  // in order
  Gpus to;
  bool operator<(const Raise& other) const {
    if (starts != other.starts) return other.starts;
    if (!starts && saved != other.saved) return saved < other.saved;
    return place > other.place;
  }
};

struct LeastPlan {
  GpusBySlot gpus;
  double gpu_ms = 0;  // that the work takes: of the last slot that it needs, only the part in use
};

// One decision.
class Planner {
 public:
  Planner(const Problem& problem, TimeMs slot_ms)
      : problem_(problem), now_ms_(problem.state().now_ms), room_(problem), slot_ms_(slot_ms) {
    make_claims();
    const std::vector<Claim*> candidates = cut_slots();
    free_ = Table<TypeIndex, GpusBySlot>(problem.count_types());
    for (TypeIndex type; type < free_.end_key(); ++type)
      free_[type].assign(slots_ + 1, room_.left()[type]);
    whole_ = free_;
    admit(candidates);
  }

  Targets run() {
    std::vector<JobIndex> order = order_by(problem_, [&](JobIndex j) { return due(j); });
    for (const JobIndex j : order) {
      Claim* claim = claim_of(j);
      if (claim == nullptr || !claim->is_admitted || claim->plan[0] == 0) continue;
      if (room_.take(j, claim->type, claim->plan[0])) claim->now = claim->plan[0];
    }
    std::vector<Served> served(order.size(), Served::kNot);
    for (const Claim& claim : claims_)
      if (claim.now > 0) served[claim.index.value] = Served::kByPlan;
    give_surplus(order);
    Targets targets{.displaces = Displaces::kLaterInOrder};
    targets.sizes.assign(order.size(), 0);
    for (const Claim& claim : claims_) {
      Served& own = served[claim.index.value];
      if (claim.now > 0) own = std::min(own, Served::kBySurplus);
      targets.sizes[claim.index.value] = claim.now;
    }
    targets.order =
        order_by(problem_, [&](JobIndex j) { return std::pair(served[j.value], due(j)); });
    return targets;
  }

 private:
  Claim* claim_of(JobIndex j) {
    const std::optional<std::size_t> position = position_[j.value];
    return position ? &claims_[*position] : nullptr;
  }
  TimeMs due(JobIndex j) {
    const Claim* claim = claim_of(j);
    return claim != nullptr && claim->is_admitted ? *claim->job->deadline_ms : kNever;
  }

  void make_claims() {
    position_.resize(problem_.state().jobs.size());
    Room planned = room_;
    for (const JobIndex j :
         order_by(problem_, [&](JobIndex k) { return !problem_.job(k).started; })) {
      const Job& job = problem_.job(j);
      const auto type = planned.type_for(j);
      const auto least = size_at_least(job, job.min);
      if (!type || !least) continue;
      planned.take(j, *type, *least);
      const Throughput speed(job.measured, problem_.name(*type));
      Claim claim{.index = j, .job = &job, .type = *type, .sizes = {}, .pace = {}};
      claim.work_ms = job.remaining_ms ? static_cast<double>(*job.remaining_ms) : kUnknownMs;
      const Gpus most = std::min(job.max, room_.left_for(j, *type));
      const auto add = [&](Gpus size) {
        const double pace = speed.at(size) / speed.at(job.min);
        if (!claim.pace.empty() && pace <= claim.pace.back()) return;
        claim.sizes.push_back(size);
        claim.pace.push_back(pace);
      };
      if (*least <= most) add(*least);
      for (Gpus size = 1; size <= most; size *= 2)
        if (size > *least && size_at_least(job, size) == size) add(size);
      position_[j.value] = claims_.size();
      claims_.push_back(std::move(claim));
    }
  }

  // Those that may be admitted, in the order in which they are asked.
  std::vector<Claim*> cut_slots() {
    std::vector<Claim*> candidates;
    TimeMs horizon = 0;
    for (Claim& claim : claims_) {
      const Job& job = *claim.job;
      if (!job.deadline_ms || !job.remaining_ms || *job.deadline_ms <= now_ms_) continue;
      if (candidates.size() == ElasticFlow::kDeadlinesMost) break;
      candidates.push_back(&claim);
      horizon = std::max(horizon, *job.deadline_ms - now_ms_);
    }
    const TimeMs within = std::min(horizon, ElasticFlow::kSlotsMost * slot_ms_);
    slots_ = static_cast<std::size_t>(std::max<TimeMs>((within + slot_ms_ - 1) / slot_ms_, 1));
    return candidates;
  }

  void admit(const std::vector<Claim*>& candidates) {
    std::vector<Claim*> admitted;
    for (Claim* candidate : candidates) {
      std::vector<Claim*> all = admitted;
      const auto due_ms = [](const Claim* claim) { return *claim->job->deadline_ms; };
      all.insert(std::ranges::upper_bound(all, due_ms(candidate), {}, due_ms), candidate);
      if (!plan_all(all)) continue;
      admitted = std::move(all);
      candidate->is_admitted = true;
    }
  }

  // False, and nothing is changed: one of them cannot end in time.
  bool plan_all(const std::vector<Claim*>& claims) {
    Table<TypeIndex, GpusBySlot> free = whole_;
    std::vector<GpusBySlot> plans;
    for (const Claim* claim : claims) {
      GpusBySlot& left = free[claim->type];
      auto plan = least_plan(*claim, left, 0, claim->work_ms);
      if (!plan) return false;
      for (std::size_t t = 0; t < slots_; ++t) left[t] -= plan->gpus[t];
      plans.push_back(std::move(plan->gpus));
    }
    free_ = std::move(free);
    for (std::size_t i = 0; i < claims.size(); ++i) claims[i]->plan = std::move(plans[i]);
    return true;
  }

  // How much of a slot is before its deadline.
  double lasts(const Claim& claim, std::size_t slot) const {
    const TimeMs left_ms = *claim.job->deadline_ms - now_ms_ - static_cast<TimeMs>(slot) * slot_ms_;
    return static_cast<double>(std::clamp<TimeMs>(left_ms, 0, slot < slots_ ? slot_ms_ : kNever));
  }
  // What it does in a slot, ms of work.
  double done_in(const Claim& claim, Gpus gpus, std::size_t slot) const {
    return claim.pace_of(gpus) * lasts(claim, slot);
  }
  double gpu_ms_of(const Claim& claim, const GpusBySlot& gpus, std::size_t first) const {
    double sum = 0;
    for (std::size_t t = first; t < gpus.size(); ++t)
      sum += static_cast<double>(gpus[t]) * lasts(claim, t);
    return sum;
  }

  // From slot `first` on. None: it cannot end in time.
  std::optional<LeastPlan> least_plan(const Claim& claim, const GpusBySlot& free, std::size_t first,
                                      double work_ms) const {
    GpusBySlot smaller(free.size(), 0);
    if (work_ms <= 0) return LeastPlan{.gpus = std::move(smaller)};
    for (const Gpus size : claim.sizes) {
      GpusBySlot plan(free.size(), 0);
      double done = 0;
      for (std::size_t t = first; t < plan.size() && lasts(claim, t) > 0; ++t) {
        plan[t] = claim.largest_within(std::min(size, free[t]));
        done += done_in(claim, plan[t], t);
      }
      if (done < work_ms) {
        smaller = std::move(plan);
        continue;
      }
      double unused = 0;
      for (std::size_t t = first; t < plan.size(); ++t) {
        const double more = done_in(claim, plan[t], t) - done_in(claim, smaller[t], t);
        if (done - more < work_ms) {
          unused =
              (done - work_ms) / more * static_cast<double>(plan[t] - smaller[t]) * lasts(claim, t);
          break;
        }
        done -= more;
        plan[t] = smaller[t];
      }
      const double gpu_ms = gpu_ms_of(claim, plan, first) - unused;
      return LeastPlan{.gpus = std::move(plan), .gpu_ms = gpu_ms};
    }
    return std::nullopt;
  }

  // What is left to do after this slot, if it has so many GPUs in it.
  LeastPlan plan_after(const Claim& claim, Gpus gpus) const {
    GpusBySlot free = free_[claim.type];
    for (std::size_t t = 0; t < slots_; ++t) free[t] += claim.plan[t];
    auto plan = least_plan(claim, free, 1, claim.work_ms - done_in(claim, gpus, 0));
    // It may have less now than its plan says, because its queue may have no more.
    return plan ? *std::move(plan)
                : LeastPlan{.gpus = claim.plan, .gpu_ms = gpu_ms_of(claim, claim.plan, 1)};
  }

  // GPU time after this slot that it needs the less, GPU-ms, if it has `to` in this one.
  double saved_by(const Claim& claim, Gpus to) const {
    if (claim.is_admitted)
      return plan_after(claim, claim.now).gpu_ms - plan_after(claim, to).gpu_ms;
    const auto done = [&](Gpus gpus) {
      return std::min(claim.pace_of(gpus) * static_cast<double>(slot_ms_), claim.work_ms);
    };
    return static_cast<double>(claim.job->min) * (done(to) - done(claim.now));
  }

  void give_surplus(const std::vector<JobIndex>& order) {
    std::priority_queue<Raise> steps;
    const auto push = [&](std::size_t place) {
      const Claim* claim = claim_of(order[place]);
      const auto to = claim == nullptr ? std::nullopt : claim->next();
      if (!to) return;
      Raise step{.starts = claim->now == 0, .saved = 0, .place = place, .to = *to};
      // In whole ms, so that what equals save is equal.
      if (!step.starts)
        step.saved = std::round(saved_by(*claim, *to) / static_cast<double>(*to - claim->now));
      if (step.starts || step.saved > 0) steps.push(step);
    };
    for (std::size_t place = 0; place < order.size(); ++place) push(place);
    while (!steps.empty()) {
      const Raise step = steps.top();
      steps.pop();
      Claim& claim = *claim_of(order[step.place]);
      if (!room_.take(claim.index, claim.type, step.to - claim.now)) continue;
      if (claim.is_admitted) {
        GpusBySlot plan = plan_after(claim, step.to).gpus;
        GpusBySlot& free = free_[claim.type];
        for (std::size_t t = 0; t < slots_; ++t) free[t] += claim.plan[t] - plan[t];
        claim.plan = std::move(plan);
      }
      claim.now = step.to;
      push(step.place);
    }
  }

  const Problem& problem_;
  const TimeMs now_ms_;
  Room room_;  // now
  const TimeMs slot_ms_;
  std::size_t slots_ = 1;  // to the horizon
  std::vector<Claim> claims_;
  std::vector<std::optional<std::size_t>> position_;  // in claims_, by JobIndex
  Table<TypeIndex, GpusBySlot> whole_;
  Table<TypeIndex, GpusBySlot> free_;  // that no plan has
};

}  // namespace

Descriptor ElasticFlow::describe() {
  return {.name = "elasticFlow",
          .about = "admits deadlines that can be met; the rest to who saves most GPU time by it",
          .rule =
              "A job with a deadline is admitted if it, and all that are admitted, can end in time "
              "with the fewest GPUs that are enough, planned in slots, the nearest deadline first. "
              "What those need now they get, and others are preempted for it. Free GPUs go one "
              "step of size at a time to jobs that have none, then to the job that saves most GPU "
              "time later. Sizes are the minimum and powers of two. Jobs without a deadline, and "
              "those not admitted, are best effort, by age.",
          .choose =
              "Where jobs have deadlines, are elastic, and keeping the promises that can be kept "
              "counts more than trying all. It needs deadlines (spec.objective.deadline), the work "
              "left (stop.steps) and measured throughput.",
          .source =
              "Gu et al., ASPLOS'23. *Reconstruction*: it keeps no plan between two rounds, turns "
              "nobody away, does not count what a change costs, and leaves placement to the "
              "session; its published results are *unverified* here",
          .parameters = {{.name = "slotSeconds",
                          .least = 1,
                          .most = 86'400,
                          .standard = 60,
                          .unit = "s",
                          .about = "how finely time is planned, 240 slots ahead"}},
          .knows = Knows::kRemaining,
          .elastic = true,
          .timed = true,
          .uses_throughput = true,
          .uses_deadlines = true};
}

ElasticFlow::ElasticFlow(const std::vector<double>& parameters)
    : slot_ms_(std::llround(parameters.at(0) * 1000)) {}

Targets ElasticFlow::decide(const Problem& problem) const {
  return Planner(problem, slot_ms_).run();
}

}  // namespace rubato::sched
