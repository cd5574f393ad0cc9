// What a spec says of a job's life: how often it may fail, how long it may take, how long it stays.
#include "operator/api/resources.h"
#include "tests/sim/sim_script.h"
#include "tests/sim/told_stories.h"

#include <algorithm>
#include <optional>

#include <gtest/gtest.h>

namespace rubato::sim {
namespace {

constexpr Duration kGangStart = 20s;  // of these operators
constexpr Duration kTeardownExtra = 5s;
constexpr Duration kProgress = 5s;  // a job that trains is looked at so often, and more often

class Life {
 public:
  explicit Life(std::vector<JobPlan> jobs)
      : cluster_(scenario(std::move(jobs)), {.listening = true}) {
    cluster_.start();
  }

  bool until(const std::function<bool()>& done, Duration limit) {
    return cluster_.run_until(done, limit);
  }
  void pass(Duration time) {
    cluster_.run_until([] { return false; }, time);
  }
  bool is_there(const std::string& job) const {
    return cluster_.witness().jobs().contains("default/" + job);
  }
  const json::Value& status(const std::string& job) const {
    static const json::Value kNone;
    const auto found = cluster_.witness().jobs().find("default/" + job);
    return found == cluster_.witness().jobs().end() ? kNone : found->second.object["status"];
  }
  bool is(const std::string& job, const std::string& state) const {
    return status(job)["state"].string_view_or("") == state;
  }
  std::int64_t step(const std::string& job) const {
    return status(job)["progress"]["step"].int_or(0);
  }
  std::int64_t restarts(const std::string& job) const {
    return status(job)["restarts"]["count"].int_or(0);
  }
  bool says(const std::string& job, const std::string& words) const {
    const auto& conditions = status(job)["conditions"].items();
    return std::any_of(conditions.begin(), conditions.end(), [&](const json::Value& condition) {
      return condition["message"].string_view_or("").find(words) != std::string_view::npos;
    });
  }
  // It commits steps that it has not committed yet.
  bool goes_on(const std::string& job) {
    const std::int64_t from = step(job);
    return until([&] { return is(job, "Running") && step(job) > from; }, 4 * kSoon);
  }
  void inject(const Fault& fault) { cluster_.inject(fault); }
  void patch(const std::string& job, const std::string& what) {
    const auto patched = cluster_.server().patch(api::kTrainingJob, {"default", job},
                                                 kube::PatchType::kMerge, *json::parse(what));
    EXPECT_TRUE(patched.ok()) << job;
  }
  void remove(const std::string& job) {
    EXPECT_TRUE(cluster_.server().remove(api::kTrainingJob, {"default", job}).ok()) << job;
  }
  // Decisions about the GPUs of the job are refused until lift().
  void refuse_decisions(const std::string& job, const Error& error) {
    cluster_.leader()->trouble().refuses =
        [=](const kube::Operation& operation) -> std::optional<Error> {
      const bool is_meant = operation.key.name == job && is_decision(operation);
      return is_meant ? std::optional(error) : std::nullopt;
    };
  }
  void lift() { cluster_.leader()->trouble().refuses = {}; }
  bool holds_gpus(const std::string& job) const { return held_on(cluster_, job, "n0") > 0; }
  // Pods that have not ended, of those that are being deleted or of the others.
  std::ptrdiff_t pods(bool are_deleting) const {
    const auto& all = cluster_.witness().pods();
    return std::count_if(all.begin(), all.end(), [&](const auto& pod) {
      return !pod.second.finished && pod.second.deleting == are_deleting;
    });
  }
  // That all Secrets of jobs have together; none: a job has no Secret.
  std::optional<std::size_t> keys() {
    const auto secrets = cluster_.server().list(kube::types::kSecret, "default", {});
    if (!secrets.ok() || secrets->items.empty()) return std::nullopt;
    std::size_t count = 0;
    for (const json::Value& secret : secrets->items) count += secret["data"].size();
    return count;
  }
  // The leader's wall clock, against those of all others.
  void set_clock(Duration by) { cluster_.leader()->process()->skew(Duration(0), by); }
  const json::Value& object(const std::string& job) const {
    return cluster_.witness().jobs().at("default/" + job).object;
  }

 private:
  static Scenario scenario(std::vector<JobPlan> jobs) {
    Scenario scenario;
    scenario.nodes = {{"n0", "fast", 1}};
    scenario.queues = {{"default", 0}};
    scenario.jobs = std::move(jobs);
    return scenario;
  }

  WholeCluster cluster_;
};

// At exactly maxRestarts it trains on, beyond it fails; neither a resume nor another job that takes
// its GPU makes it forget.
TEST(LifecycleStories, RestartsAreCountedOverResumesAndRequeues) {
  JobPlan crashing = training("crashing", 1, 1);
  crashing.max_restarts = 3;
  JobPlan urgent = training("urgent", 1, 1);
  urgent.priority_class = "high";
  urgent.shape.steps = 10;
  urgent.submit_at = 5min;
  Life life({crashing, urgent});
  const auto crash = [&](std::int64_t count) {
    ASSERT_TRUE(life.goes_on("crashing")) << life.status("crashing")["state"].string_or("");
    life.inject({.kind = FaultKind::kWorkerKilled});
    ASSERT_TRUE(life.until([&] { return life.restarts("crashing") == count; }, kSoon)) << count;
  };
  crash(1);
  ASSERT_TRUE(life.goes_on("crashing"));
  life.inject({FaultKind::kSuspend, 0s, kSoon, 0, 0});
  ASSERT_TRUE(life.until([&] { return life.is("crashing", "Suspended"); }, kSoon));
  EXPECT_EQ(life.restarts("crashing"), 1);
  crash(2);
  ASSERT_TRUE(life.goes_on("crashing"));
  ASSERT_TRUE(life.until([&] { return life.is("urgent", "Complete"); }, 6min));
  EXPECT_EQ(life.restarts("crashing"), 2);
  crash(3);
  ASSERT_TRUE(life.goes_on("crashing")) << "three are allowed";
  life.inject({.kind = FaultKind::kWorkerKilled});
  ASSERT_TRUE(life.until([&] { return life.is("crashing", "Failed"); }, kSoon));
  EXPECT_EQ(life.status("crashing")["reason"].string_view_or(""), "ReachedMaxRestarts");
  EXPECT_EQ(life.restarts("crashing"), 4);
}

TEST(LifecycleStories, WhatHasEndedIsDeletedAfterItsTimeToLiveAndNotBefore) {
  for (const char* end : {"Complete", "Failed"}) {
    JobPlan job = training("short", 1, 1);
    job.ttl_seconds = 40;
    if (end == std::string("Complete"))
      job.shape.steps = 10;
    else
      job.max_restarts = 0;
    Life life({job});
    if (job.max_restarts == 0) {
      ASSERT_TRUE(life.goes_on("short"));
      life.inject({.kind = FaultKind::kWorkerKilled});
    }
    ASSERT_TRUE(life.until([&] { return life.is("short", end); }, 4 * kSoon)) << end;
    const auto is_gone = [&] { return !life.is_there("short"); };
    EXPECT_FALSE(life.until(is_gone, 40s - kJitter)) << end;
    EXPECT_TRUE(life.until(is_gone, 2 * kJitter)) << end;
  }
}

// Suspended, it will need them again.
TEST(LifecycleStories, AJobThatIsOverHasNoKeysLeft) {
  for (const char* end : {"Complete", "Failed"}) {
    JobPlan job = training("short", 1, 1);
    if (end == std::string("Complete"))
      job.shape.steps = 2000;
    else
      job.max_restarts = 0;
    Life life({job});
    ASSERT_TRUE(life.goes_on("short"));
    life.inject({FaultKind::kSuspend, 0s, kSoon, 0, 0});
    ASSERT_TRUE(life.until([&] { return life.is("short", "Suspended"); }, kSoon));
    life.pass(kSoon / 2);
    EXPECT_EQ(life.keys(), 4U);
    ASSERT_TRUE(life.goes_on("short"));
    if (job.max_restarts == 0) life.inject({.kind = FaultKind::kWorkerKilled});
    ASSERT_TRUE(life.until([&] { return life.is("short", end); }, 60min)) << end;
    const auto is_empty = [&] {
      return life.keys() == 0U && life.status("short")["credentials"].is_null();
    };
    EXPECT_TRUE(life.until(is_empty, kGrace + kSoon)) << end;
    EXPECT_TRUE(life.is("short", end));
  }
}

// When the first job ends follows from its steps and their time; the second one has its GPU then.
TEST(LifecycleStories, WhoWaitsIsToldWhenItIsToStart) {
  JobPlan first = training("first", 1, 1);
  first.shape.steps = 2000;
  JobPlan second = training("second", 1, 1);
  second.submit_at = 30s;
  Life life({first, second});
  const auto told = [&] {
    return parse_rfc3339(life.status("second")["expectedStartTime"].string_view_or(""));
  };
  ASSERT_TRUE(life.until([&] { return life.is("second", "Queued") && told(); }, 3min));
  const WallTime expected = *told();
  ASSERT_TRUE(life.until([&] { return life.is("first", "Complete"); }, 60min));
  ASSERT_TRUE(life.until([&] { return life.is("second", "Running"); }, kSoon));
  EXPECT_FALSE(told());
  const auto began = parse_rfc3339(life.status("second")["startTime"].string_view_or(""));
  const auto queued = parse_rfc3339(life.status("first")["startTime"].string_view_or(""));
  ASSERT_TRUE(began && queued);
  const auto took = *began - *queued;
  EXPECT_GT(expected - *queued, took * 8 / 10);
  EXPECT_LT(expected - *queued, took * 12 / 10);
}

// As RequestQueue is: what the engine keeps of a job that is done is its own.
TEST(LifecycleStories, AScriptIsOverOnceItsWorkerHasFinished) {
  bool has_finished = false;
  const auto script = make_sim_script([] {}, [&] { return has_finished; });
  EXPECT_FALSE(script->is_over());
  EXPECT_TRUE(script->loaded(1).ok());
  has_finished = true;
  EXPECT_TRUE(script->is_over());
  EXPECT_EQ(script->loaded(1).error().code(), Code::kCancelled);
  EXPECT_EQ(script->compute({}, {}).error().code(), Code::kCancelled);
  EXPECT_EQ(script->validate(0).error().code(), Code::kCancelled);
}

// The step that its script calls the last one is the last, whoever is lost while it ends.
TEST(LifecycleStories, AScriptEndsItsJobWhateverBefallsItThen) {
  for (const FaultKind kind : {FaultKind::kWorkerKilled, FaultKind::kPodCrash, FaultKind::kPowerCut,
                               FaultKind::kSuspend, FaultKind::kOperatorCrash}) {
    for (const std::uint64_t pick : {0, 1}) {
      Scenario scenario;
      scenario.nodes = {{"n0", "fast", 1}, {"n1", "fast", 1}};
      scenario.queues = {{"default", 0}};
      scenario.jobs = {training("ends", 1, 2)};
      scenario.jobs[0].shape.is_script = true;
      scenario.jobs[0].shape.ends_at = 60;
      WholeCluster cluster(scenario, {.listening = true});
      cluster.start();
      ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "ends") == 2; }, kSoon));
      const auto has_trained = [&] { return cluster.world("ends").highest_step() >= 60; };
      ASSERT_TRUE(cluster.run_until(has_trained, 10 * kSoon));
      cluster.inject({kind, 0s, kJitter, pick, 0});
      const auto& job = cluster.witness().jobs().at("default/ends");
      const auto is_complete = [&] {
        return job.object["status"]["state"].string_view_or("") == "Complete";
      };
      ASSERT_TRUE(cluster.run_until(is_complete, 10 * kSoon)) << static_cast<int>(kind);
      EXPECT_EQ(job.object["status"]["reason"].string_view_or(""), "EndedByScript");
      EXPECT_EQ(job.object["status"]["progress"]["step"].int_or(0), 60);
    }
  }
}

TEST(LifecycleStories, WithoutATimeToLiveWhatHasEndedStays) {
  JobPlan job = training("short", 1, 1);
  job.shape.steps = 10;
  Life life({job});
  ASSERT_TRUE(life.until([&] { return life.is("short", "Complete"); }, 4 * kSoon));
  life.pass(10min);
  EXPECT_TRUE(life.is_there("short"));
}

// Whose pods did not start is tried again with what is free, and stops nobody for a while.
TEST(LifecycleStories, AJobWhosePodsCannotStartDoesNotStopAHealthyOneAgainAndAgain) {
  JobPlan urgent = training("urgent", 1, 1);
  urgent.priority_class = "high";
  urgent.shape.steps = 10;
  urgent.submit_at = 1min;
  Life life({training("healthy", 1, 1), urgent});
  ASSERT_TRUE(life.goes_on("healthy"));
  life.until([&] { return life.is_there("urgent"); }, 2min);
  life.inject({.kind = FaultKind::kNodeIdle, .spell = kGangStart + kSoon / 2});
  const auto has_failed = [&] {
    return life.status("urgent")["reason"].string_view_or("") == "GangTimeout";
  };
  ASSERT_TRUE(life.until(has_failed, 3 * kGangStart));
  ASSERT_TRUE(life.goes_on("healthy"));
  ASSERT_TRUE(
      life.until([&] { return life.says("urgent", "nobody makes room for it before"); }, kSoon));
  EXPECT_FALSE(life.until([&] { return !life.is("healthy", "Running"); }, kGangStart / 2));
  ASSERT_TRUE(life.until([&] { return life.is("urgent", "Complete"); }, 5 * kGangStart));
  EXPECT_TRUE(life.goes_on("healthy"));
}

// Counted from the first step after it was submitted or resumed.
TEST(LifecycleStories, ADeadlineEndsAJobInTimeAndBeginsAnewWithAResume) {
  JobPlan job = training("limited", 1, 1);
  job.deadline_seconds = 60;
  Life life({job});
  ASSERT_TRUE(life.until([&] { return life.is("limited", "Running"); }, kSoon));
  life.pass(40s);
  life.inject({FaultKind::kSuspend, 0s, 2min, 0, 0});
  ASSERT_TRUE(life.until([&] { return life.is("limited", "Suspended"); }, kSoon));
  life.pass(100s);
  ASSERT_TRUE(life.is("limited", "Suspended"));
  ASSERT_TRUE(life.until([&] { return life.is("limited", "Running"); }, 2 * kSoon));
  const auto has_failed = [&] { return life.is("limited", "Failed"); };
  EXPECT_FALSE(life.until(has_failed, 60s - kJitter));
  EXPECT_TRUE(life.until(has_failed, 2 * kJitter + kProgress));
  EXPECT_EQ(life.status("limited")["reason"].string_view_or(""), "DeadlineExceeded");
}

// A GPU of each type is free. What a person says of the speeds of its kind, whose digest the status
// of another had, decides on which one a job begins; a leader that never saw one of them knows it.
TEST(LifecycleStories, TheSecondJobOfAKindIsPlacedByThroughputProfiles) {
  for (const std::string better : {"fast", "slow"}) {
    Scenario scenario;
    scenario.nodes = {{"n-fast", "fast", 1}, {"n-slow", "slow", 1}};
    scenario.queues = {{"default", 0}};
    scenario.jobs = {training("first", 1, 1), training("second", 1, 1)};
    scenario.jobs[0].shape.steps = 10;
    scenario.jobs[0].ttl_seconds = 5;
    scenario.jobs[1].submit_at = 5min;
    WholeCluster cluster(scenario, {.listening = true});
    cluster.start();
    std::string kind;
    const auto is_there = [&](const std::string& job) {
      const auto found = cluster.witness().jobs().find("default/" + job);
      const bool is = found != cluster.witness().jobs().end();
      if (is) kind = found->second.object["status"]["throughputProfile"].string_or(kind);
      return is;
    };
    ASSERT_TRUE(cluster.run_until([&] { return is_there("first"); }, kSoon));
    ASSERT_TRUE(cluster.run_until([&] { return !is_there("first"); }, 4min));
    const auto kept = cluster.server().get(api::kThroughputProfile, {"", kind});
    ASSERT_TRUE(kept.ok()) << kind;
    EXPECT_EQ((*kept)["spec"]["points"].size(), 1u);
    json::Value points = json::Value::array();
    for (const char* type : {"fast", "slow"})
      points.push_back(json::Value::object({{"gpuType", type},
                                            {"gpus", 1},
                                            {"tokensPerSecond", type == better ? 1e6 : 1.0},
                                            {"measured", "2100-01-01T00:00:00Z"}}));
    ASSERT_TRUE(cluster.server()
                    .create(api::kThroughputProfile, "",
                            json::Value::object(
                                {{"apiVersion", api::kThroughputProfile.api_version()},
                                 {"kind", api::kThroughputProfile.kind},
                                 {"metadata", json::Value::object({{"name", "from-the-vendor"}})},
                                 {"spec", json::Value::object(
                                              {{"model", kind}, {"points", std::move(points)}})}}))
                    .ok());
    cluster.inject({.kind = FaultKind::kOperatorCrash});
    ASSERT_TRUE(cluster.run_until([&] { return members_of(cluster, "second") > 0; }, 6min));
    EXPECT_EQ(held_on(cluster, "second", "n-" + better), 1) << better;
  }
}

// One that waits says so, one that trains goes on; both are suspended and deleted like any other.
// Kubernetes takes a zone of any four digits.
TEST(LifecycleStories, AJobWhoseSpecCannotBeReadIsToldAndDeleted) {
  Life life({training("trains", 1, 1), training("waits", 9, 9)});
  ASSERT_TRUE(life.until([&] { return life.is("trains", "Running"); }, kSoon));
  for (const char* job : {"trains", "waits"})
    life.patch(job, R"({"spec":{"objective":{"deadline":"2126-11-21T07:38:29+99:99"}}})");
  EXPECT_TRUE(life.until([&] { return life.says("waits", "spec.objective.deadline"); }, kSoon));
  EXPECT_EQ(life.status("waits")["reason"].string_view_or(""), "InvalidSpec");
  EXPECT_TRUE(life.goes_on("trains"));
  life.patch("trains", R"({"spec":{"suspend":true}})");
  EXPECT_TRUE(life.until([&] { return life.is("trains", "Suspended"); }, kSoon));
  for (const char* job : {"trains", "waits"}) life.remove(job);
  EXPECT_TRUE(
      life.until([&] { return !life.is_there("trains") && !life.is_there("waits"); }, kSoon));
}

// The next leader knows how it trains, though not by when it is to be done.
TEST(LifecycleStories, AJobWhoseDeadlineCannotBeReadIsLedByTheNextLeader) {
  Life life({training("trains", 1, 1)});
  ASSERT_TRUE(life.goes_on("trains"));
  life.patch("trains", R"({"spec":{"objective":{"deadline":"2126-11-21T07:38:29+99:99"}}})");
  ASSERT_TRUE(life.goes_on("trains"));
  life.inject({.kind = FaultKind::kOperatorCrash, .pick = 1});
  life.pass(kSoon);
  EXPECT_TRUE(life.goes_on("trains"));
  life.inject({.kind = FaultKind::kWorkerKilled});
  EXPECT_TRUE(life.until([&] { return life.restarts("trains") == 1; }, kSoon));
  EXPECT_TRUE(life.goes_on("trains"));
}

// deletionTimestamp is of the API server's clock. The last checkpoint cannot be written, so all of
// the grace is used, and no more.
TEST(LifecycleStories, ADeletionHasItsGraceWhateverTheLeadersClockSays) {
  for (const Duration by : {Duration(1h), Duration(-1h)}) {
    Life life({training("saving", 1, 1)});
    ASSERT_TRUE(life.goes_on("saving"));
    life.set_clock(by);
    life.inject({.kind = FaultKind::kDiskFull, .spell = 1h});
    life.pass(1s);
    life.remove("saving");
    const auto is_gone = [&] { return !life.is_there("saving"); };
    EXPECT_FALSE(life.until(is_gone, kGrace - kJitter)) << by.count();
    EXPECT_TRUE(life.until(is_gone, 2 * kJitter + kSoon)) << by.count();
  }
}

// It cannot end by itself: its last checkpoint cannot be written, and then its pod stands still.
TEST(LifecycleStories, WorkersOfAFinishedJobAreEndedInTimeWhateverTheLeadersClockSays) {
  JobPlan job = training("limited", 1, 1);
  job.deadline_seconds = 30;
  Life life({job});
  ASSERT_TRUE(life.goes_on("limited"));
  life.inject({.kind = FaultKind::kDiskFull, .spell = 1h});
  ASSERT_TRUE(life.until([&] { return life.is("limited", "Failed"); }, 2min));
  life.inject({.kind = FaultKind::kPodFrozen, .spell = 1h});
  life.set_clock(-1h);
  life.pass(1s);
  EXPECT_EQ(life.pods(false), 1);
  EXPECT_TRUE(life.until([&] { return life.pods(false) == 0; }, kTeardownExtra + kJitter));
}

// The times of pods are of the API server's clock.
TEST(LifecycleStories, AGangIsWaitedForNoLongerWhateverTheLeadersClockSays) {
  JobPlan idle = training("idle", 1, 1);
  idle.submit_at = 20s;
  Life life({idle});
  ASSERT_TRUE(life.until([&] { return life.is_there("idle"); }, 2min));
  life.set_clock(-1h);
  life.inject({.kind = FaultKind::kNodeIdle, .spell = 1h});
  const auto has_failed = [&] {
    return life.status("idle")["reason"].string_view_or("") == "GangTimeout";
  };
  EXPECT_TRUE(life.until(has_failed, 2 * kGangStart + kSoon));
}

// Of a gang whose pods have come, how long its workers may take to start is no matter of gangStart.
TEST(LifecycleStories, AGangThatHasComeIsWaitedForWhileItsWorkersStart) {
  JobPlan slow = training("slow", 1, 1);
  slow.submit_at = 20s;
  Life life({slow});
  ASSERT_TRUE(life.until([&] { return life.is_there("slow"); }, 2min));
  life.inject({.kind = FaultKind::kDataSlow, .spell = 1h, .more = 49});
  Duration began{};
  const auto trains = [&] {
    EXPECT_NE(life.status("slow")["reason"].string_view_or(""), "GangTimeout");
    return life.step("slow") > 0 || HasFailure();
  };
  for (; !life.until(trains, 1s) && began < 5min; began += 1s) continue;
  EXPECT_GT(began, kGangStart) << "the story proves nothing";
  EXPECT_GT(life.step("slow"), 0);
}

// Of a time to live that is over, and of GPUs that nobody may give back, neither waits for the
// other for ever.
TEST(LifecycleStories, WhatHasEndedIsDeletedThoughItsGpusMayNotBeGivenBack) {
  for (const Code code : {Code::kExhausted, Code::kInvalid}) {
    JobPlan job = training("short", 1, 1);
    job.shape.steps = 10;
    job.ttl_seconds = 5;
    Life life({job});
    ASSERT_TRUE(life.until([&] { return life.is("short", "Running"); }, kSoon));
    life.refuse_decisions("short", Error(code, "not now"));
    ASSERT_TRUE(life.until([&] { return life.is("short", "Complete"); }, 4 * kSoon));
    EXPECT_TRUE(life.until([&] { return !life.is_there("short"); }, 4 * kSoon)) << name_of(code);
  }
}

// Another's finalizer keeps the object, and with it what it holds: it is asked for until it is
// given back, also when nothing else of the job is left.
TEST(LifecycleStories, ADeletedJobGivesItsGpusBackThoughThatIsRefusedAtFirst) {
  for (const Duration spell : {kGrace, kGrace + kTeardownExtra + kSoon}) {
    JobPlan next = training("next", 1, 1);
    next.submit_at = 1min;
    Life life({training("kept", 1, 1), next});
    ASSERT_TRUE(life.goes_on("kept"));
    ASSERT_TRUE(life.until([&] { return life.is_there("next"); }, 2min));
    life.patch("kept", R"({"metadata":{"finalizers":["rubato.dev/teardown","example.dev/kept"]}})");
    life.refuse_decisions("kept", Error(Code::kExhausted, "too many requests"));
    life.remove("kept");
    life.pass(spell);
    EXPECT_TRUE(life.holds_gpus("kept")) << "it could not be written";
    EXPECT_EQ(life.object("kept")["metadata"]["finalizers"].size(), spell == kGrace ? 2U : 1U);
    life.lift();
    EXPECT_TRUE(life.until([&] { return !life.holds_gpus("kept"); }, kSoon)) << spell.count();
    EXPECT_TRUE(life.until([&] { return life.is("next", "Running"); }, kSoon));
    EXPECT_TRUE(life.until([&] { return life.says("kept", "holds nothing any more"); }, kSoon));
  }
}

TEST(LifecycleStories, ADeadlineInTheYear9999IsKept) {
  Life life({training("patient", 1, 1)});
  ASSERT_TRUE(life.until([&] { return life.is("patient", "Running"); }, kSoon));
  life.patch("patient", R"({"spec":{"objective":{"deadline":"9999-12-31T23:59:59Z"}}})");
  EXPECT_TRUE(life.goes_on("patient"));
  EXPECT_FALSE(life.says("patient", "was to be done by"));
}

// Ours is done with it, and what it says last stays true for as long as the other keeps it.
TEST(LifecycleStories, AJobThatAnothersFinalizerKeepsSaysThatItIsDeleted) {
  Life life({training("trains", 1, 1), training("waits", 9, 9)});
  ASSERT_TRUE(life.until([&] { return life.is("trains", "Running") && life.is("waits", "Queued"); },
                         kSoon));
  for (const char* job : {"trains", "waits"}) {
    life.patch(job, R"({"metadata":{"finalizers":["rubato.dev/teardown","example.dev/kept"]}})");
    life.remove(job);
  }
  const auto is_kept = [&](const std::string& job) {
    return life.is(job, "Terminating") && life.object(job)["metadata"]["finalizers"].size() == 1;
  };
  EXPECT_TRUE(life.until([&] { return is_kept("trains") && is_kept("waits"); }, kSoon));
  life.pass(kSoon);
  for (const char* job : {"trains", "waits"}) {
    EXPECT_TRUE(is_kept(job));
    EXPECT_TRUE(life.says(job, "holds nothing any more"));
  }
}

}  // namespace
}  // namespace rubato::sim
