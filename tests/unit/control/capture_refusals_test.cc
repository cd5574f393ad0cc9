// What a capture makes of what the API server refuses: pods, and classes of priority.
#include "operator/control/cluster_view.h"
#include "tests/unit/control/fixtures.h"

#include <limits>

namespace rubato::control {
namespace {

// n1 has the first pod; the second, on n2, is not made.
constexpr const char* kOneOfTwoMade =
    R"("allocation":{"epoch":1,"nextOrdinal":2,"gpus":2,"pods":[
       {"name":"job-w0","ordinal":0,"node":"n1","gpuType":"A","gpus":1},
       {"name":"job-w1","ordinal":1,"node":"n2","gpuType":"A","gpus":1}]})";

World with(std::shared_ptr<const JobObject> one) {
  World w;
  w.nodes = {node("n1", 2), node("n2", 2)};
  w.now = MonoTime{std::chrono::hours(1)};
  w.wall = *parse_rfc3339("2026-11-21T08:00:00Z");
  w.jobs = {std::move(one)};
  return w;
}

std::shared_ptr<const PriorityClassObject> priority_class(const std::string& name, int value,
                                                          const std::string& more = "") {
  return std::make_shared<const PriorityClassObject>(
      *PriorityClassObject::decode(parse(R"({"metadata":{"name":")" + name + R"(","uid":"c"},)" +
                                         R"("value":)" + std::to_string(value) + more + "}")));
}

TEST(Capture, APodThatMayNotBeMadeIsLostAndNoNodeIsAvoided) {
  World w = with(job(1, 4, kOneOfTwoMade));
  w.pods = {pod("job-w0", "n1", "Running", "job-uid-1")};
  EXPECT_FALSE(capture(w, config()).jobs[0].held[1].lost);
  w.given_up = {"ns/job-w1 made"};
  const auto state = capture(w, config());
  EXPECT_FALSE(state.jobs[0].held[0].lost);
  EXPECT_TRUE(state.jobs[0].held[1].lost);
  EXPECT_TRUE(state.jobs[0].avoid.empty());
  w.pods.push_back(pod("job-w1", "", "Pending", "job-uid-1"));
  EXPECT_TRUE(capture(w, config()).jobs[0].held[1].lost) << "it came too late, and is not bound";
  w.pods[1] = pod("job-w1", "n1", "Pending", "job-uid-1");
  EXPECT_FALSE(capture(w, config()).jobs[0].held[1].lost) << "it was bound before";
}

TEST(Capture, AJobThatMayHaveNoMorePodsIsNotGrownForAWhile) {
  World w = with(job(1, 4, kOneOfTwoMade));
  w.pods = {pod("job-w0", "n1", "Running", "job-uid-1")};
  const std::string uid = w.jobs[0]->job.meta.uid;
  const auto most = [&] { return capture(w, config()).jobs[0].max; };
  EXPECT_EQ(most(), 4);
  w.growth_limits[uid] = {.gpus = 1, .in_a_row = 1, .until = w.now + 1s};
  EXPECT_EQ(most(), 2) << "what it is promised is not taken away";
  w.given_up = {"ns/job-w1 made"};
  EXPECT_EQ(most(), 1);
  w.jobs = {job(2, 4, kOneOfTwoMade)};
  EXPECT_EQ(most(), 2) << "nothing is below its minimum";
  w.growth_limits[uid].until = w.now;
  EXPECT_EQ(most(), 4);
}

TEST(Capture, AJobHasThePriorityThatWasTriedWhateverBecomesOfItsClass) {
  const char* high = R"("priorityClassName":"high")";
  World w = with(job(1, 2, "", high));
  w.priorities = {priority_class("high", 100), priority_class("low", -5)};
  EXPECT_EQ(capture(w, config()).jobs[0].priority, 100) << "of a status that has none yet";
  const char* tried = R"("priority":{"className":"low","value":-7,"preempts":false})";
  w.jobs = {job(1, 2, tried, high)};
  EXPECT_EQ(capture(w, config()).jobs[0].priority, -7) << "high was not tried";
  EXPECT_FALSE(capture(w, config()).jobs[0].may_preempt);
  w.priorities.clear();
  EXPECT_EQ(capture(w, config()).jobs[0].priority, -7);
}

TEST(Capture, AJobWhosePodsMayNotBeMadeIsNotScheduled) {
  const auto waits = [](const std::string& reason) {
    return with(job(1, 2,
                    R"("conditions":[{"type":"Queued","status":"True","reason":")" + reason +
                        R"(","message":"m"}])"));
  };
  EXPECT_EQ(capture(waits("PodForbidden"), config()).jobs.size(), 0u);
  EXPECT_EQ(capture(waits("WaitingForGPUs"), config()).jobs.size(), 1u);
}

// Of memory that no machine has.
TEST(Capture, PodsThatAskForTooMuchTakeAllAndGiveNothing) {
  const auto greedy = [](const std::string& name) {
    kube::Pod pod_on_n1 = *pod(name, "n1", "Running");
    pod_on_n1.requests = {{"memory", std::numeric_limits<std::int64_t>::max()}};
    return std::make_shared<const kube::Pod>(pod_on_n1);
  };
  JobObject object = *job(1, 2);
  object.job.spec.pod_template = parse(R"({"spec":{"containers":[
      {"name":"worker","image":"x","resources":{"requests":{"memory":"9E"}}},
      {"name":"beside","image":"x","resources":{"requests":{"memory":"9E"}}}]}})");
  World w = with(std::make_shared<const JobObject>(object));
  w.pods = {greedy("a"), greedy("b"), greedy("c")};
  const auto state = capture(w, config());
  EXPECT_EQ(state.nodes[0].free.memory, 0);
  EXPECT_TRUE(state.jobs[0].eligible->empty()) << "it fits nowhere";
  EXPECT_NE(state.jobs[0].narrowed.find("asks for more memory"), std::string::npos);
}

TEST(PriorityOf, IsWhatKubernetesGivesAPod) {
  const char* is_default = R"(,"globalDefault":true)";
  const std::vector classes = {priority_class("high", 100), priority_class("b", 7, is_default),
                               priority_class("a", 5, is_default)};
  EXPECT_EQ(priority_of("high", classes)->value, 100);
  EXPECT_EQ(priority_of("", classes)->value, 5);
  EXPECT_EQ(priority_of("", {}), api::JobPriority{});
  EXPECT_EQ(priority_of("missing", classes), std::nullopt) << "such a pod is refused";
}

}  // namespace
}  // namespace rubato::control
