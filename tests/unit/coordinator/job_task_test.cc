// JobTask and Coordinator: how tasks of jobs begin and end, and whose session is closed.
#include "operator/coordinator/job_task.h"

#include "apiserver/memory/memory_client.h"
#include "common/testing/refusing_executor.h"
#include "common/testing/sim_executor.h"
#include "common/testing/sim_network.h"
#include "kube/errors.h"
#include "operator/api/crd.h"
#include "operator/api/resources.h"

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

constexpr auto kCall = 1s;

class SlowCalls : public kube::FaultHook {
 public:
  explicit SlowCalls(Executor& executor) : executor_(executor) {}
  std::optional<Error> before(const kube::Operation&) override {
    executor_.sleep_for(kCall);
    return std::nullopt;
  }
  std::optional<Error> after(const kube::Operation&) override { return std::nullopt; }

 private:
  Executor& executor_;
};

// While it is on, etcd finds memberships that name anybody too large.
class TooLarge : public kube::FaultHook {
 public:
  std::optional<Error> before(const kube::Operation& operation) override {
    const bool names_members = operation.body != nullptr &&
                               json::dump(*operation.body).find("podUID") != std::string::npos;
    if (!is_on || !names_members) return std::nullopt;
    ++asked;
    return kube::error_from_status(
        500, kube::make_status(500, "InternalError", "etcdserver: request is too large"));
  }
  std::optional<Error> after(const kube::Operation&) override { return std::nullopt; }

  bool is_on = true;
  int asked = 0;
};

class QuietChannel : public net::Channel {
 public:
  Status send(std::string, MonoTime) override { return ok(); }
  Result<std::string> receive(MonoTime) override { return Error(Code::kTimeout, "nobody speaks"); }
  void on_news(std::function<void()>) override {}
  void close() override { is_closed_ = true; }
  bool closed() const override { return is_closed_; }
  net::Endpoint peer() const override { return {}; }
  std::string peer_name() const override { return ""; }

 private:
  bool is_closed_ = false;
};

class JobTaskTest : public ::testing::Test {
 protected:
  static Wish wish(int number) {
    Wish wish;
    wish.job = {"default", "gpt-" + std::to_string(number)};
    wish.uid = "uid-" + std::to_string(number);
    return wish;
  }
  // Job 1, which is there, with a pod.
  Wish wish_of_a_job() {
    for (const api::Kind& kind : api::kinds())
      EXPECT_TRUE(server_.create(kube::types::kCustomResourceDefinition, "", api::crd(kind)).ok());
    const auto job = json::parse(R"({"apiVersion":"rubato.dev/v1alpha1","kind":"TrainingJob",
        "metadata":{"name":"gpt-1","namespace":"default"},"spec":{"runtime":"command",
        "gpus":{"min":1,"max":1},"template":{"spec":{"containers":[
        {"name":"w","image":"i","command":["c"]}]}}}})");
    EXPECT_TRUE(server_.create(api::kTrainingJob, "default", job.value()).ok());
    Wish wanted = wish(1);
    wanted.uid = kube::uid_of(server_.get(api::kTrainingJob, wanted.job).value());
    wanted.pods.push_back({"gpt-1-worker-0", "pod-0", "n0", "H100", 1, false});
    return wanted;
  }
  static wire::Hello hello_of_its_pod() {
    wire::Hello hello;
    hello.set_pod_uid("pod-0");
    hello.set_pod_name("gpt-1-worker-0");
    return hello;
  }
  std::unique_ptr<Coordinator> lead(Executor& executor, kube::Client& client) {
    auto coordinator =
        std::make_unique<Coordinator>(Dependencies{.executor = executor,
                                                   .network = *network_,
                                                   .client = client,
                                                   .metrics = metrics_,
                                                   .credentials = {},
                                                   .listen = {"operator", 0},
                                                   .leader_address = [] { return ""; },
                                                   .identity = "operator",
                                                   .timing = {}});
    coordinator->lead(1);
    return coordinator;
  }

  testing::SimExecutor sim_{1};
  testing::SimProcess& process_ = sim_.process("operator");
  testing::SimNetwork hosts_{sim_, 2};
  std::unique_ptr<net::Network> network_ = hosts_.attach(process_, "operator");
  kube::MemoryServer server_{process_.clock()};
  Metrics metrics_;
};

// An operator that leads no more has many jobs, and an API server that is slow for a reason.
TEST_F(JobTaskTest, AllJobsEndWithinOneCall) {
  SlowCalls slow(process_);
  kube::MemoryClient client(server_, process_, &slow);
  const auto coordinator = lead(process_, client);
  for (int job = 0; job < 50; ++job) coordinator->ensure(wish(job));
  sim_.run_for(kCall / 2);
  const MonoTime asked = sim_.now();
  coordinator->stop_leading();
  EXPECT_LE(sim_.now() - asked, kCall);
}

TEST_F(JobTaskTest, AJobWithoutAThreadIsBegunByALaterCall) {
  kube::MemoryClient client(server_, process_);
  for (const std::string missing : {"record", "job"}) {
    bool is_short = true;
    testing::RefusingExecutor few(
        process_, [&](const std::string& name) { return is_short && name == missing; });
    const auto coordinator = lead(few, client);
    coordinator->ensure(wish(1));
    EXPECT_FALSE(coordinator->view("uid-1").has_value());
    is_short = false;
    coordinator->ensure(wish(1));
    EXPECT_TRUE(coordinator->view("uid-1").has_value());
  }
}

// The silent one is dropped while the hello of the next waits.
TEST_F(JobTaskTest, ADropLeavesTheSessionThatHasJustCome) {
  kube::MemoryClient client(server_, process_);
  const Wish wanted = wish_of_a_job();
  const wire::Hello hello = hello_of_its_pod();
  const auto first = std::make_shared<QuietChannel>();
  const auto second = std::make_shared<QuietChannel>();
  const Timing timing;
  JobTask* task = nullptr;
  std::optional<MonoTime> comes_at;
  const JobTask::World world{[] { return MonoTime{}; },
                             [&] {  // asked for when silence is about to be judged
                               if (comes_at && process_.now() >= *comes_at) {
                                 comes_at.reset();
                                 task->attach(2, second, hello, 0, process_.now());
                               }
                               return process_.now();
                             },
                             [] { return MonoTime{}; }};
  JobTask owner(process_, client, timing, wanted, 0, 1, world, {});
  task = &owner;
  ASSERT_TRUE(owner.start().ok());
  sim_.run_for(1s);
  owner.attach(1, first, hello, 0, process_.now());
  comes_at = process_.now() + timing.silence;
  sim_.run_for(timing.silence + 1s);
  ASSERT_EQ(owner.view().failures.size(), 1u);
  EXPECT_EQ(owner.view().failures[0].reason, "Silent");
  EXPECT_TRUE(first->closed());
  EXPECT_FALSE(second->closed());
  EXPECT_EQ(owner.view().heard_pods, std::vector<std::string>{"gpt-1-worker-0"});
}

// Its agent says nothing that anybody here could take down.
TEST_F(JobTaskTest, WhoseAgentIsTurnedAwayIsRefusedUntilItComes) {
  kube::MemoryClient client(server_, process_);
  Wish wanted = wish_of_a_job();
  const JobTask::World world{[] { return MonoTime{}; }, [&] { return process_.now(); },
                             [] { return MonoTime{}; }};
  int changes = 0;
  JobTask owner(process_, client, Timing{}, wanted, 0, 1, world,
                {.changed = [&](const kube::Key&) { ++changes; }});
  const wire::Hello hello = hello_of_its_pod();
  for (int times = 0; times < 2; ++times) owner.turn_away(hello, "another time's");
  EXPECT_EQ(changes, 1);
  const std::vector<Refusal> refused = {
      {"gpt-1-worker-0", "pod-0", "n0", "NoCommonVersion", "another time's"}};
  EXPECT_EQ(owner.view().refused, refused);
  wire::Hello other = hello;
  other.set_pod_uid("pod-9");
  owner.turn_away(other, "nobody wants it");
  EXPECT_EQ(owner.view().refused, refused);
  ASSERT_TRUE(owner.start().ok());
  owner.attach(1, std::make_shared<QuietChannel>(), hello, 0, process_.now());
  EXPECT_TRUE(owner.view().refused.empty());
  owner.turn_away(hello, "another time's");
  wanted.pods.clear();
  owner.ensure(wanted);
  EXPECT_TRUE(owner.view().refused.empty());
}

TEST_F(JobTaskTest, AMembershipThatIsTooLargeIsSaidAndWrittenWithPauses) {
  TooLarge etcd;
  kube::MemoryClient client(server_, process_, &etcd);
  Wish wanted = wish_of_a_job();
  wanted.is_stateless = true;
  wire::Hello hello = hello_of_its_pod();
  wire::WorkerStanding& worker = *hello.add_workers();
  worker.mutable_id()->set_pod_uid("pod-0");
  worker.mutable_id()->set_incarnation(1);
  worker.set_phase(wire::WORKER_READY);
  worker.set_cpu("EPYC");
  const JobTask::World world{[] { return MonoTime{}; }, [&] { return process_.now(); },
                             [] { return MonoTime{}; }};
  JobTask owner(process_, client, Timing{}, wanted, 0, 1, world, {});
  ASSERT_TRUE(owner.start().ok());
  std::uint64_t session = 0;
  const auto run_for = [&](int seconds) {  // its agent comes back in each
    for (int second = 0; second < seconds; ++second) {
      owner.attach(++session, std::make_shared<QuietChannel>(), hello, 0, process_.now());
      sim_.run_for(1s);
    }
  };
  run_for(60);
  EXPECT_EQ(owner.view().reason.find("cannot write the membership of 1 worker: "), 0U)
      << owner.view().reason;
  EXPECT_NE(owner.view().reason.find("larger than etcd takes"), std::string::npos);
  EXPECT_GE(etcd.asked, 8);
  EXPECT_LE(etcd.asked, 60);
  etcd.is_on = false;
  run_for(6);
  EXPECT_EQ(owner.view().reason.find("cannot write"), std::string::npos) << owner.view().reason;
  const json::Value written = server_.get(api::kTrainingJob, wanted.job).value();
  EXPECT_EQ(written["status"]["membership"]["members"].size(), 1U);
}

}  // namespace
}  // namespace rubato::coordinator
