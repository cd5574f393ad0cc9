// The policy `elasticFlow`.
#include "common/clock.h"
#include "tests/unit/scheduler/policy_cases.h"

#include <chrono>
#include <cmath>
#include <numeric>
#include <set>

namespace rubato::sched {
namespace {

Job due(Job j, TimeMs left_ms, TimeMs deadline_ms) {
  j.remaining_ms = j.duration_ms = left_ms;
  j.deadline_ms = deadline_ms;
  return j;
}

// Twice the GPUs, twice the speed.
Job scaling_evenly(Job j) {
  for (const Gpus n : {1, 2, 4, 8}) j.measured.push_back({"A", n, static_cast<double>(n)});
  return j;
}

// The older and shorter of two cannot end in time any more, the other can.
ClusterState two_for_two_gpus() {
  ClusterState state = cluster({node("n1", 2, 2)}, {due(job("lost", 2, 2), 1'000'000, 100'000),
                                                    due(job("kept", 2, 2), 1'900'000, 2'000'000)});
  state.jobs[1].queued_at = 9;
  return state;
}

TEST(ElasticFlow, PlansWhatNoSimplerPolicyDoes) {
  const ClusterState state = two_for_two_gpus();
  EXPECT_EQ(sizes_after(state, "elasticFlow"), (Sizes{{"kept", 2}}));
  EXPECT_EQ(sizes_after(state, "edf"), (Sizes{{"lost", 2}}));
  EXPECT_EQ(who_plans_the_same(state, "elasticFlow"), Nobody{});
}

// Its mechanism is admission: where nobody has a deadline, there is none, and the older one goes
// first.
TEST(ElasticFlow, WithoutDeadlinesThereIsNoAdmission) {
  ClusterState state = two_for_two_gpus();
  for (Job& j : state.jobs) j.deadline_ms.reset();
  EXPECT_EQ(sizes_after(state, "elasticFlow"), (Sizes{{"lost", 2}}));
}

// 1000 s of work in 260 s: 2 GPUs are not enough, 4 are. They are taken from a best-effort job.
TEST(ElasticFlow, ADeadlineHasTheLeastShareThatMeetsIt) {
  ClusterState state =
      cluster({node("n1", 4, 0)}, {scaling_evenly(running("rest", 1, 4, {"n1", "n1", "n1", "n1"})),
                                   scaling_evenly(due(job("due", 1, 8), 1'000'000, 260'000))});
  state.jobs[0].remaining_ms = 9'000'000;
  EXPECT_EQ(targets_of(state, "elasticFlow").sizes, (std::vector<Gpus>{0, 4}));
  // In 510 s 2 GPUs are enough, and the other two are for the other.
  state.jobs[1].deadline_ms = 510'000;
  EXPECT_EQ(targets_of(state, "elasticFlow").sizes, (std::vector<Gpus>{2, 2}));
}

// Who comes later with a nearer deadline does not break what was promised: `late` could only end in
// time with all GPUs, and so could `early`.
TEST(ElasticFlow, APromiseIsKept) {
  ClusterState state = cluster({node("n1", 2, 2)}, {due(job("early", 2, 2), 900'000, 1'000'000),
                                                    due(job("late", 2, 2), 700'000, 800'000)});
  state.jobs[1].queued_at = 9;
  EXPECT_EQ(sizes_after(state, "elasticFlow"), (Sizes{{"early", 2}}));
  EXPECT_EQ(sizes_after(state, "edf"), (Sizes{{"late", 2}}));
}

// Of two best-effort jobs the one that scales takes what is left over.
TEST(ElasticFlow, SurplusGoesToWhoSavesGpuTime) {
  ClusterState state =
      cluster({node("n1", 5, 5)}, {job("flat", 1, 4), scaling_evenly(job("steep", 1, 4))});
  for (Job& j : state.jobs) j.remaining_ms = 9'000'000;
  state.jobs[0].measured = {{"A", 1, 1}, {"A", 2, 1.1}, {"A", 4, 1.2}};
  EXPECT_EQ(sizes_after(state, "elasticFlow"), (Sizes{{"flat", 1}, {"steep", 4}}));
}

// A round may come anywhere in a slot, and work is done meanwhile: no step of size is worth more in
// one round than in the next, or a job would grow and shrink again.
TEST(ElasticFlow, SizesDoNotDependOnWhenARoundComes) {
  ClusterState state = cluster({node("n1", 10, 10)},
                               {due(job("due", 1, 17), 2'432'147, 6'190'084), job("rest", 2, 18)});
  state.jobs[1].per_pod.gpus = 2;
  const std::vector<Gpus> sizes{4, 4};
  for (const bool is_at_work : {false, true}) {
    for (TimeMs after_ms = 0; after_ms <= 600'000; after_ms += 30'000) {
      ClusterState later = state;
      later.now_ms += after_ms;
      if (is_at_work) *later.jobs[0].remaining_ms -= after_ms;
      EXPECT_EQ(targets_of(later, "elasticFlow").sizes, sizes) << after_ms;
    }
  }
}

// `older` can wait for `urgent`, which shows where slots are short, whatever else is due when.
TEST(ElasticFlow, AFarDeadlineLeavesNearOnesTheirSlots) {
  constexpr TimeMs kHour = 3'600'000;
  const TimeMs last_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(kLastTime.time_since_epoch()).count();
  ClusterState state = cluster({node("n1", 1, 1)}, {due(job("older", 1, 1), kHour / 2, 2 * kHour),
                                                    due(job("urgent", 1, 1), kHour / 2, kHour)});
  state.jobs[1].queued_at = 9;
  EXPECT_EQ(sizes_after(state, "elasticFlow"), (Sizes{{"urgent", 1}}));
  state.jobs.push_back(due(job("far", 1, 1), 1000 * kHour, last_ms));
  EXPECT_EQ(sizes_after(state, "elasticFlow"), (Sizes{{"urgent", 1}}));
  // Who has started is asked first: it keeps its promise while what is beyond the horizon is enough
  // for it, and takes what it must have before.
  state.jobs[2].attained_gpu_ms = 1;
  state.jobs[2].started = true;
  EXPECT_EQ(targets_of(state, "elasticFlow").sizes, (std::vector<Gpus>{0, 1, 0}));
  state.jobs[2].deadline_ms = 1000 * kHour;
  EXPECT_EQ(targets_of(state, "elasticFlow").sizes, (std::vector<Gpus>{0, 0, 1}));
}

// The rule written plainly, for nodes of one type without quotas, and nothing measured. Plans are
// filled from their deadline backwards.
class ElasticFlowReference {
 public:
  explicit ElasticFlowReference(const ClusterState& state)
      : state_(state), own_(state.jobs.size()) {
    TimeMs horizon = kSlot;
    for (const std::size_t i : asked()) horizon = std::max(horizon, *jobs()[i].deadline_ms - now());
    slots_ = static_cast<std::size_t>((horizon + kSlot - 1) / kSlot);
    gpus_ = gpus_there(state);
    for (std::size_t i = 0; i < own_.size(); ++i) sizes_of(i);
    for (const std::size_t i : asked()) {
      admitted_.push_back(i);
      if (!plan_all()) admitted_.pop_back();
    }
    expect_in_time();
    Gpus left = gpus_;
    for (const std::size_t i : admitted_) left -= own_[i].now = own_[i].plan[0];
    give_surplus(left);
  }
  std::vector<Gpus> sizes() const {
    std::vector<Gpus> sizes;
    for (const Own& own : own_) sizes.push_back(own.now);
    return sizes;
  }
  bool is_admitted(std::size_t i) const { return std::ranges::count(admitted_, i) > 0; }

 private:
  static constexpr TimeMs kSlot = 60'000;
  static constexpr TimeMs kUnknown = 1'000'000'000'000'000;  // of work
  using Plan = std::vector<Gpus>;
  struct Planned {
    Plan plan;
    double later_ms = 0;  // GPU time after the first slot, as far as the work needs it
  };
  struct Own {
    std::set<Gpus> sizes;
    Plan plan;
    Gpus now = 0;
  };
  const std::vector<Job>& jobs() const { return state_.jobs; }
  TimeMs now() const { return state_.now_ms; }

  void sizes_of(std::size_t i) {
    const Job& j = jobs()[i];
    if (!j.refused.empty()) return;
    for (const Gpus n : {j.min, Gpus{1}, Gpus{2}, Gpus{4}, Gpus{8}, Gpus{16}})
      if (n >= j.min && n <= std::min(j.max, gpus_)) own_[i].sizes.insert(n);
  }
  std::vector<std::size_t> by_age(bool started_first) const {
    std::vector<std::size_t> order(jobs().size());
    std::iota(order.begin(), order.end(), 0U);
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return jobs()[i].queued_at; });
    if (started_first)
      std::ranges::stable_sort(order, {}, [&](std::size_t i) { return !jobs()[i].started; });
    std::ranges::stable_sort(order, std::greater(),
                             [&](std::size_t i) { return jobs()[i].priority; });
    return order;
  }
  std::vector<std::size_t> asked() const {
    std::vector<std::size_t> order = by_age(true);
    std::erase_if(order, [&](std::size_t i) {
      const Job& j = jobs()[i];
      return !j.refused.empty() || !j.deadline_ms || !j.remaining_ms || *j.deadline_ms <= now();
    });
    return order;
  }
  double pace(std::size_t i, Gpus gpus) const {
    const auto step = [](Gpus n) { return 0.95 / static_cast<double>(n) + 0.05; };
    return gpus == 0 ? 0 : step(jobs()[i].min) / step(gpus);
  }
  double lasts(std::size_t i, std::size_t t) const {
    const TimeMs left = *jobs()[i].deadline_ms - now() - static_cast<TimeMs>(t) * kSlot;
    return static_cast<double>(std::clamp<TimeMs>(left, 0, kSlot));
  }
  double done(std::size_t i, const Plan& plan) const {
    double sum = 0;
    for (std::size_t t = 0; t < slots_; ++t) sum += pace(i, plan[t]) * lasts(i, t);
    return sum;
  }
  Gpus within(std::size_t i, Gpus most) const {
    Gpus found = 0;
    for (const Gpus n : own_[i].sizes)
      if (n <= most) found = n;
    return found;
  }
  // The first slot is as it is, if that is said.
  std::optional<Planned> least_plan(std::size_t i, const Plan& free,
                                    std::optional<Gpus> now) const {
    const auto needed = static_cast<double>(*jobs()[i].remaining_ms);
    Plan plan(slots_, 0);
    plan[0] = now.value_or(0);
    if (done(i, plan) >= needed) return Planned{.plan = plan};
    for (const Gpus size : own_[i].sizes) {
      for (std::size_t t = slots_; t-- > (now ? 1U : 0U);) {
        if (lasts(i, t) <= 0) continue;  // it needs nothing after its deadline
        const Gpus before = std::exchange(plan[t], within(i, std::min(size, free[t])));
        const double over = done(i, plan) - needed;
        if (over < 0) continue;
        // The GPUs that it has here beside those before are not needed to the end of the slot.
        const double unused = over / (pace(i, plan[t]) - pace(i, before));
        Planned planned{.plan = plan};
        for (std::size_t k = 1; k < slots_; ++k)
          planned.later_ms += static_cast<double>(plan[k]) * lasts(i, k);
        planned.later_ms -= unused * static_cast<double>(plan[t] - before);
        return planned;
      }
    }
    return std::nullopt;
  }
  bool plan_all() {
    std::vector<std::size_t> order = admitted_;
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return *jobs()[i].deadline_ms; });
    Plan free(slots_, gpus_);
    std::map<std::size_t, Plan> plans;
    for (const std::size_t i : order) {
      auto plan = least_plan(i, free, std::nullopt);
      if (!plan) return false;
      for (std::size_t t = 0; t < slots_; ++t) free[t] -= plan->plan[t];
      plans[i] = plan->plan;
    }
    for (auto& [i, plan] : plans) own_[i].plan = plan;
    free_ = free;
    return true;
  }
  void expect_in_time() const {
    for (const std::size_t i : admitted_)
      EXPECT_GE(done(i, own_[i].plan), static_cast<double>(*jobs()[i].remaining_ms));
  }
  std::optional<Planned> with(std::size_t i, Gpus gpus) const {
    Plan free = free_;
    for (std::size_t t = 0; t < slots_; ++t) free[t] += own_[i].plan[t];
    return least_plan(i, free, gpus);
  }
  // By its next step of size, in whole ms of a GPU.
  double saved_by(std::size_t i, Gpus next) const {
    const Gpus now = own_[i].now;
    double all_ms = 0;
    if (is_admitted(i)) {
      all_ms = with(i, now)->later_ms - with(i, next)->later_ms;
    } else {
      const auto done = [&](Gpus gpus) {
        const double left = static_cast<double>(jobs()[i].remaining_ms.value_or(kUnknown));
        return std::min(pace(i, gpus) * static_cast<double>(kSlot), left);
      };
      all_ms = static_cast<double>(jobs()[i].min) * (done(next) - done(now));
    }
    return std::round(all_ms / static_cast<double>(next - now));
  }
  void give_surplus(Gpus left) {
    std::vector<std::size_t> order = by_age(false);
    const auto deadline = [&](std::size_t i) {
      return is_admitted(i) ? *jobs()[i].deadline_ms : std::numeric_limits<TimeMs>::max();
    };
    std::ranges::stable_sort(order, {}, deadline);
    std::ranges::stable_sort(order, std::greater(),
                             [&](std::size_t i) { return jobs()[i].priority; });
    // What the next step of each saves, as of its last one.
    std::map<std::size_t, double> saved;
    const auto look_at = [&](std::size_t i) {
      const auto next = own_[i].sizes.upper_bound(own_[i].now);
      saved.erase(i);
      if (next != own_[i].sizes.end()) saved[i] = saved_by(i, *next);
    };
    for (const std::size_t i : order)
      if (own_[i].now > 0) look_at(i);
    for (const std::size_t i : order) {
      if (own_[i].now > 0 || own_[i].sizes.empty() || *own_[i].sizes.begin() > left) continue;
      left -= *own_[i].sizes.begin();
      change(i, *own_[i].sizes.begin());
      look_at(i);
    }
    while (true) {
      std::optional<std::size_t> best;
      for (const std::size_t i : order)
        if (saved.contains(i) && saved[i] > 0 && (!best || saved[i] > saved[*best])) best = i;
      if (!best) return;
      const Gpus next = *own_[*best].sizes.upper_bound(own_[*best].now);
      if (next - own_[*best].now > left) {
        saved.erase(*best);
        continue;
      }
      left -= next - own_[*best].now;
      change(*best, next);
      look_at(*best);
    }
  }
  void change(std::size_t i, Gpus to) {
    if (is_admitted(i)) {
      Plan plan = with(i, to)->plan;
      for (std::size_t t = 1; t < slots_; ++t) free_[t] += own_[i].plan[t] - plan[t];
      own_[i].plan = plan;
    }
    own_[i].now = to;
  }

  const ClusterState& state_;
  std::size_t slots_ = 1;
  Gpus gpus_ = 0;
  std::vector<Own> own_;
  std::vector<std::size_t> admitted_;
  Plan free_;
};

TEST(ElasticFlow, AdmitsAndSharesAsTheRuleSaysOnDrawnStates) {
  std::size_t admitted = 0, asked = 0;
  for (std::uint64_t seed = 1; seed <= kDrawnStates; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ClusterState state = drawn(seed);
    // So that some deadlines can be met.
    for (Job& j : state.jobs)
      if (j.remaining_ms) *j.remaining_ms /= 3;
    const ElasticFlowReference reference(state);
    for (std::size_t i = 0; i < state.jobs.size(); ++i) {
      asked += state.jobs[i].deadline_ms.has_value() ? 1 : 0;
      admitted += reference.is_admitted(i) ? 1 : 0;
    }
    EXPECT_EQ(targets_of(state, "elasticFlow").sizes, reference.sizes());
  }
  EXPECT_GT(admitted, asked / 5);
  EXPECT_LT(admitted, asked / 2);
}

}  // namespace
}  // namespace rubato::sched
