#include "operator/control/cluster_view.h"

#include "operator/control/node_fit.h"
#include "scheduler/snapshot/snapshot.h"
#include "tests/unit/control/fixtures.h"

namespace rubato::control {
namespace {

constexpr const char* kTwoPods =
    R"("allocation":{"epoch":1,"nextOrdinal":2,"gpus":2,"pods":[
       {"name":"job-w0","ordinal":0,"node":"n1","gpuType":"A","gpus":1},
       {"name":"job-w1","ordinal":1,"node":"n2","gpuType":"A","gpus":1}]})";

constexpr const char* kAvoidsN2 =
    R"("avoidedNodes":[{"node":"n2","reason":"DataNotFound","times":1,
       "since":"2026-11-21T08:00:00Z","until":"2026-11-21T08:00:30Z"}])";

World world() {
  World w;
  w.nodes = {node("n1", 2), node("n2", 2)};
  w.wall = *parse_rfc3339("2026-11-21T08:00:00Z");
  return w;
}

const sched::Node& of(const sched::ClusterState& state, const std::string& id) {
  for (const auto& n : state.nodes) {
    if (n.id == id) return n;
  }
  throw std::out_of_range(id);
}

TEST(Capture, EveryPodCountsUntilItHasEnded) {
  World w = world();
  w.pods = {pod("mine", "n1", "Running"), pod("done", "n1", "Succeeded"),
            pod("ending", "n2", "Running", "", R"(,"deletionTimestamp":"2026-11-21T07:59:59Z")")};
  const auto state = capture(w, config());
  EXPECT_EQ(of(state, "n1").free.gpus, 1);
  EXPECT_EQ(of(state, "n2").free.gpus, 1);  // terminating pods still hold their GPU
  EXPECT_EQ(of(state, "n1").free.cpu, 7000);
}

TEST(Capture, APromiseWithoutAPodTakesItsPlace) {
  World w = world();
  w.jobs = {job(2, 4, kTwoPods)};
  w.pods = {pod("job-w0", "n1", "Running", "job-uid-1")};
  const auto state = capture(w, config());
  EXPECT_EQ(of(state, "n1").free.gpus, 1);
  EXPECT_EQ(of(state, "n2").free.gpus, 1);  // job-w1 is promised there
  ASSERT_EQ(state.jobs.size(), 1u);
  EXPECT_EQ(state.jobs[0].held.size(), 2u);
  EXPECT_FALSE(state.jobs[0].held[1].lost);
  EXPECT_EQ(state.jobs[0].per_pod, (sched::Resources{1, 1000, 0, {1}}));  // as its pod asks for
}

TEST(Capture, ASuspendedJobHoldsItsShareOfTheQueueUntilItsPodsAreGivenBack) {
  World w = world();
  auto suspended = std::make_shared<JobObject>(*job(2, 4, kTwoPods));
  suspended->job.spec.suspend = true;
  w.jobs = {suspended};
  w.pods = {pod("job-w0", "n1", "Running", "job-uid-1"),
            pod("job-w1", "n2", "Succeeded", "job-uid-1")};
  const auto state = capture(w, config());
  EXPECT_TRUE(state.jobs.empty());
  EXPECT_EQ(state.queues.at("default").held_by_leavers.at("A"), 1);
  w.pods.pop_back();  // job-w1 is promised and not made yet
  EXPECT_EQ(of(capture(w, config()), "n2").free.gpus, 1);
}

TEST(Capture, ADeletedPodIsLostAndAPodOutsideTheAllocationIsLeaving) {
  World w = world();
  w.jobs = {job(2, 4, kTwoPods)};
  w.pods = {pod("job-w0", "n1", "Running", "job-uid-1"),
            pod("job-w9", "n2", "Running", "job-uid-1")};
  w.lost_pods = {"ns/job-w1"};
  const auto state = capture(w, config());
  ASSERT_EQ(state.jobs[0].held.size(), 3u);
  EXPECT_TRUE(state.jobs[0].held[1].lost);
  EXPECT_TRUE(state.jobs[0].held[2].leaving);
}

// Its GPU stays taken, and other jobs start where there is room without it.
TEST(Capture, NobodyWaitsForAPodThatShouldHaveEndedLongAgo) {
  World w = world();
  w.jobs = {job(2, 4, kTwoPods)};
  w.pods = {pod("job-w0", "n1", "Running", "job-uid-1"),
            pod("job-w1", "n2", "Running", "job-uid-1"),
            pod("job-w9", "n2", "Running", "job-uid-1",
                R"(,"deletionTimestamp":"2026-11-21T07:58:00Z")")};
  ASSERT_EQ(capture(w, config()).jobs[0].held.size(), 3u);
  EXPECT_TRUE(capture(w, config()).jobs[0].held[2].leaving);
  w.wall += 4min;
  const auto state = capture(w, config());
  EXPECT_EQ(state.jobs[0].held.size(), 2u);
  EXPECT_EQ(of(state, "n2").free.gpus, 0);
}

TEST(Capture, SomebodyElsesPodUnderTheNameSaysNothingAboutOurs) {
  World w = world();
  w.jobs = {job(2, 4, kTwoPods)};
  w.pods = {pod("job-w0", "n1", "Running", "job-uid-1"),
            pod("job-w1", "", "Pending", "", R"(,"deletionTimestamp":"2026-11-21T07:59:59Z")")};
  const auto state = capture(w, config());
  EXPECT_FALSE(state.jobs[0].held[1].lost);
  EXPECT_EQ(of(state, "n2").free.gpus, 1);  // still promised
}

TEST(Capture, AJobIsNotSettledWhileOthersTrainForThoseThatItHolds) {
  World w = world();
  w.jobs = {job(2, 4, kTwoPods)};
  coordinator::View seen;
  seen.phase = coordinator::Phase::kTraining;
  seen.members.resize(2);
  seen.members[0].pod = "job-w0";
  seen.members[1].pod = "job-w7";  // until job-w1 can take over
  w.view_of = [&](const std::string&) { return std::optional(seen); };
  EXPECT_FALSE(capture(w, config()).jobs[0].settled);
  seen.members[1].pod = "job-w1";
  EXPECT_TRUE(capture(w, config()).jobs[0].settled);
}

TEST(Capture, PodsOnAVanishedNodeAreLost) {
  World w = world();
  w.nodes.pop_back();
  w.jobs = {job(2, 4, kTwoPods)};
  w.pods = {pod("job-w0", "n1", "Running", "job-uid-1"),
            pod("job-w1", "n2", "Running", "job-uid-1")};
  EXPECT_TRUE(capture(w, config()).jobs[0].held[1].lost);
}

TEST(Capture, APodThatWasNotStartedInTimeIsLostAndItsNodeAvoided) {
  World w = world();
  w.jobs = {job(1, 4, kTwoPods)};
  w.pods = {pod("job-w0", "n1", "Running", "job-uid-1"),
            pod("job-w1", "n2", "Pending", "job-uid-1")};
  w.given_up = {"p-job-w0 started", "p-job-w1 started"};
  EXPECT_FALSE(capture(w, config()).jobs[0].held[1].lost);  // not before it is written
  w.jobs = {job(1, 4, std::string(kTwoPods) + "," + kAvoidsN2)};
  const auto state = capture(w, config());
  EXPECT_FALSE(state.jobs[0].held[0].lost);  // it was started after all
  EXPECT_TRUE(state.jobs[0].held[1].lost);
  EXPECT_TRUE(state.jobs[0].held[1].unstarted);
  EXPECT_EQ(of(state, "n2").free.gpus, 1);  // until its pod is gone
  EXPECT_EQ(state.jobs[0].avoid, (std::set<std::string>{"n2"}));
  EXPECT_TRUE(state.jobs[0].eligible->contains("n2"));  // it may come to use it again
}

TEST(Capture, ARefusedPodIsLostOnceItsNodeIsAvoided) {
  World w = world();
  w.pods = {pod("job-w0", "n1", "Running", "job-uid-1"),
            pod("job-w1", "n2", "Running", "job-uid-1")};
  w.given_up = {refusal_key("p-job-w1")};
  w.jobs = {job(1, 4, kTwoPods)};
  EXPECT_FALSE(capture(w, config()).jobs[0].held[1].lost);
  w.jobs = {job(1, 4, std::string(kTwoPods) + "," + kAvoidsN2)};
  const auto state = capture(w, config());
  EXPECT_FALSE(state.jobs[0].held[0].lost);
  EXPECT_TRUE(state.jobs[0].held[1].lost);
  EXPECT_TRUE(state.jobs[0].held[1].refused);
  EXPECT_FALSE(state.jobs[0].held[1].unstarted);
  EXPECT_EQ(state.jobs[0].avoid, (std::set<std::string>{"n2"}));
  w.wall += 31s;  // its time is over; what was refused stays so
  EXPECT_TRUE(capture(w, config()).jobs[0].avoid.empty());
  EXPECT_TRUE(capture(w, config()).jobs[0].held[1].lost);
}

TEST(Capture, TaintsAndSelectorsChooseNodes) {
  World w = world();
  w.nodes = {node("n1", 2),
             node("n2", 2, R"("taints":[{"key":"k","value":"v","effect":"NoSchedule"}])"),
             node("n3", 2, R"("unschedulable":true)")};
  w.jobs = {job(1, 2)};
  const auto state = capture(w, config());
  EXPECT_EQ(*state.jobs[0].eligible, (std::set<std::string>{"n1", "n3"}));
  EXPECT_FALSE(of(state, "n3").schedulable);
  EXPECT_EQ(of(state, "n3").why_not, "cordoned");
}

TEST(Capture, ANodeThatSaysNoTypeIsOfAnUnknownOne) {
  kube::Node empty = *node("n1", 2);
  empty.meta.labels = {{"nvidia.com/gpu.product", ""}};
  kube::Node none = *node("n2", 2);
  none.meta.labels.clear();
  World w = world();
  w.nodes = {std::make_shared<const kube::Node>(empty), std::make_shared<const kube::Node>(none)};
  const auto state = capture(w, config());
  EXPECT_EQ(of(state, "n1").gpu_type, "unknown");
  EXPECT_EQ(of(state, "n2").gpu_type, "unknown");
}

// Whatever happens to nodes under pods that are allocated: what is recorded can be read.
TEST(Capture, IsASnapshotThatIsRead) {
  World w = world();
  w.jobs = {job(2, 4, kTwoPods)};
  w.pods = {pod("job-w0", "n1", "Running", "job-uid-1")};  // job-w1 is promised
  kube::Node relabelled = *node("n1", 2);
  relabelled.meta.labels = {{"nvidia.com/gpu.product", "B"}};
  const auto relabelled_n1 = std::make_shared<const kube::Node>(relabelled);
  const std::vector<std::vector<std::shared_ptr<const kube::Node>>> seen = {
      {node("n1", 2), node("n2", 2)},
      {relabelled_n1, node("n2", 2)},
      {node("n1", 0), node("n2", 0)},
      {node("n2", 1)}};
  for (const auto& nodes : seen) {
    w.nodes = nodes;
    w.lost_pods.clear();
    if (nodes.size() == 1) w.lost_pods = {w.pods[0]->meta.uid};  // its node is gone
    const sched::Snapshot recorded{capture(w, config()), {}};
    const auto read = sched::read_snapshot(to_text(recorded));
    ASSERT_TRUE(read.ok()) << read.error().what();
    EXPECT_TRUE(*read == recorded);
  }
}

std::shared_ptr<const kube::Node> in_zone(const std::string& name, const std::string& zone) {
  kube::Node labelled = *node(name, 2);
  labelled.meta.labels.emplace_back("topology.kubernetes.io/zone", zone);
  return std::make_shared<const kube::Node>(labelled);
}

TEST(Capture, NodesAreInTheDomainsOfTheirLabels) {
  World w = world();
  w.nodes = {in_zone("n1", "a"), in_zone("n2", ""), node("n3", 2)};
  w.jobs = {job(1, 2, "", R"("topology":{"level":"zone","mode":"required"})")};
  const auto state = capture(w, config());
  EXPECT_EQ(state.levels, (std::vector<std::string>{"zone"}));
  EXPECT_EQ(of(state, "n1").domains, (std::map<std::string, std::string>{{"zone", "a"}}));
  EXPECT_TRUE(of(state, "n2").domains.empty());
  EXPECT_TRUE(of(state, "n3").domains.empty());
  EXPECT_EQ(state.jobs[0].topology, (sched::Topology{"zone", true}));
  w.jobs = {job(1, 2, "", R"("topology":{"level":"rack"})")};
  const sched::Job unknown = capture(w, config()).jobs[0];
  EXPECT_EQ(unknown.topology, std::nullopt);
  EXPECT_EQ(unknown.refused,
            "spec.topology.level: this installation knows no level \"rack\" (it knows: zone); "
            "create the job again with one of those, or have the level added "
            "(scheduler.topologyLevels of the chart)");
  EXPECT_EQ(unknown.refused_as, "NeverFits");
}

TEST(Capture, ADeadlineIsHeard) {
  World w = world();
  w.jobs = {job(1, 2, "", R"("objective":{"deadline":"1970-01-01T00:00:05Z"})")};
  EXPECT_EQ(capture(w, config()).jobs[0].deadline_ms, 5000);
  w.jobs = {job(1, 2, "", R"("objective":{"deadline":"1960-01-01T00:00:00Z"})")};
  EXPECT_EQ(capture(w, config()).jobs[0].deadline_ms, 0);
}

TEST(TopologyLevels, AreAListOfNamesAndLabels) {
  const auto read = parse_topology_levels({"zone=z", "rack=example.com/rack", ""});
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, (std::vector<TopologyLevel>{{"zone", "z"}, {"rack", "example.com/rack"}}));
  EXPECT_TRUE(parse_topology_levels({""}).value().empty());
  const auto wrong = [](const std::vector<std::string>& levels) {
    return parse_topology_levels(levels).error().what();
  };
  EXPECT_EQ(wrong({"zone"}),
            "topology level \"zone\": expected NAME=LABEL, such as rack=example.com/rack");
  EXPECT_EQ(wrong({"a=x", "a=y"}), "topology level \"a=y\": there is another of that name");
  EXPECT_EQ(wrong({"1=a", "2=a", "3=a", "4=a", "5=a", "6=a", "7=a", "8=a", "9=a"}),
            "topology level \"9\": expected at most 8 levels");
}

TEST(Capture, SuspendedFinishedAndDeletedJobsAreAbsent) {
  World w = world();
  w.jobs = {
      job(1, 2, "", R"("suspend":true)"),
      job(1, 2, R"("conditions":[{"type":"Complete","status":"True","reason":"x","message":""}])")};
  EXPECT_TRUE(capture(w, config()).jobs.empty());
}

// Resumed, but the job controller has not said so yet: its old GPUs are still being given back.
TEST(Capture, AJobThatGetsSuspendedIsAbsent) {
  World w = world();
  w.jobs = {job(
      1, 2,
      R"("conditions":[{"type":"Suspended","status":"False","reason":"Suspending","message":""}])")};
  EXPECT_TRUE(capture(w, config()).jobs.empty());
  w.jobs = {job(
      1, 2,
      R"("conditions":[{"type":"Suspended","status":"False","reason":"Resumed","message":""}])")};
  EXPECT_EQ(capture(w, config()).jobs.size(), 1u);
}

std::shared_ptr<const JobObject> job_that_asks_for(const std::string& limits) {
  auto object = std::make_shared<JobObject>(*job(1, 2));
  object->job.spec.pod_template =
      parse(R"({"spec":{"containers":[{"name":"worker","image":"x","resources":{"limits":{)" +
            limits + "}}}]}}");
  return object;
}

// A kubelet refuses a pod for whatever its node lacks, so all of it counts.
TEST(Capture, EveryKindOfResourceThatAPodAsksForIsCounted) {
  World w = world();
  w.jobs = {
      job_that_asks_for(R"("rdma/hca":"2","hugepages-2Mi":"64Mi","ephemeral-storage":"1Gi")")};
  const auto with = [](const std::string& name, const std::string& more) {
    return std::make_shared<const kube::Node>(*kube::Node::decode(parse(
        R"({"metadata":{"name":")" + name + R"(","uid":"u","labels":{"nvidia.com/gpu.product":"A"}},
        "spec":{},"status":{"allocatable":{"cpu":"8","memory":"8Gi","rubato.dev/slot":"4",)" +
        more + R"(},"conditions":[{"type":"Ready","status":"True"}]}})")));
  };
  const std::string all = R"("rdma/hca":"4","hugepages-2Mi":"1Gi","ephemeral-storage":"9Gi")";
  w.nodes = {with("full", all + R"(,"pods":"1")"), with("good", all + R"(,"pods":"110")"),
             with("no-hca", R"("hugepages-2Mi":"1Gi","ephemeral-storage":"9Gi","pods":"110")")};
  w.pods = {pod("other", "full", "Running")};
  const auto state = capture(w, config());
  const sched::Resources& wanted = state.jobs[0].per_pod;
  EXPECT_EQ(of(state, "good").free.copies_of(wanted), 2);  // two network devices each
  EXPECT_EQ(of(state, "full").free.copies_of(wanted), 0);  // one pod at most
  EXPECT_EQ(of(state, "no-hca").free.copies_of(wanted), 0);
}

// Devices "example.com/d0" … of which each has one.
std::string devices(int from, int to) {
  std::string amounts;
  for (int i = from; i < to; ++i)
    amounts += (amounts.empty() ? "\"" : ",\"") + std::string("example.com/d") + std::to_string(i) +
               R"(":"1")";
  return amounts;
}

std::shared_ptr<const kube::Node> node_with(const std::string& amounts) {
  return std::make_shared<const kube::Node>(*kube::Node::decode(
      parse(R"({"metadata":{"name":"n1","uid":"u","labels":{"nvidia.com/gpu.product":"A"}},
      "spec":{},"status":{"allocatable":{"cpu":"8","memory":"8Gi","rubato.dev/slot":"4",)" +
            amounts + R"(},"conditions":[{"type":"Ready","status":"True"}]}})")));
}

TEST(Capture, MoreKindsThanCanBeCountedAreRefused) {
  World w = world();
  w.nodes = {node_with(devices(0, 8))};
  w.jobs = {job_that_asks_for(devices(0, 7))};  // pods themselves are the eighth
  EXPECT_EQ(capture(w, config()).jobs[0].refused, "");
  w.jobs = {job_that_asks_for(devices(0, 8))};
  EXPECT_NE(capture(w, config()).jobs[0].refused.find("more kinds of resources"),
            std::string::npos);
}

// Else whoever names devices that nobody has could use up what can be counted for all.
TEST(Capture, WhatNoNodeOffersIsNamedAndIsNotCounted) {
  World w = world();
  w.nodes = {node_with(devices(0, 1))};
  auto other = std::make_shared<JobObject>(*job_that_asks_for(devices(0, 1)));
  other->job.meta.uid = "job-uid-2";
  w.jobs = {job_that_asks_for(devices(1, 9)), other};
  const auto state = capture(w, config());
  EXPECT_EQ(state.jobs[0].refused,
            "spec.template: asks for example.com/d1, which no node offers; remove it, or add a "
            "node that has it");
  EXPECT_EQ(state.jobs[0].refused_as, "NeverFits");
  EXPECT_EQ(state.jobs[1].refused, "");
  EXPECT_EQ(of(state, "n1").free.copies_of(state.jobs[1].per_pod), 1);
  w.jobs = {job_that_asks_for(R"("example.com/none":"0")")};  // asks for nothing
  EXPECT_EQ(capture(w, config()).jobs[0].refused, "");
}

// A LimitRange of the namespace gives containers what the template does not ask for, and a
// RuntimeClass adds what runs the pod: seen in the trial of the first.
TEST(Capture, WhatAdmissionAddsCountsForTheFirstPodsToo) {
  World w = world();
  const auto labelled = [](const std::string& name, const std::string& label) {
    kube::Node sandbox =
        *node(name, 2, R"("taints":[{"key":"sandbox","value":"kata","effect":"NoSchedule"}])");
    sandbox.meta.labels.emplace_back("runtime", label);
    return std::make_shared<const kube::Node>(std::move(sandbox));
  };
  w.nodes.push_back(labelled("n3", "kata"));
  w.nodes.push_back(labelled("n4", "runc"));
  w.jobs = {job(1, 2)};
  EXPECT_EQ(*capture(w, config()).jobs[0].eligible, (std::set<std::string>{"n1", "n2"}));
  const auto tried = std::make_shared<const kube::Pod>(*kube::Pod::decode(parse(
      R"({"metadata":{"name":"job-w0","namespace":"ns","uid":"u"},"spec":{"overhead":{"cpu":"250m"},
      "nodeSelector":{"runtime":"kata"},"tolerations":[{"key":"sandbox","operator":"Exists"}],
      "containers":[{"name":"worker","resources":{"requests":{"rubato.dev/slot":"1","cpu":"500m"}}}]}})")));
  w.admitted_of = [&](const std::string& uid) { return uid == "job-uid-1" ? tried : nullptr; };
  const auto state = capture(w, config());
  EXPECT_EQ(*state.jobs[0].eligible, (std::set<std::string>{"n3"}));
  EXPECT_EQ(state.jobs[0].per_pod.cpu, 750);
  // The next leader learns it of a pod that is there.
  w.admitted_of = {};
  kube::Pod there = *tried;
  there.meta.owner = kube::Owner{"TrainingJob", "job", "job-uid-1"};
  w.pods = {std::make_shared<const kube::Pod>(std::move(there))};
  EXPECT_EQ(*capture(w, config()).jobs[0].eligible, (std::set<std::string>{"n3"}));
}

// The same of pods that are there, ended or not.
TEST(Capture, WhatAdmissionAddsToPodsIsCounted) {
  World w = world();
  w.jobs = {job(1, 2)};
  EXPECT_EQ(capture(w, config()).jobs[0].per_pod.cpu, 500);
  w.pods = {pod("job-w0", "n1", "Failed", "job-uid-1")};
  EXPECT_EQ(capture(w, config()).jobs[0].per_pod.cpu, 1000);
  w.pods = {pod("other-w0", "n1", "Failed", "job-uid-2")};
  EXPECT_EQ(capture(w, config()).jobs[0].per_pod.cpu, 500);
}

// Pressure keeps pods away, as a kubelet would; what readiness already says does not count twice.
TEST(NodeFit, PressureTaintsCount) {
  const auto plain = pod("p", "", "Pending");
  const auto tainted = [](const std::string& key) {
    return node("n1", 2,
                R"("taints":[{"key":"node.kubernetes.io/)" + key + R"(","effect":"NoSchedule"}])");
  };
  EXPECT_FALSE(admits(*plain, *tainted("disk-pressure")));
  EXPECT_FALSE(admits(*plain, *tainted("pid-pressure")));
  EXPECT_FALSE(admits(*plain, *tainted("network-unavailable")));
  EXPECT_TRUE(admits(*plain, *tainted("memory-pressure")));
  kube::Pod greedless = *plain;  // of the lowest class, whatever devices it has
  std::erase_if(greedless.requests, [](const auto& amount) { return amount.resource == "cpu"; });
  EXPECT_FALSE(admits(greedless, *tainted("memory-pressure")));
  greedless.tolerations = {{"node.kubernetes.io/memory-pressure", true, "", ""}};
  EXPECT_TRUE(admits(greedless, *tainted("memory-pressure")));
  EXPECT_TRUE(admits(*plain, *tainted("not-ready")));
}

std::shared_ptr<const QueueObject> queue(const std::string& spec,
                                         const std::string& name = "default") {
  return std::make_shared<const QueueObject>(*QueueObject::decode(
      parse(R"({"metadata":{"name":")" + name + R"(","uid":"q"},"spec":{)" + spec + "}}")));
}

// So that what is recorded of it can be read again.
TEST(Capture, NamesNoParentThatDoesNotCount) {
  World w = world();
  w.queues = {queue(R"("parent":"default")", "part"), queue(R"("parent":"nowhere")", "lost"),
              queue(R"("parent":"b")", "a"), queue(R"("parent":"a")", "b")};
  const auto queues = capture(w, config()).queues;
  EXPECT_EQ(queues.at("part").parent, "default") << "which nobody had to create";
  for (const char* name : {"lost", "a", "b"}) EXPECT_EQ(queues.at(name).parent, "") << name;
}

TEST(Capture, EachNamespaceHasAQueueOfItsOwnWhereTheQueueLimitsThem) {
  World w = world();
  w.queues = {
      queue(R"("limitsPerNamespace":[{"gpuType":"*","limit":2},{"gpuType":"A","limit":1}])"),
      queue("", "other")};
  w.jobs = {job(1, 2)};
  const auto state = capture(w, config());
  EXPECT_EQ(state.jobs[0].queue, "default/ns");
  const sched::Queue& own = state.queues.at("default/ns");
  EXPECT_EQ(own.parent, "default");
  EXPECT_TRUE(own.of_one_user);
  EXPECT_EQ(own.quotas.at("*").limit, 2);
  EXPECT_EQ(own.quotas.at("A").limit, 1);
  EXPECT_FALSE(state.queues.at("default").quotas.contains("*"));
  w.queues = {queue("", "other")};
  EXPECT_EQ(capture(w, config()).jobs[0].queue, "default");
}

TEST(Capture, CellsOfAQueueAndWhichPodsAreInOne) {
  World w = world();
  w.queues = {queue(R"("cells":[{"gpuType":"A","level":"node","count":2}])")};
  w.jobs = {job(1, 2,
                R"("allocation":{"epoch":1,"nextOrdinal":1,"gpus":1,"pods":[
       {"name":"job-w0","ordinal":0,"node":"n1","gpuType":"A","gpus":1,"cell":"node"}]})")};
  const auto state = capture(w, config());
  EXPECT_EQ(state.queues.at("default").cells,
            (std::vector<sched::CellQuota>{{"A", sched::kNodeLevel, 2}}));
  EXPECT_EQ(state.jobs[0].held[0].cell, "node");
}

TEST(Capture, AQueueSaysWhichNamespacesMayUseIt) {
  World w = world();
  w.jobs = {job(1, 2)};
  w.queues = {queue(R"("namespaces":["ns","team-b"])")};
  EXPECT_EQ(capture(w, config()).jobs[0].not_admitted, "");
  w.queues = {queue(R"("namespaces":["team-a","team-b"])")};
  EXPECT_EQ(capture(w, config()).jobs[0].not_admitted,
            "queue \"default\" takes jobs of other namespaces only (team-a, team-b); change "
            "spec.queue, or add ns to the queue's spec.namespaces");
}

// Of the same model, batch and pods; each job's own points come first.
TEST(Capture, SpeedsAreSharedByJobsThatTrainTheSame) {
  const JobObject like = again(*job(1, 4, measured(1, 90)), "job-uid-2");
  JobObject unlike =
      again(*job(1, 4, measured(2, 1), R"("accelerators":{"mix":false})"), "job-uid-3");
  unlike.profile = "another";
  World w = world();
  w.jobs = {job(1, 4, measured(4, 300)), std::make_shared<const JobObject>(like),
            std::make_shared<const JobObject>(unlike)};
  const auto state = capture(w, config());
  using Points = std::vector<sched::ThroughputPoint>;
  EXPECT_EQ(state.jobs[0].measured, (Points{{"A", 4, 300}, {"A", 1, 90}}));
  EXPECT_EQ(state.jobs[1].measured, (Points{{"A", 1, 90}, {"A", 4, 300}}));
  EXPECT_EQ(state.jobs[2].measured, (Points{{"A", 2, 1}}));
}

std::shared_ptr<const ProfileObject> profile(const std::string& kind, const std::string& points) {
  const auto text =
      R"({"metadata":{"name":"p"},"spec":{"model":")" + kind + R"(","points":[)" + points + "]}}";
  return std::make_shared<const ProfileObject>(
      ProfileObject::decode(json::parse(text).value()).value());
}

// Own points, then the profiles' (the later of two, of no time the last), then those of others.
TEST(Capture, SpeedsAreReadFromThroughputProfiles) {
  const JobObject other = again(*job(1, 4, measured(8, 90)), "job-uid-2");
  World w = world();
  w.jobs = {job(1, 4, measured(4, 300)), std::make_shared<const JobObject>(other)};
  const std::string kind = w.jobs[0]->profile;
  w.profiles = {
      profile(kind, R"({"gpuType":"A","gpus":4,"tokensPerSecond":1},
                       {"gpuType":"B","gpus":1,"tokensPerSecond":5},
                       {"gpuType":"A","gpus":8,"tokensPerSecond":60,"measured":"2026-01-01T00:00:00Z"})"),
      profile(kind,
              R"({"gpuType":"B","gpus":1,"tokensPerSecond":7,"measured":"2026-01-02T00:00:00Z"})"),
      profile("another", R"({"gpuType":"C","gpus":1,"tokensPerSecond":9})")};
  using Points = std::vector<sched::ThroughputPoint>;
  EXPECT_EQ(capture(w, config()).jobs[0].measured,
            (Points{{"A", 4, 300}, {"B", 1, 7}, {"A", 8, 60}}));
}

// By the steps left at the speed that was measured; from the status, which a new leader sees too.
TEST(Capture, WhatAJobHasHadAndHasLeftIsInItsStatus) {
  World w = world();
  w.jobs = {job(1, 4, R"("usefulGPUSeconds":90,"lostGPUSeconds":{"queue":4,"rescale":3,"failure":2,
      "checkpoint":1},"gpuSecondsByType":[{"gpuType":"A","seconds":70},{"gpuType":"B","seconds":20.5}],
      "progress":{"step":75,"steps":100,"tokens":9600},
      "rescales":{"count":2,"last":{"reason":"recover: node n1 lost","generation":3,"from":2,"to":1,"stallSeconds":9}},
      "performance":{"byType":[{"gpuType":"B","gpus":1,"tokensPerSecond":64},
                               {"gpuType":"A","gpus":1,"tokensPerSecond":128}],
                     "startSeconds":12.5,"joinSeconds":1e300,"stallSeconds":0.25})"),
            job(1, 4)};
  const auto state = capture(w, config());
  EXPECT_EQ(state.jobs[0].attained_gpu_ms, 100'000);
  EXPECT_EQ(state.jobs[0].attained_by_type,
            (std::map<std::string, sched::GpuMs>{{"A", 70'000}, {"B", 20'500}}));
  EXPECT_EQ(state.jobs[0].duration_ms, 100'000);  // a step is 8 x 16 tokens
  EXPECT_EQ(state.jobs[0].remaining_ms, 25'000);
  EXPECT_EQ(state.jobs[0].restarts, 2);
  EXPECT_EQ(state.jobs[0].stall_ms, 250) << "of a planned change, which the last was not";
  EXPECT_EQ(state.jobs[0].start_ms, 12'500);
  EXPECT_GT(state.jobs[0].join_ms, 0) << "bounded";
  EXPECT_EQ(state.jobs[0].allocated_ms, -1);
  EXPECT_EQ(
      state.now_ms,
      1000 * std::chrono::duration_cast<std::chrono::seconds>(w.wall.time_since_epoch()).count());
}

TEST(Capture, WhoIsNotToBePreemptedAndSinceWhenItRuns) {
  World w = world();
  w.jobs = {job(1, 2,
                R"("allocation":{"epoch":3,"nextOrdinal":1,"gpus":1,"since":"2026-11-21T07:30:00Z",
                "runningSince":"2026-11-21T07:00:00Z",
                "pods":[{"name":"job-w0","ordinal":0,"node":"n1","gpuType":"A","gpus":1}]})",
                R"("preemptible":false,"minRunSeconds":90)"),
            job(1, 2)};
  const auto state = capture(w, config());
  EXPECT_FALSE(state.jobs[0].preemptible);
  EXPECT_EQ(state.jobs[0].min_run_ms, 90'000);
  EXPECT_EQ(state.jobs[0].running_since_ms, state.now_ms - 3'600'000);
  EXPECT_EQ(state.jobs[0].allocated_ms, state.now_ms - 1'800'000);
  EXPECT_TRUE(state.jobs[1].preemptible);
  EXPECT_EQ(state.jobs[1].min_run_ms, 0);
  EXPECT_EQ(state.jobs[1].running_since_ms, -1);
}

TEST(Capture, WhoMayPreemptIsTheQueuesAndThePriorityClasssSay) {
  World w = world();
  w.jobs = {job(1, 2, "", R"("priorityClassName":"polite")")};
  w.queues = {queue("")};
  w.priorities = {std::make_shared<const PriorityClassObject>(*PriorityClassObject::decode(
      parse(R"({"metadata":{"name":"polite","uid":"c"},"value":7,"preemptionPolicy":"Never"})")))};
  const auto state = capture(w, config());
  EXPECT_EQ(state.jobs[0].priority, 7);
  EXPECT_FALSE(state.jobs[0].may_preempt);
  EXPECT_EQ(state.queues.at("default").preempts, sched::Preempts::kOwnQueue);
}

}  // namespace
}  // namespace rubato::control
