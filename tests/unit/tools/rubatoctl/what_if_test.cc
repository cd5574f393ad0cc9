#include "tools/rubatoctl/what_if.h"

#include "common/json.h"
#include "tests/sentences.h"

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

// Two nodes of two GPUs. a holds n1, b one of n2, and c wants two; pods of a have a core each.
const std::string kComparedSnapshot =
    R"({"version":1,"policy":{"name":"fifo"},"nodes":[)"
    R"({"id":"n1","gpuType":"A","gpus":2,"free":{"gpus":0,"milliCpu":500},)"
    R"("schedulable":false,"whyNot":"cordoned"},)"
    R"({"id":"n2","gpuType":"A","gpus":2,"free":{"gpus":1}}],"queues":[{"name":"q"}],"jobs":[)"
    R"({"id":"1","name":"team/a","queue":"q","gpus":{"min":2,"max":2},)"
    R"("perPod":{"gpus":1,"milliCpu":1000},"started":true,"held":[)"
    R"({"ordinal":0,"node":"n1","gpuType":"A","gpus":1},)"
    R"({"ordinal":1,"node":"n1","gpuType":"A","gpus":1}]},)"
    R"({"id":"2","name":"team/b","queue":"q","gpus":{"min":1,"max":1},"perPod":{"gpus":1},)"
    R"("started":true,"held":[{"ordinal":0,"node":"n2","gpuType":"A","gpus":1}]},)"
    R"({"id":"3","name":"team/c","queue":"q","queuedAtSeconds":3,"gpus":{"min":2,"max":2},)"
    R"("perPod":{"gpus":1},"eligible":["n1","n2"]}]})";

sched::Snapshot compared_snapshot() { return sched::read_snapshot(kComparedSnapshot).value(); }

json::Value told_with(const Changes& changes) {
  const auto text = what_if_text(compared_snapshot(), changes, "json");
  EXPECT_TRUE(text.ok()) << text.error().what();
  return text.ok() ? json::parse(*text).value() : json::Value();
}

TEST(WhatIf, IsATableOfBothPlans) {
  const std::string text =
      what_if_text(compared_snapshot(), {.remove_jobs = {"team/b"}}, "table").value();
  EXPECT_EQ(text,
            "    JOB      NOW     GPUS   NODES     THEN      GPUS   NODES     EXPECTED   WHAT IT "
            "WAITS FOR THEN\n"
            "    team/a   runs    2      2 on n1   runs      2      2 on n1\n"
            "*   team/b   runs    1      1 on n2   removed   0\n"
            "*   team/c   waits   0                runs      2      2 on n2\n"
            "\n"
            "                      NOW      THEN\n"
            "GPUs used             3 of 4   4 of 4\n"
            "jobs that run         2        2\n"
            "jobs that wait        1        0\n"
            "jobs that never fit   0        0\n");
  EXPECT_EQ(wrong_number(text), "");
}

TEST(WhatIf, ANodeThatIsGoneTakesItsPodsAlong) {
  const json::Value told = told_with({.without_nodes = {"n2"}});
  EXPECT_EQ(told["jobs"][0]["differs"].bool_or(true), false);
  EXPECT_EQ(told["jobs"][1]["differs"].bool_or(false), true);
  EXPECT_EQ(json::dump(told["jobs"][1]["now"]), R"({"state":"runs","gpus":1,"nodes":{"n2":1}})");
  EXPECT_EQ(told["jobs"][1]["then"]["state"].string_or(""), "waits");
  EXPECT_EQ(told["jobs"][1]["then"]["nodes"].size(), 0u);
  EXPECT_NE(told["jobs"][1]["then"]["message"].string_or(""), "");
  EXPECT_EQ(told["now"]["gpus"].int_or(0), 4);
  EXPECT_EQ(told["then"]["gpus"].int_or(0), 2);
  EXPECT_EQ(told["then"]["gpusUsed"].int_or(0), 2);
}

// As n1 would be with nobody on it, and for those who may use n1.
TEST(WhatIf, NodesAreAddedLikeOneThatIsThere) {
  const Changes changes{.add_nodes = {"2,like=n1"}};
  const sched::Snapshot changed = with_changes(compared_snapshot(), changes).value();
  ASSERT_EQ(changed.state.nodes.size(), 4u);
  const sched::Node& added = changed.state.nodes[3];
  EXPECT_EQ(added.id, "n1-copy-2");
  EXPECT_EQ(added.free.gpus, 2);
  EXPECT_EQ(added.free.cpu, 2500);
  EXPECT_TRUE(added.schedulable);
  EXPECT_TRUE(changed.state.jobs[2].eligible->contains("n1-copy-1"));
  const json::Value told = told_with(changes);
  EXPECT_EQ(told["jobs"][2]["then"]["state"].string_or(""), "runs");
  EXPECT_EQ(told["then"]["gpusUsed"].int_or(0), 5);
  EXPECT_EQ(told["then"]["gpus"].int_or(0), 8);
}

// n1 had four GPUs; a held two of them, and d the two that are left.
TEST(WhatIf, GpusThatANodeHasLostDoNotComeFree) {
  sched::Snapshot snapshot = compared_snapshot();
  sched::Job& d = snapshot.state.jobs.emplace_back(snapshot.state.jobs[0]);
  d.id = "4";
  d.name = "team/d";
  for (sched::Held& held : d.held) held.ordinal += 2;
  const auto without_a = with_changes(snapshot, {.remove_jobs = {"team/a"}});
  ASSERT_TRUE(without_a.ok()) << without_a.error().what();
  EXPECT_EQ(without_a->state.nodes[0].free.gpus, 0);
  EXPECT_EQ(without_a->state.nodes[0].free.cpu, 2500);
  const auto without_both = with_changes(snapshot, {.remove_jobs = {"team/a", "team/d"}});
  ASSERT_TRUE(without_both.ok()) << without_both.error().what();
  EXPECT_EQ(without_both->state.nodes[0].free.gpus, 2);
}

TEST(WhatIf, NodesAreNotAddedToVeryManyLists) {
  sched::Snapshot snapshot = compared_snapshot();
  for (int i = 0; i < 42; ++i) snapshot.state.jobs.push_back(snapshot.state.jobs[2]);
  const auto changed = with_changes(snapshot, {.add_nodes = {"100000,like=n1"}});
  ASSERT_FALSE(changed.ok());
  EXPECT_EQ(std::string(changed.error().what()),
            "--add-nodes 100000,like=n1: jobs would list too many nodes as eligible; expected at "
            "most 4194304 of all jobs together");
}

TEST(WhatIf, NumbersOfAJobAreSet) {
  const Changes changes{.set = {"job=team/c,min=1,max=1,priority=-7"}};
  const sched::Snapshot changed = with_changes(compared_snapshot(), changes).value();
  EXPECT_EQ(changed.state.jobs[2].priority, -7);
  EXPECT_EQ(json::dump(told_with(changes)["jobs"][2]["then"]),
            R"({"state":"runs","gpus":1,"nodes":{"n2":1}})");
}

TEST(WhatIf, AnotherPolicyTakesThePlaceOfItsOwn) {
  sched::Snapshot snapshot = compared_snapshot();
  snapshot.policy.preempt = false;
  const sched::Snapshot changed =
      with_changes(snapshot, {.policy = "gavel:objective=1:maxLoad=2"}).value();
  EXPECT_EQ(changed.policy.policy, "gavel");
  EXPECT_EQ(changed.policy.parameters.at("objective"), 1);
  EXPECT_EQ(changed.policy.max_load, 2);
  EXPECT_FALSE(changed.policy.preempt);
  const json::Value told = told_with({.policy = "rubato"});
  EXPECT_FALSE(told["now"].has("certificate"));
  EXPECT_TRUE(told["then"].has("certificate"));
  const std::string table = what_if_text(snapshot, {.policy = "rubato"}, "table").value();
  EXPECT_NE(table.find("\nworth, in GPUs "), std::string::npos) << table;
}

std::string refusal_of(const Changes& changes) {
  const auto changed = with_changes(compared_snapshot(), changes);
  return changed.ok() ? "" : changed.error().what();
}

TEST(WhatIf, ErrorsSayWhichChangeCannotBe) {
  EXPECT_EQ(refusal_of({}),
            "nothing would be different; expected --policy, --without-node, --add-nodes, "
            "--remove-job or --set, as in --add-nodes 4,like=n1");
  EXPECT_EQ(refusal_of({.without_nodes = {"n9"}}),
            "--without-node n9: there is no node \"n9\"; there are n1, n2");
  EXPECT_EQ(refusal_of({.without_nodes = {"n1", "n1"}}),
            "--without-node n1: there is no node \"n1\"; there are n2");
  EXPECT_EQ(refusal_of({.remove_jobs = {"d"}}),
            "--remove-job d: there is no job \"d\"; there are team/a, team/b, team/c");
  EXPECT_TRUE(refusal_of({.policy = "lifo"}).starts_with("policy: there is no policy \"lifo\""));
  for (const char* bad : {"4", "like=n1", "0,like=n1", "x,like=n1", "-1,like=n1", "100001,like=n1"})
    EXPECT_EQ(refusal_of({.add_nodes = {bad}}),
              std::string("--add-nodes ") + bad +
                  ": expected COUNT,like=NODE with a count from 1 to 100000, as in 4,like=n1");
  EXPECT_EQ(refusal_of({.add_nodes = {"1,like=n9"}}),
            "--add-nodes 1,like=n9: there is no node \"n9\"; there are n1, n2");
  for (const char* bad : {"", "job=team/c", "max=3", "job=team/c,max=", "job=team/c,max=many",
                          "job=team/c,max=3,max=4", "job=team/c,size=3", "job=team/c,max=3.5"})
    EXPECT_EQ(refusal_of({.set = {bad}}),
              std::string("--set ") + bad +
                  ": expected job=NAME and one or more of min=GPUS, max=GPUS and "
                  "priority=NUMBER, each once, as in job=gpt,max=16");
  EXPECT_EQ(refusal_of({.set = {"job=d,max=3"}}),
            "--set job=d,max=3: there is no job \"d\"; there are team/a, team/b, team/c");
  EXPECT_EQ(refusal_of({.set = {"job=team/c,min=0"}}),
            "with these changes: jobs[2].gpus.min: 0, expected a whole number from 1 to 1048576");
}

}  // namespace
}  // namespace rubato::ctl
