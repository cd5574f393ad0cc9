// Liquid: the pods of a job that starts are near to each other.
#include "scheduler/snapshot/snapshot.h"
#include "tests/unit/scheduler/policy_cases.h"

#include <optional>
#include <set>

namespace rubato::sched {
namespace {

// The node of each pod that a plan adds, by job.
using Places = std::map<JobId, std::vector<NodeId>>;

Places places_after(const ClusterState& state, const std::string& policy,
                    const Parameters& parameters = {}) {
  Places places;
  for (const Action& action :
       make_plan(state, {.policy = policy, .parameters = parameters}).actions)
    for (const Placement& add : action.add) places[action.job].push_back(add.node);
  for (auto& [job, nodes] : places) std::ranges::sort(nodes);
  return places;
}

Node in_rack(const std::string& id, Gpus free, const std::string& rack,
             const std::string& zone = "z") {
  Node n = node(id, 4, free);
  n.domains = {{"zone", zone}, {"rack", rack}};
  return n;
}

// The fullest nodes are in two racks, and one of the racks has room for all.
ClusterState two_racks() {
  ClusterState state = cluster(
      {in_rack("a0", 1, "a"), in_rack("a1", 3, "a"), in_rack("b0", 2, "b"), in_rack("b1", 0, "b")},
      {job("spans", 4, 4)});
  state.levels = {"zone", "rack"};
  return state;
}

TEST(Liquid, PlacesAJobWithinARack) {
  const ClusterState state = two_racks();
  const Places near{{"spans", {"a0", "a1", "a1", "a1"}}};
  const Places fullest{{"spans", {"a0", "a1", "b0", "b0"}}};
  EXPECT_EQ(places_after(state, "liquid"), near);
  // Its search off it does as all simpler policies.
  EXPECT_EQ(places_after(state, "liquid", {{"generations", 0}}), fullest);
  for (const char* simpler :
       {"fifo", "fifoBackfill", "sjf", "srtf", "srsf", "las", "tiresias", "marginalThroughput"})
    EXPECT_EQ(places_after(state, simpler), fullest) << simpler;
}

// Of two that cannot both be within a rack it is the one with more traffic.
TEST(Liquid, TrafficSaysWhoIsNear) {
  ClusterState state = cluster(
      {in_rack("a0", 2, "a"), in_rack("a1", 2, "a"), in_rack("b0", 2, "b"), in_rack("c0", 2, "c")},
      {job("one", 4, 4), job("other", 4, 4)});
  state.levels = {"zone", "rack"};
  const std::vector<NodeId> near{"a0", "a0", "a1", "a1"};
  state.jobs[0].traffic = 1e9;
  state.jobs[1].traffic = 8e9;
  EXPECT_EQ(places_after(state, "liquid").at("other"), near);
  std::swap(state.jobs[0].traffic, state.jobs[1].traffic);
  EXPECT_EQ(places_after(state, "liquid").at("one"), near);
}

TEST(Liquid, MovesAndGrowsNobody) {
  ClusterState state = two_racks();
  state.jobs[0] = running("spans", 2, 8, {"a0", "b0"});
  EXPECT_EQ(places_after(state, "liquid"), Places{});
}

TEST(Liquid, EqualSeedsGiveEqualPlans) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const ClusterState state = drawn(seed);
    for (const double of_search : {0.0, 7.0})
      EXPECT_EQ(places_after(state, "liquid", {{"seed", of_search}}),
                places_after(state, "liquid", {{"seed", of_search}}));
  }
}

TEST(Liquid, SnapshotsSayTraffic) {
  Snapshot snapshot{.state = two_racks(), .policy = {.policy = "liquid"}};
  EXPECT_EQ(to_text(snapshot).find("traffic"), std::string::npos);
  snapshot.state.jobs[0].traffic = 1.5e9;
  const auto read = read_snapshot(to_text(snapshot));
  ASSERT_TRUE(read.ok()) << read.error().what();
  EXPECT_EQ(read->state, snapshot.state);
}

// The reference: all maps of the jobs to nodes, and their costs pod by pod.
class Exhaustive {
 public:
  explicit Exhaustive(const ClusterState& state) : state_(state) {
    for (const Job& job : state.jobs)
      if (job.traffic > 0) {
        known_bytes_ += job.traffic;
        known_gpus_ += static_cast<double>(job.min);
      }
  }

  double cost(const Places& places) const {
    double sum = 0;
    std::map<NodeId, Gpus> taken;
    for (const Job& job : state_.jobs) {
      const std::vector<NodeId>& nodes = places.at(job.id);
      double apart = 0;
      int pairs = 0;
      for (std::size_t a = 0; a < nodes.size(); ++a)
        for (std::size_t b = 0; b < a; ++b, ++pairs) apart += distance(nodes[a], nodes[b]);
      if (pairs > 0) sum += traffic(job) * apart / pairs;
      sum += static_cast<double>(std::set<NodeId>(nodes.begin(), nodes.end()).size()) /
             static_cast<double>(nodes.size());
      for (const NodeId& id : nodes) ++taken[id];
    }
    for (const auto& [id, pods] : taken)
      sum += 0.01 * static_cast<double>(at(id).free.gpus - pods) /
             static_cast<double>(at(id).gpus_total);
    return sum;
  }

  // None: they do not all fit.
  std::optional<double> least() {
    place(0, 0);
    return best_;
  }

 private:
  const Node& at(const NodeId& id) const { return *std::ranges::find(state_.nodes, id, &Node::id); }
  double traffic(const Job& job) const {
    return job.traffic > 0 ? job.traffic / (known_bytes_ / known_gpus_)
                           : static_cast<double>(job.min);
  }
  double distance(const NodeId& a, const NodeId& b) const {
    if (a == b) return 0;
    if (at(a).domains.at("zone") != at(b).domains.at("zone")) return 40;
    return at(a).domains.at("rack") != at(b).domains.at("rack") ? 4 : 1;
  }
  bool may_be(const Job& job, const std::vector<NodeId>& nodes, const NodeId& next) const {
    if (nodes.empty()) return true;
    if (job.one_node) return nodes[0] == next;
    return !job.topology || distance(nodes[0], next) < 4;
  }

  // The pods of job `j` go to node `n` and those after it.
  void place(std::size_t j, std::size_t n) {
    if (j == state_.jobs.size()) {
      const double now = cost(places_);
      if (!best_ || now < *best_) best_ = now;
      return;
    }
    const Job& job = state_.jobs[j];
    std::vector<NodeId>& nodes = places_[job.id];
    if (std::ssize(nodes) == job.min) return place(j + 1, 0);
    if (n == state_.nodes.size()) return;
    place(j, n + 1);
    const NodeId& id = state_.nodes[n].id;
    if (taken_[id] == state_.nodes[n].free.gpus || !may_be(job, nodes, id)) return;
    nodes.push_back(id);
    ++taken_[id];
    place(j, n);
    --taken_[id];
    places_[job.id].pop_back();
  }

  const ClusterState& state_;
  double known_bytes_ = 0, known_gpus_ = 0;
  Places places_;
  std::map<NodeId, Gpus> taken_;
  std::optional<double> best_;
};

ClusterState drawn_racks(std::uint64_t seed) {
  Rng rng(seed);
  ClusterState state = cluster({}, {});
  state.levels = {"zone", "rack"};
  for (std::uint64_t i = 0, count = 3 + rng.below(3); i < count; ++i)
    state.nodes.push_back(in_rack("n" + std::to_string(i), static_cast<Gpus>(rng.below(5)),
                                  std::to_string(rng.below(2)), rng.chance(0.7) ? "y" : "z"));
  const std::uint64_t jobs = 1 + rng.below(3);
  for (std::uint64_t i = 0; i < jobs; ++i) {
    const Gpus gpus = 1 + static_cast<Gpus>(rng.below(jobs == 3 ? 2 : 4));
    state.jobs.push_back(job("j" + std::to_string(i), gpus, gpus));
    if (rng.chance(0.5)) state.jobs[i].traffic = 1e9 * (1 + static_cast<double>(rng.below(9)));
    if (rng.chance(0.15)) state.jobs[i].one_node = true;
    if (rng.chance(0.15)) state.jobs[i].topology = Topology{"rack", true};
  }
  return state;
}

TEST(Liquid, IsTheBestOfAllMapsOnSmallClusters) {
  int compared = 0, best = 0, better = 0;
  for (std::uint64_t seed = 1; seed <= 2 * kDrawnStates; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ClusterState state = drawn_racks(seed);
    const Places fullest = places_after(state, "liquid", {{"generations", 0}});
    const Places found = places_after(state, "liquid");
    if (found.size() < state.jobs.size()) continue;  // best fit has not found room for all
    Exhaustive reference(state);
    const auto least = reference.least();
    ASSERT_TRUE(least.has_value());
    const double cost = reference.cost(found);
    EXPECT_GE(cost, *least - 1e-9);
    ++compared;
    if (cost <= *least + 1e-9) ++best;
    if (fullest.size() < state.jobs.size()) continue;
    EXPECT_LE(cost, reference.cost(fullest) + 1e-9);
    if (cost < reference.cost(fullest) - 1e-9) ++better;
  }
  EXPECT_GE(compared, 200);
  EXPECT_GE(best, compared * 99 / 100);
  EXPECT_GE(better, compared / 10);
}

}  // namespace
}  // namespace rubato::sched
