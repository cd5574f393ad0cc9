// Certificates: no plan is worth more than the bound, whatever the prices are; and the plans of
// `rubato` are close to it.
#include "scheduler/certificate/certificate.h"

#include "scheduler/model/sizes.h"
#include "scheduler/policy/registry.h"
#include "tests/unit/scheduler/small_clusters.h"

#include <algorithm>
#include <map>
#include <random>

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

const Policy& rubato_policy() {
  static const auto kPolicy = make_policy("rubato", {});
  return **kPolicy;
}

ValueTable values_of(const Problem& problem) { return rubato_policy().values(problem).value(); }

Certificate certified(const ClusterState& state) {
  return certify(state, {.policy = "rubato"}, make_plan(state, {.policy = "rubato"})).value();
}

class Drawn {
 public:
  explicit Drawn(std::uint64_t seed) : random_(seed) {}

  ClusterState state() {
    std::vector<Node> nodes;
    for (int n = 0; n < number(1, 3); ++n) {
      const Gpus total = number(1, 4);
      nodes.push_back(node("n" + std::to_string(n), total, total, number(0, 1) == 0 ? "A" : "B"));
    }
    std::vector<Job> jobs;
    for (int j = 0; j < number(1, 5); ++j) jobs.push_back(drawn_job(j));
    ClusterState state = cluster(std::move(nodes), std::move(jobs));
    for (const char* name : {"q0", "q1"}) state.queues[name] = drawn_queue(name);
    if (number(0, 1) == 0) {
      state.queues["whole"] = drawn_queue("whole");
      state.queues["whole"].borrowing = true;
      state.queues["q0"].parent = "whole";
      state.queues["q1"].parent = number(0, 1) == 0 ? "whole" : "q0";
    }
    for (Job& job : state.jobs)
      if (number(0, 2) == 0) hold(state, job);
    return state;
  }

  // Jobs that run hold a GPU of another type, too, where one is free, as if they had mixed types.
  // Returns whether one does.
  bool mix_held(ClusterState& state) {
    bool does_any = false;
    for (Job& job : state.jobs) {
      const auto is_other = [&](const Node& node) {
        return !job.held.empty() && node.free.gpus > 0 && node.gpu_type != job.held[0].gpu_type;
      };
      const auto node = std::ranges::find_if(state.nodes, is_other);
      if (node == state.nodes.end()) continue;
      job.held.push_back({.ordinal = std::ssize(job.held),
                          .node = node->id,
                          .gpu_type = node->gpu_type,
                          .gpus = 1});
      node->free -= job.per_pod;
      does_any = true;
    }
    return does_any;
  }

  std::int64_t number(std::int64_t from, std::int64_t to) {
    return std::uniform_int_distribution<std::int64_t>(from, to)(random_);
  }

 private:
  Job drawn_job(int number_of) {
    const Gpus min = number(1, 3);
    Job job = sched::job("j" + std::to_string(number_of), min, min + number(0, 4));
    if (number(0, 3) > 0) job.remaining_ms = number(1, 5000) * 1000;
    for (const char* type : {"A", "B"})
      for (Gpus n = 1; n <= 6; ++n)
        if (number(0, 3) == 0)
          job.measured.push_back({type, n, static_cast<double>(number(50, 900))});
    if (number(0, 5) == 0) job.shape = Shape::kPowersOfTwo;
    if (number(0, 5) == 0) job.allow = {"A"};
    if (number(0, 1) == 0) job.queue = number(0, 1) == 0 ? "q0" : "q1";
    return job;
  }

  Queue drawn_queue(const std::string& name) {
    Queue queue{.name = name, .borrowing = number(0, 3) > 0};
    for (const char* of : {"*", "A", "B"}) {
      if (number(0, 2) > 0) continue;
      queue.quotas[of].guaranteed = number(0, 3);
      if (number(0, 1) == 0) queue.quotas[of].limit = queue.quotas[of].guaranteed + number(0, 3);
    }
    return queue;
  }

  void hold(ClusterState& state, Job& job) {
    Node& node = state.nodes[static_cast<std::size_t>(number(0, std::ssize(state.nodes) - 1))];
    if (node.free.gpus < job.min || !may_use(job, node)) return;
    job.started = true;
    job.allocated_ms = 0;
    job.attained_gpu_ms = number(0, 1000) * 1000;
    for (Gpus i = 0; i < job.min; ++i)
      job.held.push_back({.ordinal = i, .node = node.id, .gpu_type = node.gpu_type, .gpus = 1});
    node.free -= {job.min, 100 * job.min, job.min << 20};
  }

  std::mt19937_64 random_;
};

// All ways to share the GPUs out, one after the other: what the best is worth that keeps to what
// queues may have.
class BestOfAll {
 public:
  BestOfAll(const Problem& problem, const ValueTable& values)
      : problem_(problem), values_(values), left_(problem.count_types(), 0) {
    for (const Node& node : problem.state().nodes)
      left_[problem.type_named(node.gpu_type).value] += node.gpus_total;
    for (const Job& job : problem.state().jobs)
      for (const Held& held : job.held)
        for (const std::string& queue : levels_of(job.queue))
          for (const std::string& of : {held.gpu_type, std::string("*")}) held_[{queue, of}] += 1;
  }

  std::int64_t from(std::uint32_t j) {
    if (j == problem_.state().jobs.size()) return 0;
    const std::string& queue = problem_.state().jobs[j].queue;
    std::int64_t best = from(j + 1);
    for (const auto& one : values_[JobIndex{j}].types)
      for (const auto& [gpus, value] : values_[JobIndex{j}].of(one)) {
        if (left_[one.type.value] < gpus) continue;
        const Gpus own = effective_gpus(problem_.state().jobs[j]);
        const auto has_leave = [&](const std::string& level, const std::string& of) {
          return gpus <= std::max(own, most_of(level, of));
        };
        const std::string& type = problem_.name(one.type);
        const std::vector<std::string> levels = levels_of(queue);
        const bool may = std::ranges::all_of(levels, [&](const std::string& level) {
          return has_leave(level, type) && has_leave(level, "*");
        });
        if (!may) continue;
        take(levels, one.type, gpus);
        const bool fits = std::ranges::all_of(levels, [&](const std::string& level) {
          return is_allowed(level, type) && is_allowed(level, "*");
        });
        if (fits) best = std::max(best, value + from(j + 1));
        take(levels, one.type, -gpus);
      }
    return best;
  }

 private:
  void take(const std::vector<std::string>& levels, TypeIndex type, Gpus gpus) {
    left_[type.value] -= gpus;
    for (const std::string& queue : levels)
      for (const std::string& of : {problem_.name(type), std::string("*")})
        used_[{queue, of}] += gpus;
  }

  std::vector<std::string> levels_of(std::string queue) const {
    std::vector<std::string> levels;
    for (; !queue.empty(); queue = problem_.state().queues.at(queue).parent)
      levels.push_back(queue);
    return levels;
  }

  bool is_allowed(const std::string& name, const std::string& of) {
    return used_[{name, of}] <= std::max(most_of(name, of), held_[{name, of}]);
  }

  Gpus most_of(const std::string& name, const std::string& of) const {
    const Queue& queue = problem_.state().queues.at(name);
    Gpus most = 1000;
    const auto quota = queue.quotas.find(of);
    if (quota != queue.quotas.end() && quota->second.limit) most = *quota->second.limit;
    if (!queue.borrowing) {
      const bool is_said = quota != queue.quotas.end() || of_parts(name, of) > 0;
      const bool says_nothing = of == "*" || queue.quotas.count("*") > 0 || of_parts(name, "*") > 0;
      const Gpus own = quota != queue.quotas.end() ? quota->second.guaranteed : 0;
      const Gpus guaranteed = is_said ? std::max(own, of_parts(name, of)) : says_nothing ? 1000 : 0;
      most = std::min(most, guaranteed);
    }
    return most;
  }

  // What q1 is guaranteed, where it is a part of q0.
  Gpus of_parts(const std::string& name, const std::string& of) const {
    const Queue& part = problem_.state().queues.at("q1");
    const auto quota = part.quotas.find(of);
    return part.parent != name || quota == part.quotas.end() ? 0 : quota->second.guaranteed;
  }

  const Problem& problem_;
  const ValueTable& values_;
  std::vector<Gpus> left_;
  std::map<std::pair<std::string, std::string>, Gpus> held_, used_;
};

std::int64_t best_value_of_all(const Problem& problem, const ValueTable& values) {
  return BestOfAll(problem, values).from(0);
}

TEST(Certificate, NoPlanIsWorthMoreThanTheBoundAtAnyPrices) {
  double sum = 0;
  constexpr int kInstances = 400;
  for (std::uint64_t seed = 1; seed <= kInstances; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Drawn drawn(seed);
    const ClusterState state = drawn.state();
    const Problem problem(state);
    const ValueTable values = values_of(problem);
    const Plan plan = make_plan(state, {.policy = "rubato"});
    const Certificate certificate = certify(problem, values, plan);
    const std::int64_t best = best_value_of_all(problem, values);
    EXPECT_LE(certificate.value, best);
    EXPECT_LE(best, certificate.bound);
    EXPECT_EQ(check(problem, values, plan, certificate.prices), certificate);
    for (int i = 0; i < 5; ++i) {
      const Prices prices = {
          .types = {{"A", drawn.number(0, 2 * kValueOne)}, {"B", drawn.number(0, kValueOne)}},
          .limits = {{"q0", {{"*", drawn.number(0, kValueOne)}}},
                     {"q1", {{"A", drawn.number(0, kValueOne)}, {"B", 1}}}}};
      const Certificate other = check(problem, values, plan, prices);
      EXPECT_LE(best, other.bound);
      EXPECT_EQ(certificate.value, other.value);
    }
    if (best > 0) sum += static_cast<double>(certificate.bound - best) / static_cast<double>(best);
  }
  EXPECT_LT(sum / kInstances, 0.25) << "of so few GPUs one job more or less is a large part";
}

// What jobs have at their minimums, by the plan's actions; here minimums are the least that is
// listed, and no job mixes types.
std::int64_t at_minimums(const Problem& problem, const ValueTable& values, const Plan& plan) {
  std::int64_t sum = 0;
  for (JobIndex j; j < problem.end_of_jobs(); ++j) {
    const Job& job = problem.job(j);
    Gpus gpus = effective_gpus(job);
    std::string type = gpus > 0 ? job.held[0].gpu_type : "";
    for (const Action& action : plan.actions) {
      if (action.job != job.id) continue;
      gpus += std::ssize(action.add) - std::ssize(action.remove);
      if (!action.add.empty()) type = action.add[0].gpu_type;
    }
    for (const auto& one : values[j].types) {
      if (gpus == 0 || problem.name(one.type) != type) continue;
      std::int64_t at_minimum = 0, now = 0;
      for (const SizeValue& size : values[j].of(one)) {
        if (size.gpus == job.min) at_minimum = size.value;
        if (size.gpus == gpus) now = size.value;
      }
      sum += std::clamp<std::int64_t>(at_minimum, 0, std::max<std::int64_t>(now, 0));
    }
  }
  return sum;
}

// No plan has more beyond what this one has at its minimums, whatever the prices are.
TEST(Certificate, AboveTheMinimumsNoPlanIsWorthMoreEither) {
  int with_growth = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Drawn drawn(seed);
    ClusterState state = drawn.state();
    for (Job& job : state.jobs) job.shape = Shape::kAny;
    const Problem problem(state);
    const ValueTable values = values_of(problem);
    const Plan plan = make_plan(state, {.policy = "rubato"});
    const std::int64_t best = best_value_of_all(problem, values);
    const Prices any = {
        .types = {{"A", drawn.number(0, 2 * kValueOne)}, {"B", drawn.number(0, kValueOne)}}};
    for (const Certificate& one :
         {certify(problem, values, plan), check(problem, values, plan, any)}) {
      EXPECT_EQ(one.minimums, at_minimums(problem, values, plan));
      EXPECT_LE(0, one.minimums);
      EXPECT_LE(one.minimums, one.value);
      EXPECT_LE(best - one.minimums, one.bound - one.minimums);
      EXPECT_LE(one.gap(), one.gap_above_minimums());
      EXPECT_LE(one.gap_above_minimums(), 1);
      if (one.minimums < one.value) ++with_growth;
    }
  }
  EXPECT_GT(with_growth, 50);
}

// Half of the value is there at the minimums: so of what is above them all is missed.
TEST(Certificate, OfJobsThatStayAtTheirMinimumsTheGapAboveThemIsWhole) {
  Job holds = running("a", 1, 2, {"n1"});
  holds.measured = {{"A", 1, 100}, {"A", 2, 190}};
  const ClusterState state = cluster({node("n1", 2, 1)}, {holds});
  const Certificate stays = certify(state, {.policy = "rubato"}, Plan{}).value();
  EXPECT_GT(stays.value, 0);
  EXPECT_EQ(stays.minimums, stays.value);
  EXPECT_GT(stays.gap(), 0);
  EXPECT_LT(stays.gap(), 0.6);
  EXPECT_EQ(stays.gap_above_minimums(), 1);
  const Certificate grows = certified(state);
  EXPECT_EQ(grows.minimums, stays.minimums);
  EXPECT_EQ(grows.gap_above_minimums(), 0);
}

// `mix` was taken from a job that runs: what it holds may be worth more than all GPUs of one type.
TEST(Certificate, OfAJobThatHoldsTwoTypesAllItsGpusCount) {
  std::vector<NodeId> nodes(8, "n1");
  std::fill(nodes.begin() + 4, nodes.end(), "n2");
  Job two_types = running("a", 8, 8, nodes);
  for (Held& held : two_types.held) held.gpu_type = held.node == "n1" ? "A" : "B";
  const ClusterState state = cluster({node("n1", 4, 0), node("n2", 4, 0, "B")}, {two_types});
  const Certificate alone = certify(state, {.policy = "rubato"}, Plan{}).value();
  EXPECT_GT(alone.value, 0);
  EXPECT_LE(alone.value, alone.bound);

  int drawn_with_two = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Drawn drawn(seed);
    ClusterState one = drawn.state();
    drawn_with_two += drawn.mix_held(one) ? 1 : 0;
    const Problem problem(one);
    const ValueTable values = values_of(problem);
    const Plan plan = make_plan(one, {.policy = "rubato"});
    const Certificate certificate = certify(problem, values, plan);
    EXPECT_LE(certificate.value, certificate.bound);
    const Prices any = {
        .types = {{"A", drawn.number(0, 2 * kValueOne)}, {"B", drawn.number(0, kValueOne)}},
        .limits = {{"q0", {{"*", drawn.number(0, kValueOne)}}}}};
    const Certificate other = check(problem, values, plan, any);
    EXPECT_LE(other.value, other.bound);
  }
  EXPECT_GT(drawn_with_two, 20);
}

// What the search finds is the best price, not just one.
TEST(Certificate, OfJobsThatScaleAlikeTheGapIsNought) {
  std::vector<Job> jobs;
  for (int i = 0; i < 20; ++i) jobs.push_back(job("j" + std::to_string(10 + i), 1, 1));
  const Certificate crowded = certified(cluster({node("n1", 8, 8)}, jobs));
  EXPECT_GT(crowded.value, 0);
  EXPECT_LT(crowded.gap(), 1e-6);
  EXPECT_EQ(crowded.prices.types.count("A"), 1u);
  const Certificate roomy = certified(cluster({node("n1", 64, 64)}, jobs));
  EXPECT_EQ(roomy.value, roomy.bound);
  EXPECT_TRUE(roomy.prices.types.empty());
}

TEST(Certificate, OfAnEmptyPlanTheGapIsWhole) {
  const ClusterState state = cluster({node("n1", 8, 8)}, {job("a", 1, 8)});
  const Certificate none = certify(state, {.policy = "rubato"}, Plan{}).value();
  EXPECT_EQ(none.value, 0);
  EXPECT_EQ(none.gap(), 1);
  const ClusterState empty = cluster({}, {});
  EXPECT_EQ(certified(empty).gap(), 0);
}

TEST(Certificate, WhatAChangeCostsIsPaid) {
  Job holds = running("a", 1, 4, {"n1"});
  holds.measured = {{"A", 1, 100}, {"A", 2, 200}, {"A", 4, 400}};
  holds.remaining_ms = 20'000;  // newcomers prepare for longer
  const ClusterState state = cluster({node("n1", 4, 3)}, {holds});
  const ValueTable values = values_of(Problem(state));
  const JobValues& own = values[JobIndex{0}];
  const JobValues::List& list = own.of(own.types.at(0));
  EXPECT_EQ(list.at(0).gpus, 1);
  EXPECT_EQ(list.at(0).value, list.at(3).value);
  EXPECT_TRUE(make_plan(state, {.policy = "rubato"}).actions.empty());
}

TEST(Certificate, AFasterTypeIsTakenAndCounts) {
  Job one = job("a", 2, 2);
  one.measured = {{"A", 2, 100}, {"B", 2, 300}};
  const ClusterState state = cluster({node("a1", 8, 8, "A"), node("b1", 2, 2, "B")}, {one});
  const Plan plan = make_plan(state, {.policy = "rubato"});
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(plan.actions[0].add.at(0).gpu_type, "B");
  EXPECT_EQ(certified(state).gap(), 0);
}

TEST(Certificate, NoJobIsThoughtToHaveMoreThanItsQueueAllows) {
  ClusterState state = cluster({node("n1", 8, 8)}, {job("a", 1, 8)});
  state.queues["default"].quotas["*"].limit = 2;
  EXPECT_EQ(certified(state).gap(), 0);
  // What it holds since before the limit counts.
  state.jobs = {running("a", 4, 8, {"n1", "n1", "n1", "n1"})};
  state.nodes = {node("n1", 8, 4)};
  EXPECT_EQ(certified(state).gap(), 0);
}

// Two queues that may have half of the cluster each: without prices of limits, as if one could have
// all.
TEST(Certificate, LimitsOfQueuesCountForTheirJobsTogether) {
  std::vector<Job> jobs;
  for (int i = 0; i < 8; ++i) {
    jobs.push_back(job("a" + std::to_string(i), 1, 1));
    jobs.back().queue = "a";
    jobs.back().weight = 100;
    jobs.push_back(job("b" + std::to_string(i), 1, 1));
    jobs.back().queue = "b";
  }
  ClusterState state = cluster({node("n1", 8, 8)}, jobs);
  state.queues["a"] = {.name = "a"};
  state.queues["a"].quotas["*"].limit = 3;
  state.queues["b"] = {.name = "b", .borrowing = false};
  state.queues["b"].quotas["A"].guaranteed = 4;
  const Certificate certificate = certified(state);
  EXPECT_LT(certificate.gap(), 1e-6);
  EXPECT_EQ(certificate.prices.limits.count("a"), 1u);
  EXPECT_EQ(certificate.prices.limits.count("b"), 1u);
  const Problem problem(state);
  const Plan plan = make_plan(state, {.policy = "rubato"});
  const ValueTable values = values_of(problem);
  EXPECT_GT(check(problem, values, plan, {.types = certificate.prices.types}).gap(), 0.4);
}

// Prices below nothing and above all, and of types that are not there: still a bound.
TEST(Certificate, StrangePricesProveWhatTheyCan) {
  const ClusterState state = cluster({node("n1", 2, 2)}, {job("a", 1, 2), job("b", 1, 2)});
  const Problem problem(state);
  const ValueTable values = values_of(problem);
  const Plan plan = make_plan(state, {.policy = "rubato"});
  const std::int64_t best = best_value_of_all(problem, values);
  for (const std::int64_t price :
       {std::int64_t{-5}, std::int64_t{0}, kValueMost, std::numeric_limits<std::int64_t>::max()})
    EXPECT_GE(
        check(problem, values, plan,
              {.types = {{"A", price}, {"Z", price}},
               .limits = {{"default", {{"A", price}, {"Z", price}}}, {"none", {{"*", price}}}}})
            .bound,
        best)
        << price;
}

}  // namespace
}  // namespace rubato::sched
