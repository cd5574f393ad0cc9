// The policy `elasticFlow`.
#include "tests/unit/scheduler/policy_cases.h"

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
Job scaling(Job j) {
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
      cluster({node("n1", 4, 0)}, {scaling(running("rest", 1, 4, {"n1", "n1", "n1", "n1"})),
                                   scaling(due(job("due", 1, 8), 1'000'000, 260'000))});
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
      cluster({node("n1", 5, 5)}, {job("flat", 1, 4), scaling(job("steep", 1, 4))});
  for (Job& j : state.jobs) j.remaining_ms = 9'000'000;
  state.jobs[0].measured = {{"A", 1, 1}, {"A", 2, 1.1}, {"A", 4, 1.2}};
  EXPECT_EQ(sizes_after(state, "elasticFlow"), (Sizes{{"flat", 1}, {"steep", 4}}));
}

// The rule written plainly, for nodes of one type without quotas, and nothing measured. Plans are
// filled from their deadline backwards.
class Reference {
 public:
  explicit Reference(const ClusterState& state) : state_(state), own_(state.jobs.size()) {
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
  using Plan = std::vector<Gpus>;
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
  double done(std::size_t i, const Plan& plan) const {
    double sum = 0;
    for (std::size_t t = 0; t < slots_; ++t) {
      const TimeMs lasts = *jobs()[i].deadline_ms - now() - static_cast<TimeMs>(t) * kSlot;
      sum += pace(i, plan[t]) * static_cast<double>(std::clamp<TimeMs>(lasts, 0, kSlot));
    }
    return sum;
  }
  Gpus within(std::size_t i, Gpus most) const {
    Gpus found = 0;
    for (const Gpus n : own_[i].sizes)
      if (n <= most) found = n;
    return found;
  }
  // The first slot is as it is, if that is said.
  std::optional<Plan> least_plan(std::size_t i, const Plan& free, std::optional<Gpus> now) const {
    const auto needed = static_cast<double>(*jobs()[i].remaining_ms);
    Plan plan(slots_, 0);
    plan[0] = now.value_or(0);
    if (done(i, plan) >= needed) return plan;
    for (const Gpus size : own_[i].sizes) {
      for (std::size_t t = slots_; t-- > (now ? 1U : 0U);) {
        plan[t] = within(i, std::min(size, free[t]));
        if (done(i, plan) >= needed) return plan;
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
      for (std::size_t t = 0; t < slots_; ++t) free[t] -= (*plan)[t];
      plans[i] = *plan;
    }
    for (auto& [i, plan] : plans) own_[i].plan = plan;
    free_ = free;
    return true;
  }
  void expect_in_time() const {
    for (const std::size_t i : admitted_)
      EXPECT_GE(done(i, own_[i].plan), static_cast<double>(*jobs()[i].remaining_ms));
  }
  std::optional<Plan> with(std::size_t i, Gpus gpus) const {
    Plan free = free_;
    for (std::size_t t = 0; t < slots_; ++t) free[t] += own_[i].plan[t];
    return least_plan(i, free, gpus);
  }
  double later(std::size_t i, Gpus gpus) const {
    if (is_admitted(i)) {
      const Plan plan = gpus == own_[i].now ? own_[i].plan : *with(i, gpus);
      return static_cast<double>(std::accumulate(plan.begin() + 1, plan.end(), Gpus{0}) * kSlot);
    }
    const double all = static_cast<double>(jobs()[i].remaining_ms.value_or(1'000'000'000'000'000));
    return static_cast<double>(jobs()[i].min) *
           std::max(all - pace(i, gpus) * static_cast<double>(kSlot), 0.0);
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
      if (next != own_[i].sizes.end())
        saved[i] =
            (later(i, own_[i].now) - later(i, *next)) / static_cast<double>(*next - own_[i].now);
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
      Plan plan = *with(i, to);
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
    const Reference reference(state);
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
