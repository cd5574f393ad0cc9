#include "scheduler/snapshot/snapshot.h"

#include "common/rng.h"
#include "scheduler/policy/registry.h"
#include "tests/unit/scheduler/small_clusters.h"

#include <cmath>

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

// Every field has a value of its own, none its default.
Snapshot full() {
  Snapshot snapshot;
  snapshot.policy = {.preempt = false,
                     .min_relative_gain = 0.1,
                     .grown_per_round = 7,
                     .max_load = 1.5,
                     .queue_weights = true};
  Node first = node("n1", 8, 3, "H100");
  first.free = {3, -5, 1 << 20, {1, 0, 9}};
  Node second = node("n2", 4, 0, "A\"\\\n\u00e9");
  second.schedulable = false;
  second.leaving = true;
  second.why_not = "maintenance";
  snapshot.state.levels = {"zone", "rack"};
  first.domains = {{"zone", "a"}, {"rack", "a \"7\""}};
  snapshot.state.nodes = {second, first};
  Job a = job("uid-a", 2, 16);
  a.name = "team/a";
  a.queue = "q";
  a.priority = -3;
  a.weight = 0.1;
  a.deadline_ms = 12'345;
  a.queued_at = 1.7e9 + 1.0 / 3.0;
  a.shape = Shape::kPowersOfTwo;
  a.per_pod = {2, 500, 1 << 30, {1, 2, 3, 4, 5, 6, 7, std::int64_t{1} << 50}};
  a.allow = {"H100", "A100"};
  a.mix = a.one_node = a.started = a.cooling = true;
  a.settled = a.may_preempt = a.preemptible = false;
  a.min_run_ms = 60'000;
  a.running_since_ms = 7;
  a.eligible = std::set<NodeId>{"n1", "n2"};
  a.avoid = {"n2", "gone"};
  a.narrowed = "volume v";
  a.not_admitted = "not here";
  a.spare_only = "its start failed";
  a.measured = {{"H100", 2, 1e5 / 7}, {"A100", 4, 5e-324}};
  a.goodput = {{"H100", 8, 2, 1.0 / 3.0}, {"A100", 1, 0, 2.5}};
  a.stall_ms = 0;
  a.start_ms = 1'500;
  a.join_ms = 0;
  a.restarts = 3;
  a.held = {{0, "n1", "H100", 2, false, false, false, false, "rack"},
            {1, "gone", "H100", 2, false, true, true, false},
            {2, "n1", "H100", 2, true, true, false, true},
            {-1, "also gone", "", 2, true, false, false, false},
            {-1, "n1", "", 2, true, false, false, false}};
  a.topology = Topology{"zone", true};
  a.traffic = 1.5e9;
  a.dataset = Dataset{"images \"1\"", 5, 7};
  snapshot.state.storage = Storage{3, 4};
  snapshot.policy.storage_shares = snapshot.policy.cpu_memory_shares = true;
  a.sensitivity = {{{5, 6}, 0.25}, {{7, 8}, 1}};
  snapshot.state.nodes[0].total = CpuMemory{9, 10};
  Job b = job("uid-b", 5, 3);
  b.topology = Topology{"rack", false};
  b.eligible = a.eligible;
  b.refused = "max is below min";
  b.refused_as = "BadSizes";
  Job c = job("uid-c", 1, 1);
  c.eligible = std::set<NodeId>{};
  snapshot.state.jobs = {b, a, c};
  Queue& q = snapshot.state.queues["q"];
  q.name = "q";
  q.parent = "default";
  q.weight = 2.5;
  q.borrowing = false;
  q.closed = true;
  q.preempts = Preempts::kOwnQueue;
  q.quotas = {{"*", {4, 9}}, {"H100", {1, std::nullopt}}};
  q.cells = {{"H100", "rack", 2}, {"H100", "node", 1}};
  q.created = 1.5;
  q.held_by_leavers = {{"H100", 3}};
  snapshot.state.queues["default"] = {.name = "default"};
  return snapshot;
}

TEST(Snapshot, ComesBackEqualAndInEqualBytes) {
  const Snapshot written = full();
  const std::string text = to_text(written);
  const auto read = read_snapshot(text);
  ASSERT_TRUE(read.ok()) << read.error().what();
  EXPECT_TRUE(*read == written);
  EXPECT_EQ(to_text(*read), text);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  // The set that two jobs share is there once.
  EXPECT_NE(text.find(R"("nodeSets":[["n1","n2"]])"), std::string::npos) << text;
}

TEST(Snapshot, AnyDoubleComesBackTheSame) {
  Rng rng(7);
  for (int i = 0; i < 2000; ++i) {
    Snapshot snapshot;
    Job j = job("a", 1, 1);
    j.queued_at = (rng.unit() - 0.5) * std::pow(10, static_cast<double>(rng.below(14)));
    j.weight = rng.unit() * std::pow(2, -static_cast<double>(rng.below(300)));
    snapshot.state.jobs = {j};
    const auto read = read_snapshot(to_text(snapshot));
    ASSERT_TRUE(read.ok()) << read.error().what();
    ASSERT_TRUE(*read == snapshot) << to_text(snapshot);
  }
  Snapshot minus;
  minus.policy.min_relative_gain = -0.0;
  Snapshot plus;
  plus.policy.min_relative_gain = 0.0;
  EXPECT_EQ(to_text(minus), to_text(plus));
}

TEST(Snapshot, TheLeastThatIsNeeded) {
  const auto read = read_snapshot(R"({"version":1,"nodes":[],"jobs":[]})");
  ASSERT_TRUE(read.ok()) << read.error().what();
  EXPECT_TRUE(*read == Snapshot{.policy = {.policy = kDefaultPolicy}});
  for (const char* policy : {"{}", R"({"name":"rubato"})"}) {
    const std::string said = policy;
    EXPECT_TRUE(*read_snapshot(R"({"version":1,"policy":)" + said + R"(,"nodes":[],"jobs":[]})") ==
                *read)
        << said;
  }
  const auto one = read_snapshot(
      R"({"version":1,"nodes":[{"id":"n","gpuType":"A","gpus":2,"free":{"gpus":2}}],
          "queues":[{"name":"q"}],
          "jobs":[{"id":"j","queue":"q","gpus":{"min":1,"max":2},"perPod":{"gpus":1}}]})");
  ASSERT_TRUE(one.ok()) << one.error().what();
  const Plan plan = make_plan(one->state, one->policy);
  ASSERT_EQ(plan.actions.size(), 1u);
  EXPECT_EQ(to_text(plan, one->state),
            R"({"version":1,"actions":[{"kind":"start","job":"j",)"
            R"("add":[{"node":"n","gpuType":"A","gpus":1},{"node":"n","gpuType":"A","gpus":1}],)"
            R"("remove":[],"reason":"there is room for it"}],)"
            R"("verdicts":[{"job":"j","outcome":"placed","reason":"Placed","message":""}]})");
}

// ---- what is wrong: a small snapshot with one value put in its place

struct Wrong {
  const char* where;  // JSON pointer
  const char* value;  // JSON; "": the member is taken away
  const char* error;
};

// NOLINTNEXTLINE(readability-identifier-naming): the name that gtest looks for.
void PrintTo(const Wrong& wrong, std::ostream* out) { *out << wrong.where << ' ' << wrong.value; }

std::string with_wrong(const Wrong& wrong) {
  json::Value document = to_json(full());
  std::string path = wrong.where;
  const auto cut = path.rfind('/');
  const std::string last = path.substr(cut + 1);
  // Values share their content, so the path is walked by at().
  json::Value* at = &document;
  for (std::size_t from = 1; from < cut + 1 && cut > 0;) {
    const auto to = std::min(path.find('/', from), cut);
    const std::string step = path.substr(from, to - from);
    at = at->is_array() ? &at->at(std::stoul(step)) : &at->at(step);
    from = to + 1;
  }
  if (*wrong.value == '\0')
    at->erase(last);
  else if (at->is_array() && last != "-")
    at->at(std::stoul(last)) = *json::parse(wrong.value);
  else if (at->is_array())
    at->push_back(*json::parse(wrong.value));
  else
    at->set(last, *json::parse(wrong.value));
  return json::dump(document);
}

class WrongSnapshot : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongSnapshot, SaysWhichFieldAndWhatIsExpected) {
  const auto read = read_snapshot(with_wrong(GetParam()));
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code(), Code::kInvalid);
  EXPECT_EQ(read.error().what(), GetParam().error);
}

// In full(): jobs[1] is the one with everything; nodes[1] is n1 with 8 GPUs; queues[1] is q.
INSTANTIATE_TEST_SUITE_P(
    Fields, WrongSnapshot,
    ::testing::Values(
        Wrong{"/version", "", "version: missing, expected a whole number from 1 to 1"},
        Wrong{"/version", "2", "version: 2, expected a whole number from 1 to 1"},
        Wrong{"/nodes", "", "nodes: missing, expected a list"},
        Wrong{"/nodes", "{}", "nodes: an object, expected a list"},
        Wrong{"/jobs", "null", "jobs: null, expected a list"},
        Wrong{"/extra", "1",
              "extra: an unknown field, expected only version, policy, nowMs, topologyLevels, "
              "storage, nodes, nodeSets, queues, jobs"},
        Wrong{"/policy", "[]", "policy: a list, expected an object"},
        Wrong{"/policy/preempt", "1", "policy.preempt: 1, expected true or false"},
        Wrong{"/policy/minRelativeGain", "-2",
              "policy.minRelativeGain: -2, expected a number from -1 to 1000000"},
        Wrong{"/policy/minRelativeGain", "\"1\"",
              "policy.minRelativeGain: \"1\", expected a number from -1 to 1000000"},
        Wrong{"/nodes/0", "7", "nodes[0]: 7, expected an object"},
        Wrong{"/nodes/0/id", "\"\"", "nodes[0].id: \"\", expected a text of 1 to 512 bytes"},
        Wrong{"/nodes/0/id", "5", "nodes[0].id: 5, expected a text of 1 to 512 bytes"},
        Wrong{"/nodes/1/id", "\"n2\"", "nodes[1].id: \"n2\" again, expected each to have its own"},
        Wrong{"/nodes/1/gpuType", "\"*\"",
              "nodes[1].gpuType: \"*\", expected the name of a GPU type"},
        Wrong{"/nodes/1/gpuType", "\"\"",
              "nodes[1].gpuType: \"\", expected a text of 1 to 512 bytes"},
        Wrong{"/nodes/1/gpus", "1048576",
              "nodes[1].gpus: 1048576 more, expected at most 1048576 of all nodes together"},
        Wrong{"/nodes/1/free", "", "nodes[1].free: missing, expected an object"},
        Wrong{"/nodes/1/free/gpus", "9",
              "nodes[1].free.gpus: 9, expected a whole number from 0 to 8"},
        Wrong{"/nodes/1/free/gpus", "-1",
              "nodes[1].free.gpus: -1, expected a whole number from 0 to 8"},
        Wrong{"/nodes/1/free/gpus", "7",
              "nodes[1].free.gpus: 7, expected at most 6, for pods of jobs hold 2 of its 8"},
        Wrong{"/nodes/1/gpus", "3",
              "nodes[1].free.gpus: 3, expected at most 1, for pods of jobs hold 2 of its 3"},
        Wrong{"/nodes/1/free/milliCpu", "2305843009213693953",
              "nodes[1].free.milliCpu: 2305843009213693953, expected a whole number from "
              "-2305843009213693952 to 2305843009213693952"},
        Wrong{"/nodes/1/free/others/1", "true",
              "nodes[1].free.others[1]: true, expected a whole number from "
              "-2305843009213693952 to 2305843009213693952"},
        Wrong{"/nodes/1/free/others", "[1,2,3,4,5,6,7,8,9]",
              "nodes[1].free.others: a list of 9, expected a list of at most 8"},
        Wrong{"/nodes/1/free/cpu", "1",
              "nodes[1].free.cpu: an unknown field, expected only gpus, milliCpu, memoryBytes, "
              "others"},
        Wrong{"/topologyLevels/1", "\"zone\"",
              "topologyLevels[1]: \"zone\" again, expected each level once"},
        Wrong{"/nodes/1/domains/row", "\"1\"",
              "nodes[1].domains.row: \"row\", expected the name of one of the topologyLevels"},
        Wrong{"/nodes/1/domains/rack", "\"\"",
              "nodes[1].domains.rack: \"\", expected a text of 1 to 512 bytes"},
        Wrong{"/nodes/1/domains", "[]", "nodes[1].domains: a list, expected an object"},
        Wrong{"/nodes/0/schedulable", "true",
              "nodes[0].schedulable: true, expected false, for pods are to leave this node"},
        Wrong{"/nodeSets/0/1", "\"n1\"", "nodeSets[0][1]: \"n1\" again, expected each node once"},
        Wrong{"/nodeSets/0/1", "1", "nodeSets[0][1]: 1, expected a text of 1 to 512 bytes"},
        Wrong{"/queues/1/name", "\"default\"",
              "queues[1].name: \"default\" again, expected each to have its own"},
        Wrong{"/queues/1/preempts", "\"all\"",
              "queues[1].preempts: \"all\", expected one of nobody, ownQueue, anyQueue"},
        Wrong{"/queues/1/quotas/-", "{\"gpuType\":\"*\"}",
              "queues[1].quotas[2].gpuType: \"*\" again, expected each to have its own"},
        Wrong{
            "/queues/1/parent", "\"none\"",
            "queues[1].parent: \"none\": there is no queue \"none\", expected the name of a queue "
            "that is no part of this one"},
        Wrong{
            "/queues/0/parent", "\"q\"",
            "queues[0].parent: \"q\": \"q\" is a part of this queue, expected the name of a queue "
            "that is no part of this one"},
        Wrong{"/queues/1/quotas/0/limit", "null",
              "queues[1].quotas[0].limit: null, expected a whole number from 4 to 1099511627776"},
        Wrong{"/queues/1/quotas/0/limit", "3",
              "queues[1].quotas[0].limit: 3, expected a whole number from 4 to 1099511627776"},
        Wrong{"/queues/1/heldByLeavers/0/gpus", "1.5",
              "queues[1].heldByLeavers[0].gpus: 1.5, expected a whole number from 0 to 1048576"}));

INSTANTIATE_TEST_SUITE_P(
    Jobs, WrongSnapshot,
    ::testing::Values(
        Wrong{"/jobs/1/id", "\"uid-b\"",
              "jobs[1].id: \"uid-b\" again, expected each to have its own"},
        Wrong{"/jobs/1/id", "", "jobs[1].id: missing, expected a text of 1 to 512 bytes"},
        Wrong{"/jobs/1/gpus/min", "-1",
              "jobs[1].gpus.min: -1, expected a whole number from 1 to 1048576"},
        Wrong{"/jobs/1/gpus/max", "1",
              "jobs[1].gpus.max: 1, expected a whole number from 2 to 1048576"},
        Wrong{"/jobs/1/gpus/max", "1e30",
              "jobs[1].gpus.max: 1e+30, expected a whole number from 2 to 1048576"},
        Wrong{"/jobs/1/gpus/shape", "\"square\"",
              "jobs[1].gpus.shape: \"square\", expected one of any, powersOfTwo, wholeNodes"},
        Wrong{"/jobs/1/topology/level", "\"row\"",
              "jobs[1].topology.level: \"row\", expected the name of one of the topologyLevels"},
        Wrong{"/jobs/1/topology/mode", "\"must\"",
              "jobs[1].topology.mode: \"must\", expected one of preferred, required"},
        Wrong{"/jobs/1/perPod/gpus", "0",
              "jobs[1].perPod.gpus: 0, expected a whole number from 1 to 1048576"},
        Wrong{"/jobs/1/perPod/memoryBytes", "-1",
              "jobs[1].perPod.memoryBytes: -1, expected a whole number from 0 to "
              "2305843009213693952"},
        Wrong{"/jobs/1/perPod/memoryBytes", "2305843009213693952",
              "jobs[1].perPod: with the pods of the jobs before it too much of one kind is held, "
              "expected at most 2305843009213693952 of each"},
        Wrong{"/jobs/1/weight", "-1", "jobs[1].weight: -1, expected a number from 0 to 1000000000"},
        Wrong{"/jobs/1/priority", "2147483648",
              "jobs[1].priority: 2147483648, expected a whole number from -2147483648 to "
              "2147483647"},
        Wrong{"/jobs/1/eligible", "1",
              "jobs[1].eligible: 1, expected a list of node ids, or the number of one of the 1 "
              "nodeSets"},
        Wrong{"/jobs/1/eligible", "\"n1\"", "jobs[1].eligible: \"n1\", expected a list"},
        Wrong{"/jobs/1/avoid/-", "\"gone\"",
              "jobs[1].avoid[2]: \"gone\" again, expected each node once"},
        Wrong{"/jobs/1/allow/0", "{}",
              "jobs[1].allow[0]: an object, expected a text of 1 to 512 bytes"},
        Wrong{"/jobs/1/held/0/node", "\"gone\"",
              "jobs[1].held[0].node: \"gone\", expected the id of one of the nodes, for the pod is "
              "neither lost nor leaving"},
        Wrong{"/jobs/1/held/1/ordinal", "0",
              "jobs[1].held[1].ordinal: 0 again, expected each pod of a job to have its own"},
        Wrong{"/jobs/1/held/1/ordinal", "-1",
              "jobs[1].held[1].ordinal: -1, expected a whole number from 0 to 9007199254740992"},
        Wrong{"/jobs/1/held/0/gpus", "0",
              "jobs[1].held[0].gpus: 0, expected a whole number from 1 to 1048576"},
        Wrong{"/jobs/1/held/0/gpuType", "",
              "jobs[1].held[0].gpuType: missing, expected a text of 1 to 512 bytes"},
        Wrong{"/jobs/1/held/0/gpuType", "\"\"",
              "jobs[1].held[0].gpuType: \"\", expected a text of 1 to 512 bytes"},
        Wrong{"/jobs/1/held/0/pod", "\"x\"",
              "jobs[1].held[0].pod: an unknown field, expected only leaving, lost, unstarted, "
              "refused, ordinal, node, gpuType, gpus, "
              "cell"},
        Wrong{"/jobs/1/measured/0/tokensPerSecond", "",
              "jobs[1].measured[0].tokensPerSecond: missing, expected a number from 0 to "
              "1000000000000000"},
        Wrong{"/jobs/1/started", "\"yes\"", "jobs[1].started: \"yes\", expected true or false"}));

TEST(Snapshot, NoJsonOrTooMuchOfIt) {
  for (const char* text : {"", "{", "[]x", "\xff", "nul"})
    EXPECT_EQ(read_snapshot(text).error().code(), Code::kInvalid) << text;
  EXPECT_EQ(read_snapshot("[]").error().what(), "the snapshot: a list, expected an object");
  const auto twice = read_snapshot(R"({"version":1,"nodes":[],"jobs":[{"id":"a","id":"b"}]})");
  EXPECT_EQ(twice.error().what(), "JSON: jobs[0] has \"id\" twice; write each field once");
  std::string deep(100, '[');
  EXPECT_NE(read_snapshot(deep).error().what().find("deeper than"), std::string::npos);
  std::string id(513, 'x');
  Snapshot snapshot = full();
  snapshot.state.nodes[0].id = id;
  EXPECT_EQ(read_snapshot(to_text(snapshot)).error().what(),
            "nodes[0].id: a text of 513 bytes, expected a text of 1 to 512 bytes");
}

// In a time that grows with them, not with their square.
TEST(Snapshot, VeryManyDomainsOfANodeEndAtTheFirstThatIsUnknown) {
  std::string domains;
  for (int i = 0; i < 200'000; ++i)
    domains += (i == 0 ? "\"l" : ",\"l") + std::to_string(i) + "\":\"d\"";
  const auto read = read_snapshot(
      R"({"version":1,"jobs":[],"nodes":[{"id":"n","gpuType":"A","gpus":1,"free":{"gpus":1},)"
      R"("domains":{)" +
      domains + "}}]}");
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().what(),
            "nodes[0].domains.l0: \"l0\", expected the name of one of the topologyLevels");
}

// As the operator sees them: a node was relabelled, or lost GPUs, under pods that train on; a node
// is gone; pods that are lost or leaving are in nobody's account.
TEST(Snapshot, WhatHappensToNodesIsNoContradiction) {
  Snapshot snapshot;
  snapshot.state = cluster(
      {node("relabelled", 4, 2, "B"), node("shrunk", 1, 0), node("n", 2, 2)},
      {running("a", 1, 8,
               {"relabelled", "relabelled", "shrunk", "shrunk", "n", "n", "gone", "gone"})});
  std::vector<Held>& held = snapshot.state.jobs[0].held;
  held[4].lost = held[6].lost = true;
  held[5].leaving = held[7].leaving = true;
  held[7].gpu_type = "";
  held[7].ordinal = -1;
  const auto read = read_snapshot(to_text(snapshot));
  ASSERT_TRUE(read.ok()) << read.error().what();
  EXPECT_TRUE(*read == snapshot);
}

TEST(Snapshot, ListsOfNodesAreBoundedWhereTheyAreSpreadOut) {
  json::Value document = *json::parse(R"({"version":1,"nodes":[],"nodeSets":[[]],"jobs":[]})");
  for (int i = 0; i < 100'000; ++i)
    document.at("nodeSets").at(0).push_back("n" + std::to_string(i));
  for (std::int64_t i = 0; i <= kListedNodesMost / 100'000; ++i) {
    json::Value j =
        *json::parse(R"({"queue":"q","gpus":{"min":1,"max":1},"perPod":{"gpus":1},"eligible":0})");
    j.set("id", std::to_string(i));
    document.at("jobs").push_back(std::move(j));
  }
  const auto read = decode_snapshot(document);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().what(),
            "jobs[41]: too many nodes in eligible and avoid, expected at most 4194304 "
            "of all jobs together");
}

}  // namespace
}  // namespace rubato::sched
