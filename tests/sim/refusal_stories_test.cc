// What the API server refuses an operator: a quota, a policy, a webhook that is away, a priority
// class that is gone.
#include "kube/errors.h"
#include "operator/api/resources.h"
#include "tests/sim/told_stories.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

namespace rubato::sim {
namespace {

Error forbidden(const std::string& why) {
  return kube::error_from_status(403, kube::make_status(403, "Forbidden", why));
}

class RefusalStories : public ::testing::Test {
 protected:
  void start(std::vector<NodePlan> nodes) {
    Scenario scenario;
    scenario.nodes = std::move(nodes);
    scenario.queues = {{"default", 0}};
    cluster_ = std::make_unique<WholeCluster>(scenario, RunOptions{.listening = true});
    cluster_->start();
    ASSERT_TRUE(until([&] { return cluster_->leader() != nullptr; }));
  }
  bool until(const std::function<bool()>& done, Duration limit = kSoon) {
    return cluster_->run_until(done, limit);
  }
  // Until lift(): what is asked of objects of whose names this is the beginning.
  void refuse(
      kube::Verb verb, const std::string& plural, const std::string& beginning, const Error& error,
      std::function<bool()> when = [] { return true; }) {
    cluster_->leader()->trouble().refuses =
        [=](const kube::Operation& operation) -> std::optional<Error> {
      const bool is_meant = operation.verb == verb && operation.type.plural == plural &&
                            operation.subresource.empty() &&
                            operation.key.name.starts_with(beginning) && when();
      return is_meant ? std::optional(error) : std::nullopt;
    };
  }
  void lift() { cluster_->leader()->trouble().refuses = {}; }

  json::Value status(const std::string& job) const {
    const auto found = cluster_->witness().jobs().find("default/" + job);
    return found == cluster_->witness().jobs().end() ? json::Value()
                                                     : found->second.object["status"];
  }
  bool is(const std::string& job, const std::string& state) const {
    return status(job)["state"].string_or("") == state;
  }
  bool trains(const std::string& job, std::size_t members) const {
    return is(job, "Running") && members_of(*cluster_, job) == members;
  }
  std::int64_t held(const std::string& job) const {
    return status(job)["allocation"]["gpus"].int_or(0);
  }
  // What its condition Queued says; "" when it is not True for this reason.
  std::string queued(const std::string& job, const std::string& reason) const {
    const json::Value seen = status(job);
    for (const json::Value& each : seen["conditions"].items())
      if (each["type"].string_or("") == "Queued" && each["status"].string_or("") == "True" &&
          each["reason"].string_or("") == reason)
        return each["message"].string_or("");
    return "";
  }
  bool was_told(const std::string& reason, const std::string& words) {
    const auto listed = cluster_->server().list(kube::types::kEvent, "default", {}, {});
    if (!listed.ok()) return false;
    return std::any_of(listed->items.begin(), listed->items.end(), [&](const json::Value& event) {
      return event["reason"].string_or("") == reason &&
             event["note"].string_or("").find(words) != std::string::npos;
    });
  }
  void wait(Duration time) {
    until([] { return false; }, time);
  }
  void make_class(const std::string& name, int value) {
    must(cluster_->server().create(
        kube::types::kPriorityClass, "",
        json::Value::object({{"apiVersion", "scheduling.k8s.io/v1"},
                             {"kind", "PriorityClass"},
                             {"metadata", json::Value::object({{"name", name}})},
                             {"value", value}})));
  }
  void patch(const std::string& job, const std::string& what) {
    ASSERT_TRUE(
        cluster_->server()
            .patch(api::kTrainingJob, {"default", job}, kube::PatchType::kMerge, *json::parse(what))
            .ok());
  }
  std::vector<std::string> pods_of(const std::string& job) {
    std::vector<std::string> names;
    for (const auto& [uid, pod] : cluster_->witness().pods())
      if (pod.name.starts_with(job + "-w") && !pod.finished) names.push_back(pod.name);
    return names;
  }

  // The API server takes no decision on GPUs, or not what is written before it: it says `words`.
  void expect_paced_decisions(const Error& error, const std::string& words,
                              const std::string& field = "allocation") {
    int asked = 0;
    cluster_->leader()->trouble().refuses =
        [&](const kube::Operation& operation) -> std::optional<Error> {
      if (!writes_status(operation, field)) return std::nullopt;
      ++asked;
      return error;
    };
    cluster_->submit(training("big", 1, 1));
    const auto is_said = [&] {
      return queued("big", "WaitingForGPUs").find(words) != std::string::npos;
    };
    ASSERT_TRUE(until(is_said));
    EXPECT_TRUE(until([&] { return was_told("NotAllocated", "1 pod of 1 GPU"); }));
    asked = 0;
    wait(1min);
    EXPECT_GE(asked, 4) << "a policy may have been lifted";
    EXPECT_LE(asked, 7);
    lift();
    EXPECT_TRUE(until([&] { return trains("big", 1); }, 4 * kSoon));
  }

  std::unique_ptr<WholeCluster> cluster_;
};

TEST_F(RefusalStories, AWebhookThatIsAwayIsSaidAndWaitedFor) {
  start({{"n0", "fast", 1}});
  refuse(kube::Verb::kCreate, "pods", "new",
         kube::error_from_status(
             500, kube::make_status(500, "InternalError", "failed calling webhook \"w\"")));
  cluster_->submit(training("new", 1, 1));
  const auto is_said = [&] {
    return queued("new", "PodForbidden").find("failed calling webhook") != std::string::npos;
  };
  ASSERT_TRUE(until(is_said));
  EXPECT_TRUE(until([&] { return was_told("FailedCreate", "failed calling webhook"); }));
  EXPECT_FALSE(until([&] { return held("new") > 0; }));
  lift();
  EXPECT_TRUE(until([&] { return trains("new", 1); }, 4 * kSoon));
}

// What a job writes of itself brings it back at once.
TEST_F(RefusalStories, AWebhookThatSaysAnotherErrorEachTimeIsAskedWithPauses) {
  start({{"n0", "fast", 1}});
  int asked = 0;
  cluster_->leader()->trouble().refuses =
      [&](const kube::Operation& operation) -> std::optional<Error> {
    if (operation.verb != kube::Verb::kCreate || operation.type.plural != "pods")
      return std::nullopt;
    const std::string said = "failed calling webhook \"w\": port " + std::to_string(++asked);
    return kube::error_from_status(500, kube::make_status(500, "InternalError", said));
  };
  cluster_->submit(training("new", 1, 1));
  ASSERT_TRUE(until([&] { return !queued("new", "PodForbidden").empty(); }));
  wait(1min);
  EXPECT_GE(asked, 6) << "it may be there again";
  EXPECT_LE(asked, 20);
  lift();
  EXPECT_TRUE(until([&] { return trains("new", 1); }, 2 * kSoon));
}

TEST_F(RefusalStories, AJobWhoseSecretMayNotBeMadeHoldsNoGpus) {
  start({{"n0", "fast", 1}});
  const Error full = forbidden("exceeded quota: few, requested: count/secrets=1");
  refuse(kube::Verb::kCreate, "secrets", "first", full);
  cluster_->submit(training("first", 1, 1));
  ASSERT_TRUE(until([&] { return !queued("first", "PodForbidden").empty(); }));
  EXPECT_FALSE(until([&] { return held("first") > 0; }));
  lift();
  ASSERT_TRUE(until([&] { return trains("first", 1); }, 2 * kSoon));
  // The quota is full only once the job was found good.
  cluster_->submit(training("second", 1, 1));
  ASSERT_TRUE(until([&] { return !queued("second", "WaitingForGPUs").empty(); }));
  refuse(kube::Verb::kCreate, "secrets", "second", full);
  ASSERT_TRUE(cluster_->server().remove(api::kTrainingJob, {"default", "first"}).ok());
  ASSERT_TRUE(until([&] { return held("second") == 1; }, 2 * kSoon));
  EXPECT_TRUE(until([&] { return was_told("FailedCreate", "count/secrets"); }));
  ASSERT_TRUE(until([&] { return held("second") == 0; }, kGang + kSoon));
  EXPECT_TRUE(until(
      [&] { return queued("second", "GangTimeout").find("count/secrets") != std::string::npos; }));
  lift();
  EXPECT_TRUE(until([&] { return trains("second", 1); }, 4 * kSoon));
}

// As builds of before 2026-11-24 made them, which kept no credentials in the status either.
TEST_F(RefusalStories, AJobWhoseSecretIsImmutableGetsItsPods) {
  start({{"n0", "fast", 1}});
  cluster_->submit(training("old", 1, 1));
  ASSERT_TRUE(until([&] { return trains("old", 1); }, 2 * kSoon));
  int asked = 0;
  refuse(kube::Verb::kUpdate, "secrets", "old",
         kube::error_from_status(422, kube::make_status(422, "Invalid", "field is immutable")),
         [&] { return ++asked > 0; });
  ASSERT_TRUE(cluster_->server()
                  .patch(api::kTrainingJob, {"default", "old"}, kube::PatchType::kMerge,
                         *json::parse(R"({"status":{"credentials":null}})"),
                         {.subresource = "status"})
                  .ok());
  patch("old", R"({"spec":{"suspend":true}})");
  ASSERT_TRUE(until([&] { return is("old", "Suspended"); }));
  patch("old", R"({"spec":{"suspend":false}})");
  EXPECT_TRUE(until([&] { return trains("old", 1); }, 2 * kSoon));
  EXPECT_TRUE(until([&] { return was_told("NotRenewed", "field is immutable"); }));
  asked = 0;
  wait(1min);
  EXPECT_LE(asked, 6);
  lift();
  EXPECT_TRUE(until([&] { return status("old")["credentials"].is_object(); }));
}

TEST_F(RefusalStories, AJobWhoseSecretMayNotBeEmptiedIsOverAllTheSame) {
  start({{"n0", "fast", 1}});
  JobPlan brief = training("brief", 1, 1);
  brief.shape.steps = 10;
  int asked = 0;
  refuse(kube::Verb::kUpdate, "secrets", "brief", forbidden("may not update"), [&] {
    if (is("brief", "Complete")) ++asked;
    return is("brief", "Complete");
  });
  cluster_->submit(brief);
  ASSERT_TRUE(until([&] { return asked > 0; }, 4 * kSoon));
  wait(10min);
  EXPECT_LE(asked, 8);
  lift();
  const auto is_empty = [&] { return status("brief")["credentials"].is_null(); };
  EXPECT_TRUE(until(is_empty, 30min));
  EXPECT_TRUE(is("brief", "Complete"));
}

TEST_F(RefusalStories, APriorityClassThatItsPodsMayNotHavePreemptsNobody) {
  start({{"n0", "fast", 1}});
  cluster_->submit(training("healthy", 1, 1));
  ASSERT_TRUE(until([&] { return trains("healthy", 1); }, 2 * kSoon));
  cluster_->submit(training("second", 1, 1));
  ASSERT_TRUE(until([&] { return !queued("second", "WaitingForGPUs").empty(); }));
  const Error none = forbidden("insufficient quota to match these scopes: PriorityClass");
  refuse(kube::Verb::kCreate, "pods", "second", none);
  patch("second", R"({"spec":{"priorityClassName":"high"}})");
  const auto is_said = [&] {
    return queued("second", "PodForbidden").find("match these scopes") != std::string::npos;
  };
  ASSERT_TRUE(until(is_said));
  EXPECT_FALSE(until([&] { return !is("healthy", "Running"); }, 2 * kSoon));
  lift();
  EXPECT_TRUE(until([&] { return trains("second", 1); }, 4 * kSoon));
  // Who holds GPUs goes on with the class that it has.
  refuse(kube::Verb::kCreate, "pods", "second", none);
  patch("second", R"({"spec":{"priorityClassName":""}})");
  EXPECT_TRUE(until([&] { return was_told("FailedCreate", "the one before"); }));
  EXPECT_EQ(status("second")["priority"]["className"].string_or(""), "high");
  EXPECT_EQ(status("second")["priority"]["value"].int_or(0), 100);
  EXPECT_TRUE(trains("second", 1));
}

TEST_F(RefusalStories, AJobIsNotPreemptedBeforeItHasRunForItsLeastTime) {
  start({{"n0", "fast", 1}});
  cluster_->submit(training("healthy", 1, 1));
  ASSERT_TRUE(until([&] { return trains("healthy", 1); }, 2 * kSoon));
  patch("healthy", R"({"spec":{"minRunSeconds":600}})");
  JobPlan urgent = training("urgent", 1, 1);
  urgent.priority_class = "high";
  cluster_->submit(urgent);
  const std::string why = "default/healthy would make room for it, but may not be preempted yet";
  const auto is_said = [&] {
    return queued("urgent", "OthersNotPreemptible").find(why + ", until 2") != std::string::npos;
  };
  ASSERT_TRUE(until(is_said, 2 * kSoon));
  EXPECT_FALSE(until([&] { return !is("healthy", "Running"); }, 2 * kSoon));
  EXPECT_TRUE(until([&] { return trains("urgent", 1); }, 10min));
}

// A job that trains is looked at every few seconds. It is not tried so often, and has events left
// for what else becomes of it.
TEST_F(RefusalStories, APriorityClassThatIsRefusedForLongIsAskedForAtASteadyPace) {
  start({{"n0", "fast", 1}, {"n1", "fast", 1}});
  cluster_->submit(training("elastic", 1, 2));
  ASSERT_TRUE(until([&] { return trains("elastic", 2); }, 4 * kSoon));
  int asked = 0;
  refuse(kube::Verb::kCreate, "pods", "elastic", forbidden("exceeded quota: few"),
         [&] { return ++asked > 0; });
  patch("elastic", R"({"spec":{"priorityClassName":"high"}})");
  wait(5min);
  EXPECT_GE(asked, 25);
  EXPECT_LE(asked, 31);
  EXPECT_TRUE(trains("elastic", 2));
  const json::Value& object = cluster_->witness().jobs().at("default/elastic").object;
  EXPECT_EQ(object["status"]["observedGeneration"].int_or(0),
            object["metadata"]["generation"].int_or(-1))
      << "all else of its spec is in force";
  patch("elastic", R"({"spec":{"gpus":{"max":1}}})");
  EXPECT_TRUE(until([&] { return was_told("Rescaled", "from 2 to 1"); }, 2 * kSoon));
  lift();
}

TEST_F(RefusalStories, APriorityClassThatIsMadeIsHeardOfAtOnce) {
  start({{"n0", "fast", 1}});
  JobPlan early = training("early", 1, 1);
  early.priority_class = "later";
  cluster_->submit(early);
  ASSERT_TRUE(until([&] { return !queued("early", "PodForbidden").empty(); }));
  wait(3s);
  ASSERT_FALSE(queued("early", "PodForbidden").empty());
  make_class("later", 50);
  EXPECT_TRUE(until([&] { return queued("early", "PodForbidden").empty(); }, 2s));
}

TEST_F(RefusalStories, AJobKeepsThePriorityOfAClassThatIsGone) {
  start({{"n0", "fast", 1}});
  JobPlan urgent = training("urgent", 1, 1);
  urgent.priority_class = "high";
  cluster_->submit(urgent);
  ASSERT_TRUE(until([&] { return trains("urgent", 1); }, 2 * kSoon));
  ASSERT_TRUE(cluster_->server().remove(kube::types::kPriorityClass, {"", "high"}).ok());
  make_class("middle", 50);
  JobPlan other = training("other", 1, 1);
  other.priority_class = "middle";
  cluster_->submit(other);
  EXPECT_TRUE(until([&] { return was_told("PriorityKept", "keeps priority 100"); }, 2 * kSoon));
  EXPECT_FALSE(until([&] { return !is("urgent", "Running"); }, 2 * kSoon));
  // One that has none waits for the class.
  patch("urgent", R"({"spec":{"suspend":true}})");
  ASSERT_TRUE(until([&] { return is("urgent", "Suspended"); }));
  patch("urgent", R"({"spec":{"suspend":false}})");
  EXPECT_TRUE(until([&] { return !queued("urgent", "PodForbidden").empty(); }, 2 * kSoon));
}

// The rest of its GPUs is for others; no node is avoided, and it is grown once the quota is raised.
TEST_F(RefusalStories, AJobThatMayHaveNoMorePodsLeavesTheGpusToOthers) {
  start({{"n0", "fast", 2}, {"n1", "fast", 1}});
  refuse(kube::Verb::kCreate, "pods", "elastic", forbidden("exceeded quota: few"),
         [&] { return pods_of("elastic").size() >= 2; });
  cluster_->submit(training("elastic", 2, 3));
  const auto has_two = [&] { return trains("elastic", 2) && held("elastic") == 2; };
  ASSERT_TRUE(until(has_two, kGang)) << "at once, not when the time of a gang is over";
  EXPECT_TRUE(until([&] { return was_told("PodGivenUp", "not grown beyond 2 GPUs"); }));
  EXPECT_EQ(status("elastic")["avoidedNodes"].size(), 0U);
  // Another cause is told with the next pod, however long the first one has been told already.
  refuse(kube::Verb::kCreate, "pods", "elastic", forbidden("violates PodSecurity"),
         [&] { return pods_of("elastic").size() >= 2; });
  EXPECT_TRUE(until([&] { return was_told("PodGivenUp", "violates PodSecurity"); }, 4 * kSoon));
  cluster_->submit(training("small", 1, 1));
  ASSERT_TRUE(until([&] { return trains("small", 1); }, 2 * kSoon));
  EXPECT_TRUE(trains("elastic", 2));
  ASSERT_TRUE(cluster_->server().remove(api::kTrainingJob, {"default", "small"}).ok());
  lift();
  EXPECT_TRUE(until([&] { return trains("elastic", 3); }, 12 * kSoon));
}

// A round may have given its GPU to others by then, though the allocation does not say so yet.
TEST_F(RefusalStories, APodThatWasGivenUpIsNotMadeWhenItMayBe) {
  start({{"n0", "fast", 2}, {"n1", "fast", 1}});
  std::map<std::string, int> asked;
  const Error full = forbidden("exceeded quota: few");
  cluster_->leader()->trouble().refuses =
      [&](const kube::Operation& operation) -> std::optional<Error> {
    const bool is_job = operation.key.name == "elastic" && operation.verb == kube::Verb::kPatch;
    if (is_job && !asked.empty() && operation.subresource == "status") return full;
    const bool makes = operation.verb == kube::Verb::kCreate && operation.type.plural == "pods" &&
                       operation.subresource.empty() && operation.key.name.starts_with("elastic-w");
    if (!makes || pods_of("elastic").size() < 2) return std::nullopt;
    if (members_of(*cluster_, "elastic") == 2) ++asked[operation.key.name];
    return full;
  };
  cluster_->submit(training("elastic", 2, 3));
  ASSERT_TRUE(until([&] { return was_told("PodGivenUp", "not grown beyond 2 GPUs"); }, 2 * kGang));
  EXPECT_EQ(held("elastic"), 3) << "its status may not be written";
  asked.clear();
  asked["none"] = 1;
  EXPECT_FALSE(until([&] { return asked.size() > 1; }, 2s)) << "it may be bound to a GPU of others";
  EXPECT_EQ(pods_of("elastic").size(), 2U);
  lift();
  EXPECT_TRUE(until([&] { return trains("elastic", 3); }, 6 * kSoon));
}

TEST_F(RefusalStories, APodThatMayNotBeDeletedKeepsNoOther) {
  start({{"n0", "fast", 2}});
  cluster_->inject({.kind = FaultKind::kNodeIdle, .spell = 10min});
  cluster_->submit(training("pair", 2, 2));
  ASSERT_TRUE(until([&] { return pods_of("pair").size() == 2; }));
  const std::string kept = pods_of("pair").front();
  int asked = 0;
  refuse(kube::Verb::kRemove, "pods", kept, forbidden("deletes are denied by policy"),
         [&] { return ++asked > 0; });
  patch("pair", R"({"spec":{"suspend":true}})");
  EXPECT_TRUE(until([&] { return pods_of("pair") == std::vector<std::string>{kept}; }));
  EXPECT_TRUE(until([&] { return held("pair") == 0; }));
  EXPECT_TRUE(until([&] { return was_told("FailedDelete", kept); }));
  EXPECT_TRUE(until([&] { return status("pair")["reason"].string_or("") == "Suspending"; }));
  asked = 0;
  wait(1min);
  EXPECT_LE(asked, 6) << "it is looked at every second";
  wait(30s);
  refuse(kube::Verb::kRemove, "pods", kept,
         kube::error_from_status(500, kube::make_status(500, "InternalError", "webhook is away")));
  EXPECT_TRUE(until([&] { return was_told("FailedDelete", "webhook is away"); }, 15s))
      << "the other cause is told at pauses of more than a minute by now";
  lift();
  EXPECT_TRUE(until([&] { return is("pair", "Suspended"); }));
}

// A decision whose answer was lost is asked about until it is known, however seldom rounds come.
TEST_F(RefusalStories, ADecisionInDoubtDoesNotWaitForTheNextRound) {
  start({{"n0", "fast", 1}});
  must(cluster_->server().create(
      api::kSchedulingPolicy, "",
      json::Value::object({{"apiVersion", api::kSchedulingPolicy.api_version()},
                           {"kind", api::kSchedulingPolicy.kind},
                           {"metadata", json::Value::object({{"name", "default"}})},
                           {"spec", json::Value::object({{"roundSeconds", 3600}})}})));
  wait(2s);
  const Error away(Code::kUnavailable, "the server cannot be reached");
  std::optional<MonoTime> decided;
  cluster_->leader()->trouble().refuses =
      [&](const kube::Operation& operation) -> std::optional<Error> {
    if (is_decision(operation) && !decided) {
      decided = cluster_->now();
      return away;
    }
    const bool is_read =
        operation.verb == kube::Verb::kGet && operation.type.plural == "trainingjobs";
    const bool is_away = decided && cluster_->now() < *decided + kSoon;
    return is_read && is_away ? std::optional(away) : std::nullopt;
  };
  cluster_->submit(training("new", 1, 1));
  EXPECT_TRUE(until([&] { return trains("new", 1); }, 3 * kSoon));
  EXPECT_TRUE(decided);
}

TEST_F(RefusalStories, AnAllocationThatIsTooLargeIsSaidAndTriedWithPauses) {
  start({{"n0", "fast", 1}});
  expect_paced_decisions(
      kube::error_from_status(
          500, kube::make_status(500, "InternalError", "etcdserver: request is too large")),
      "larger than etcd takes");
}

// By a CRD of an earlier release.
TEST_F(RefusalStories, AnAllocationThatTheSchemaRefusesIsSaidAndTriedWithPauses) {
  start({{"n0", "fast", 1}});
  expect_paced_decisions(
      kube::error_from_status(422, kube::make_status(422, "Invalid", "Too many: must have less")),
      "Too many: must have less");
}

// Before its first decision a job says who leads it.
TEST_F(RefusalStories, AJobThatMayNotBeLedIsSaidAndTriedWithPauses) {
  start({{"n0", "fast", 1}});
  expect_paced_decisions(forbidden("denied by policy"), "denied by policy", "membership");
}

// As by a policy, or by a CRD of an earlier release that does not know the value.
TEST_F(RefusalStories, AStatusThatIsRefusedIsWrittenAtASteadyPace) {
  start({{"n0", "fast", 1}});
  cluster_->submit(training("idle", 1, 1));
  ASSERT_TRUE(until([&] { return trains("idle", 1); }, 2 * kSoon));
  int asked = 0;
  cluster_->leader()->trouble().refuses =
      [&](const kube::Operation& operation) -> std::optional<Error> {
    if (operation.key.name != "idle" || !writes_status(operation, "conditions"))
      return std::nullopt;
    ++asked;
    return kube::error_from_status(422, kube::make_status(422, "Invalid", "Unsupported value"));
  };
  patch("idle", R"({"spec":{"suspend":true}})");
  ASSERT_TRUE(until([&] { return held("idle") == 0 && pods_of("idle").empty(); }, 4 * kSoon));
  wait(10s);
  asked = 0;
  wait(1min);
  EXPECT_GE(asked, 5) << "it may be allowed again";
  EXPECT_LE(asked, 7) << "a job that is to stop is looked at every second";
  lift();
  EXPECT_TRUE(until([&] { return is("idle", "Suspended"); }));
}

}  // namespace
}  // namespace rubato::sim
