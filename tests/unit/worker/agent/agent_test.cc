// The agent on virtual time, with a scripted coordinator and modelled workers.
#include "worker/agent/agent.h"

#include "common/log.h"
#include "common/testing/sim_executor.h"
#include "common/testing/sim_network.h"
#include "worker/protocol/wire.pb.h"

#include <algorithm>
#include <deque>

#include <gtest/gtest.h>

namespace rubato::worker {
namespace {

class FakeHost : public WorkerHost {
 public:
  explicit FakeHost(Executor& executor)
      : executor_(executor), changed_(executor.make_condition()) {}

  Status spawn(std::uint32_t slot, std::uint64_t incarnation) override {
    spawned.emplace_back(slot, incarnation);
    if (refuses) return *refuses;
    return ok();
  }
  Status send(std::uint32_t, const std::string& command) override {
    wire::WorkerCommand parsed;
    parsed.ParseFromString(command);
    commands.push_back(parsed);
    return ok();
  }
  void kill(std::uint32_t slot) override { end(slot, spawned.back().second, -1, 9); }
  Result<HostEvent> next(MonoTime deadline) override {
    std::unique_lock lock(mutex_);
    if (!changed_->wait_until(lock, deadline, [&] { return !events_.empty(); })) {
      return Error(Code::kTimeout, "");
    }
    HostEvent event = events_.front();
    events_.pop_front();
    return event;
  }

  void end(std::uint32_t slot, std::uint64_t incarnation, int exit_code, int signal,
           const std::string& last_words = {}) {
    HostEvent event;
    event.kind = HostEvent::Kind::kExited;
    event.slot = slot;
    event.incarnation = incarnation;
    event.exit_code = exit_code;
    event.signal = signal;
    event.last_words = last_words;
    push(event);
  }
  void say(std::uint32_t slot, std::uint64_t incarnation, const wire::WorkerEvent& what) {
    HostEvent event;
    event.slot = slot;
    event.incarnation = incarnation;
    event.message = what.SerializeAsString();
    push(event);
  }

  std::vector<std::pair<std::uint32_t, std::uint64_t>> spawned;
  std::vector<wire::WorkerCommand> commands;
  std::optional<Error> refuses;  // to start anything

 private:
  void push(HostEvent event) {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    changed_->notify_all();
  }
  Executor& executor_;
  std::mutex mutex_;
  std::unique_ptr<Condition> changed_;
  std::deque<HostEvent> events_;
};

// Answers agents as a leader of `epoch` would, and remembers what they say.
struct FakeCoordinator {
  testing::SimProcess& process;
  std::unique_ptr<net::Network> network;
  std::string own;  // its own address
  std::uint64_t epoch;
  std::string not_leader;  // not empty: redirect there
  bool closes = false;     // to whoever comes, as where a certificate is not known
  std::unique_ptr<net::Listener> listener;
  std::shared_ptr<net::Channel> agent;
  std::vector<wire::AgentMessage> heard;
  std::vector<Task> tasks;

  FakeCoordinator(testing::SimExecutor& sim, testing::SimNetwork& net, const std::string& host,
                  std::uint64_t e)
      : process(sim.process(host)), network(net.attach(process, host)), own(host + ":1"), epoch(e) {
    net::TlsConfig tls;
    tls.certificate = "c";
    tls.private_key = "k";
    tasks.push_back(process.spawn("accept", [this, host, tls](std::stop_token stop) {
      listener = std::move(*network->listen({host, 1}, tls, {}));
      while (!stop.stop_requested()) {
        auto channel = listener->accept(process.now() + 1s);
        if (channel.ok() && !closes) serve(std::move(*channel));
      }
    }));
  }
  void serve(std::shared_ptr<net::Channel> channel) {
    tasks.push_back(process.spawn("serve", [this, channel](std::stop_token stop) {
      while (!stop.stop_requested()) {
        auto frame = channel->receive(process.now() + 1s);
        if (!frame.ok() && frame.error().code() != Code::kTimeout) return;
        if (!frame.ok()) continue;
        wire::AgentMessage message;
        message.ParseFromString(*frame);
        wire::CoordinatorMessage answer;
        if (message.has_hello() && !not_leader.empty()) {
          answer.mutable_not_leader()->set_leader(not_leader);
        } else if (message.has_hello()) {
          answer.mutable_welcome()->set_version(1);
          answer.mutable_welcome()->set_leader_epoch(epoch);
          answer.mutable_welcome()->set_heartbeat_ms(100);
          answer.mutable_welcome()->set_silence_ms(1000);
          answer.mutable_welcome()->set_leader(own);
          agent = channel;
        } else if (message.has_heartbeat()) {
          answer.mutable_heartbeat_ack()->set_sequence(message.heartbeat().sequence());
        }
        heard.push_back(message);
        if (answer.body_case() != wire::CoordinatorMessage::BODY_NOT_SET) {
          (void)channel->send(answer.SerializeAsString(), process.now() + 1s);
        }
      }
    }));
  }
  void tell(const wire::CoordinatorMessage& message) {
    (void)agent->send(message.SerializeAsString(), process.now() + 1s);
  }
  template <class Predicate>
  bool has_heard(Predicate predicate) const {
    return std::any_of(heard.begin(), heard.end(), predicate);
  }
};

class AgentTest : public ::testing::Test {
 protected:
  AgentTest() : sim_(7), net_(sim_, 7), a_(sim_, net_, "op-a", 3), b_(sim_, net_, "op-b", 4) {}

  void start(std::uint32_t slots = 1,
             std::vector<net::Endpoint> coordinators = {{"op-a", 1}, {"op-b", 1}},
             std::optional<Error> refuses = {}) {
    process_ = &sim_.process("pod");
    network_ = net_.attach(*process_, "pod");
    host_ = std::make_unique<FakeHost>(*process_);
    host_->refuses = std::move(refuses);
    AgentConfig config;
    config.job_uid = "job";
    config.pod_uid = "pod-uid";
    config.slots = slots;
    config.coordinators = std::move(coordinators);
    config.credentials = [] {
      return Result<AgentCredentials>({.token = "secret", .tls = {.authority = "ca"}});
    };
    config.grace = 10s;
    config.runs_program = runs_program_;
    config.is_script = is_script_;
    agent_ = std::make_unique<Agent>(*process_, *network_, *host_, config);
    task_ = process_->spawn("agent", [this](std::stop_token) { status_ = agent_->run(); });
  }
  // The agent never ends of itself; the others wait for it.
  void TearDown() override {
    for (auto* process : {process_, &a_.process, &b_.process}) {
      if (process != nullptr && !process->crashed()) process->crash();
    }
  }
  bool reaches(const std::function<bool()>& what) { return sim_.run_until(what, 30s); }
  bool is_welcome() {
    const auto beats = [](const auto& m) { return m.has_heartbeat(); };
    return reaches([&] { return a_.has_heard(beats) || b_.has_heard(beats); });
  }

  // Its first worker holds a state that somebody could miss.
  void hold_state() {
    wire::WorkerEvent state;
    state.mutable_standing()->mutable_id()->set_pod_uid("pod-uid");
    state.mutable_standing()->mutable_id()->set_incarnation(1);
    state.mutable_standing()->set_has_state(true);
    host_->say(0, 1, state);
    ASSERT_TRUE(
        reaches([&] { return a_.has_heard([](const auto& m) { return m.has_worker(); }); }));
  }

  // Its only worker says so and ends, and whom the agent can reach does not lead.
  void fail_for_good_without_a_leader(int exit_code) {
    a_.not_leader = "op-x:1";
    start(1, {{"op-a", 1}});
    wire::WorkerEvent event;
    event.mutable_standing()->mutable_id()->set_pod_uid("pod-uid");
    event.mutable_standing()->mutable_id()->set_incarnation(1);
    event.mutable_failure()->set_permanent(true);
    host_->say(0, 1, event);
    host_->end(0, 1, exit_code, 0);
  }

  testing::SimExecutor sim_;
  testing::SimNetwork net_;
  FakeCoordinator a_, b_;
  testing::SimProcess* process_ = nullptr;
  std::unique_ptr<net::Network> network_;
  std::unique_ptr<FakeHost> host_;
  std::unique_ptr<Agent> agent_;
  std::optional<int> status_;
  bool runs_program_ = false;
  bool is_script_ = false;
  Task task_;
};

TEST_F(AgentTest, StartsWorkersSaysHelloAndBeats) {
  start(2);
  ASSERT_TRUE(is_welcome());
  EXPECT_EQ(host_->spawned.size(), 2u);
  EXPECT_EQ(a_.heard.front().hello().token(), "secret");
  EXPECT_EQ(a_.heard.front().hello().workers_size(), 2);
  EXPECT_TRUE(reaches(
      [&] { return a_.has_heard([](const auto& m) { return m.heartbeat().sequence() >= 5; }); }));
}

TEST_F(AgentTest, ACrashedWorkerIsReportedAndStartedAgain) {
  start();
  ASSERT_TRUE(is_welcome());
  host_->end(0, 1, -1, 11);
  EXPECT_TRUE(reaches([&] {
    return a_.has_heard([](const auto& m) {
      return m.has_exited() && m.exited().restarting() && m.exited().signal() == 11;
    });
  }));
  EXPECT_TRUE(reaches([&] { return host_->spawned.size() == 2; }));
  EXPECT_EQ(host_->spawned.back().second, 2u);
  // An order for the life that is over is dropped.
  wire::CoordinatorMessage order;
  order.mutable_order()->mutable_id()->set_pod_uid("pod-uid");
  order.mutable_order()->mutable_id()->set_incarnation(1);
  order.mutable_order()->mutable_command()->mutable_abort()->set_below(9);
  a_.tell(order);
  order.mutable_order()->mutable_id()->set_incarnation(2);
  order.mutable_order()->mutable_command()->mutable_abort()->set_below(10);
  a_.tell(order);
  ASSERT_TRUE(reaches([&] { return !host_->commands.empty(); }));
  EXPECT_EQ(host_->commands.front().abort().below(), 10u);
}

TEST_F(AgentTest, TheEndOfAWorkerIsHeardOfThoughTheInboxIsFull) {
  start();
  ASSERT_TRUE(is_welcome());
  for (int i = 0; i < 10'001; ++i) host_->say(0, 99, {});  // of no worker that it has
  host_->end(0, 1, -1, 11);
  EXPECT_TRUE(reaches([&] { return host_->spawned.size() == 2; }));
}

// Nobody else could say why this pod never trains; who leads next hears it, too. It tries on: the
// program may lie on a volume that comes late.
TEST_F(AgentTest, SaysThatItsProgramCannotBeStartedUntilItCan) {
  start(1, {{"op-a", 1}}, Error(Code::kNotFound, "starting trian: No such file or directory"));
  std::uint64_t incarnation = 0;
  const auto tells = [&](const wire::AgentMessage& m) {
    if (!m.worker().has_failure()) return false;
    const wire::Failure& failure = m.worker().failure();
    EXPECT_EQ(failure.reason(), "InvalidCommand");
    EXPECT_EQ(failure.message(), "starting trian: No such file or directory");
    EXPECT_EQ(failure.scope(), wire::FAILURE_SCOPE_WORKER);
    EXPECT_EQ(m.worker().standing().id().pod_uid(), "pod-uid");
    incarnation = m.worker().standing().id().incarnation();
    return true;
  };
  ASSERT_TRUE(reaches([&] { return a_.has_heard(tells) && host_->spawned.size() > 3; }));
  a_.heard.clear();
  a_.agent->close();
  host_->refuses = Error(Code::kUnavailable, "starting trian: Cannot allocate memory");
  ASSERT_TRUE(reaches([&] { return a_.has_heard([](const auto& m) { return m.has_hello(); }); }));
  EXPECT_EQ(a_.heard.front().hello().workers_size(), 0);
  host_->refuses.reset();
  EXPECT_TRUE(reaches([&] {
    return a_.has_heard([&](const auto& m) {
      return m.heartbeat().workers_size() == 1 &&
             m.heartbeat().workers(0).id().incarnation() > incarnation;
    });
  }));
}

// What it was told to end is not counted; who leads next hears the number first.
TEST_F(AgentTest, CountsTheWorkersThatEndByThemselves) {
  start(2, {{"op-a", 1}});
  ASSERT_TRUE(is_welcome());
  const auto exits = [&] {
    return std::count_if(a_.heard.begin(), a_.heard.end(),
                         [](const auto& m) { return m.has_exited(); });
  };
  wire::CoordinatorMessage order;
  order.mutable_restart_worker()->mutable_id()->set_pod_uid("pod-uid");
  order.mutable_restart_worker()->mutable_id()->set_slot(1);
  order.mutable_restart_worker()->mutable_id()->set_incarnation(1);
  a_.tell(order);
  ASSERT_TRUE(reaches([&] { return exits() == 1; }));
  host_->end(0, 1, -1, 11);
  ASSERT_TRUE(reaches([&] { return exits() == 2; }));
  std::vector<std::uint32_t> counted;
  for (const auto& m : a_.heard)
    if (m.has_exited()) counted.push_back(m.exited().crashes());
  EXPECT_EQ(counted, (std::vector<std::uint32_t>{0, 1}));
  a_.heard.clear();
  a_.agent->close();
  ASSERT_TRUE(reaches([&] { return a_.has_heard([](const auto& m) { return m.has_hello(); }); }));
  EXPECT_EQ(a_.heard.front().hello().crashes(), 1u);
}

// A script that lacks a package is over before anybody could be dialed.
TEST_F(AgentTest, WhoLeadsNextHearsWhyAWorkerEnded) {
  a_.not_leader = "op-x:1";
  start(1, {{"op-a", 1}});
  host_->end(0, 1, 1, 0, "No module named 'nothing'");
  ASSERT_TRUE(reaches([&] { return host_->spawned.size() == 2; }));
  a_.heard.clear();
  a_.not_leader.clear();
  ASSERT_TRUE(is_welcome());
  const auto tells = [](const wire::Exited& crash) {
    return crash.message() == "No module named 'nothing'" && crash.id().incarnation() == 1;
  };
  EXPECT_TRUE(a_.has_heard([&](const auto& m) {
    return (m.hello().crashes() == 1 && tells(m.hello().last_crash())) ||
           (m.exited().crashes() == 1 && tells(m.exited()));
  }));
}

// It would be started again and again, and its job never be over.
TEST_F(AgentTest, AScriptThatEndsWithoutAJobHasFailed) {
  is_script_ = true;
  start();
  ASSERT_TRUE(is_welcome());
  host_->end(0, 1, 0, 0);
  EXPECT_TRUE(reaches([&] {
    return a_.has_heard([](const auto& m) {
      return m.exited().restarting() && m.exited().crashes() == 1 &&
             m.exited().reason() == "Error" &&
             m.exited().message().find("made no rubato.Job") != std::string::npos;
    });
  }));
  ASSERT_TRUE(reaches([&] { return host_->spawned.size() == 2; }));
  wire::WorkerEvent event;
  event.mutable_standing()->mutable_id()->set_pod_uid("pod-uid");
  event.mutable_standing()->mutable_id()->set_incarnation(2);
  event.mutable_standing()->mutable_listen()->set_host("10.0.0.1");
  host_->say(0, 2, event);
  host_->end(0, 2, 0, 0);
  ASSERT_TRUE(reaches([&] { return status_.has_value(); }));
  EXPECT_EQ(*status_, 0) << "this one has retired";
}

// Its pod leaves, or the job is complete, before it has begun.
TEST_F(AgentTest, AScriptThatIsToRetireMayEndWithoutAJob) {
  is_script_ = true;
  start();
  ASSERT_TRUE(is_welcome());
  wire::CoordinatorMessage order;
  order.mutable_order()->mutable_id()->set_pod_uid("pod-uid");
  order.mutable_order()->mutable_id()->set_incarnation(1);
  order.mutable_order()->mutable_command()->mutable_retire()->set_reason("Complete");
  a_.tell(order);
  ASSERT_TRUE(reaches([&] { return !host_->commands.empty(); }));
  host_->end(0, 1, 0, 0);
  ASSERT_TRUE(reaches([&] { return status_.has_value(); }));
  EXPECT_EQ(*status_, 0);
  EXPECT_EQ(host_->spawned.size(), 1u);
}

// Of a generation that the program has left it would be charged to the next one.
TEST_F(AgentTest, WhoLeadsNextHearsThatAProgramFailed) {
  runs_program_ = true;
  a_.not_leader = "op-x:1";
  start(1, {{"op-a", 1}});
  wire::WorkerEvent event;
  event.mutable_standing()->mutable_id()->set_pod_uid("pod-uid");
  event.mutable_standing()->mutable_id()->set_incarnation(1);
  event.mutable_standing()->set_generation(3);
  event.mutable_failure()->set_reason("ProgramFailed");
  host_->say(0, 1, event);
  sim_.run_until([] { return false; }, 1s);
  a_.heard.clear();
  a_.not_leader.clear();
  const auto failed = [](const auto& m) {
    return m.worker().failure().reason() == "ProgramFailed";
  };
  EXPECT_TRUE(reaches([&] { return a_.has_heard(failed); }));
  event.clear_failure();
  event.mutable_standing()->set_generation(4);
  host_->say(0, 1, event);
  ASSERT_TRUE(reaches([&] {
    return a_.has_heard([](const auto& m) { return m.worker().standing().generation() == 4; });
  }));
  a_.heard.clear();
  a_.agent->close();
  ASSERT_TRUE(
      reaches([&] { return a_.has_heard([](const auto& m) { return m.has_heartbeat(); }); }));
  EXPECT_FALSE(a_.has_heard(failed));
}

TEST_F(AgentTest, APodThatFailedForGoodWaitsUntilSomebodyHasHeardWhy) {
  a_.not_leader = "op-x:1";
  start(1, {{"op-a", 1}});
  wire::WorkerEvent event;
  event.mutable_standing()->set_has_state(true);
  event.mutable_standing()->mutable_id()->set_pod_uid("pod-uid");
  event.mutable_standing()->mutable_id()->set_incarnation(1);
  event.mutable_failure()->set_message("no data");
  event.mutable_failure()->set_permanent(true);
  host_->say(0, 1, event);
  host_->end(0, 1, 1, 0);
  sim_.run_until([] { return false; }, kTellLimit / 2);
  EXPECT_FALSE(status_);
  a_.not_leader.clear();
  ASSERT_TRUE(reaches([&] { return status_.has_value(); }));
  EXPECT_EQ(*status_, 1);
  EXPECT_TRUE(a_.has_heard([](const auto& m) {
    return m.worker().failure().message() == "no data" && !m.worker().standing().has_state();
  })) << "what it held went with its process";
}

TEST_F(AgentTest, APodThatFailedForGoodDoesNotWaitLongForALeader) {
  fail_for_good_without_a_leader(1);
  EXPECT_TRUE(sim_.run_until([&] { return status_.has_value(); }, kTellLimit + 1s));
}

// Simulation seed 914643: it retired while nobody led. From the end of the time that its other
// workers have it did not wait any more, but looked again and again until somebody had heard.
TEST_F(AgentTest, APodThatFailedForGoodAndRetiresWaitsForALeaderWithoutTurning) {
  fail_for_good_without_a_leader(0);
  static_assert(kTellLimit > kEndLimit);
  const MonoTime began = sim_.now();
  EXPECT_TRUE(sim_.run_until([&] { return status_.has_value(); }, kTellLimit + 1s));
  EXPECT_GE(sim_.now() - began, kTellLimit);
}

// A leader that comes later takes all that are named for workers that could answer.
TEST_F(AgentTest, NamesOnlyTheWorkersThatRun) {
  start(2, {{"op-a", 1}});
  const auto exits = [](const auto& m) { return m.has_exited(); };
  ASSERT_TRUE(
      reaches([&] { return a_.has_heard([](const auto& m) { return m.has_heartbeat(); }); }));
  host_->end(1, 1, 0, 0);  // retired
  ASSERT_TRUE(reaches([&] { return a_.has_heard(exits); }));
  a_.heard.clear();
  a_.agent->close();
  ASSERT_TRUE(
      reaches([&] { return a_.has_heard([](const auto& m) { return m.has_heartbeat(); }); }));
  for (const auto& m : a_.heard) {
    if (m.has_hello()) {
      EXPECT_EQ(m.hello().workers_size(), 1);
    }
    if (m.has_heartbeat()) {
      EXPECT_EQ(m.heartbeat().workers_size(), 1);
    }
  }
}

TEST_F(AgentTest, FollowsTheLeaderAndNeverAnOlderOne) {
  a_.not_leader = "op-b:1";
  start();
  ASSERT_TRUE(
      reaches([&] { return b_.has_heard([](const auto& m) { return m.has_heartbeat(); }); }));
  // The old leader, epoch 3, claims to lead again after epoch 4 was obeyed.
  a_.not_leader.clear();
  b_.process.crash();
  ASSERT_TRUE(reaches([&] {
    return std::count_if(a_.heard.begin(), a_.heard.end(),
                         [](const auto& m) { return m.has_hello(); }) >= 3;
  }));
  EXPECT_FALSE(a_.has_heard([](const auto& m) { return m.has_heartbeat(); }));
}

// The address it was started with (a Service) may lead nowhere for minutes.
TEST_F(AgentTest, DialsTheLeaderThatItKnewToo) {
  a_.not_leader = "op-b:1";
  start(1, {{"op-a", 1}});
  const auto beats = [](const auto& m) { return m.has_heartbeat(); };
  ASSERT_TRUE(reaches([&] { return b_.has_heard(beats); }));
  a_.process.crash();
  b_.agent->close();
  b_.heard.clear();
  EXPECT_TRUE(reaches([&] { return b_.has_heard(beats); }));
}

// To find its address DNS is asked, which may hang; it is needed where a Service was made again.
TEST_F(AgentTest, DialsANameOnceTheAddressesLeadNowhere) {
  FakeCoordinator by_address(sim_, net_, "10.0.0.1", 2);
  start(1, {{"op-a", 1}, {"10.0.0.1", 1}});
  const auto beats = [](const auto& m) { return m.has_heartbeat(); };
  ASSERT_TRUE(reaches([&] { return by_address.has_heard(beats); }));
  by_address.process.crash();
  EXPECT_TRUE(a_.heard.empty());
  EXPECT_TRUE(reaches([&] { return a_.has_heard(beats); }));
}

// The pod's log is where somebody looks whose job does not start.
TEST_F(AgentTest, SaysOnceAMinuteWhyItReachesNobody) {
  std::vector<std::string> told;
  set_log_sink([&](LogLevel level, std::string_view component, std::string_view text) {
    if (component == "agent" && level == LogLevel::kWarning) told.emplace_back(text);
  });
  a_.closes = true;
  b_.process.crash();
  start();
  sim_.run_for(30s);
  ASSERT_EQ(told.size(), 2u);
  EXPECT_NE(told[0].find("the coordinator at op-a:1 has no answer"), std::string::npos) << told[0];
  EXPECT_NE(told[1].find("no coordinator: "), std::string::npos) << told[1];
  sim_.run_for(60s);
  EXPECT_EQ(told.size(), 4u);
  set_log_sink({});
}

TEST_F(AgentTest, GoesOnWithoutACoordinator) {
  start();
  ASSERT_TRUE(is_welcome());
  a_.process.crash();
  b_.process.crash();
  sim_.run_for(std::chrono::minutes(10));
  EXPECT_FALSE(status_.has_value());
  host_->end(0, 1, -1, 6);
  EXPECT_TRUE(reaches([&] { return host_->spawned.size() == 2; }));
}

TEST_F(AgentTest, ShutdownRetiresWorkersAndEndsWithZero) {
  start();
  ASSERT_TRUE(is_welcome());
  wire::CoordinatorMessage message;
  message.mutable_shutdown()->set_reason("finished");
  a_.tell(message);
  ASSERT_TRUE(reaches([&] { return !host_->commands.empty(); }));
  EXPECT_TRUE(host_->commands.front().has_retire());
  host_->end(0, 1, 0, 0);
  ASSERT_TRUE(reaches([&] { return status_.has_value(); }));
  EXPECT_EQ(*status_, 0);
}

// Simulation seed 103268: a worker hung when its job was told to retire, and the store was restored
// from before that. The pod had one worker less for ever, which no leader could start again.
TEST_F(AgentTest, APodRetiresAsOneThoughAWorkerOfItHangs) {
  start(2);
  ASSERT_TRUE(is_welcome());
  const MonoTime began = sim_.now();
  host_->end(1, 1, 0, 0);
  ASSERT_TRUE(reaches([&] { return status_.has_value(); }));
  EXPECT_EQ(*status_, 0);
  EXPECT_GE(sim_.now() - began, kEndLimit);
  ASSERT_FALSE(host_->commands.empty());
  EXPECT_TRUE(host_->commands.back().has_retire());
}

TEST_F(AgentTest, TermAnnouncesALeaveAndWaitsForItsGrace) {
  start();
  ASSERT_TRUE(is_welcome());
  hold_state();
  const MonoTime began = sim_.now();
  agent_->terminate();
  ASSERT_TRUE(reaches([&] { return a_.has_heard([](const auto& m) { return m.has_leaving(); }); }));
  ASSERT_TRUE(reaches([&] { return status_.has_value(); }));
  EXPECT_EQ(*status_, 143);
  EXPECT_GE(sim_.now() - began, 10s);
}

// Nobody who leads is reached: without a word of its agent's the program would be killed at the
// end.
TEST_F(AgentTest, AProgramOfAPodThatGoesHasHalfOfItsGraceThoughNobodyLeads) {
  runs_program_ = true;
  a_.not_leader = "op-x:1";
  start(1, {{"op-a", 1}});
  wire::WorkerEvent runs;
  runs.mutable_standing()->set_generation(1);
  runs.mutable_standing()->set_phase(wire::WORKER_TRAINING);
  host_->say(0, 1, runs);
  sim_.run_until([] { return false; }, 1s);
  const MonoTime began = sim_.now();
  agent_->terminate();
  const auto is_told = [&] {
    return std::ranges::any_of(host_->commands, [](const auto& c) { return c.request().stop(); });
  };
  ASSERT_TRUE(reaches(is_told));
  EXPECT_GE(sim_.now() - began, 4500ms) << "who leads may know better";
  EXPECT_LE(sim_.now() - began, 5500ms);
  EXPECT_FALSE(status_.has_value());
  ASSERT_TRUE(reaches([&] { return status_.has_value(); }));
  EXPECT_EQ(*status_, 143);
}

// One that was to be started again when the pod was told to go: the agent waits for the end of the
// other, and not for the moment of that start, which is past (a core was busy until the grace was
// over: simulation seed 648).
TEST_F(AgentTest, WhoLeavesStartsNobodyAndStillWaits) {
  start(2);
  ASSERT_TRUE(is_welcome());
  hold_state();
  host_->end(1, 1, -1, 11);
  ASSERT_TRUE(reaches([&] { return host_->spawned.size() == 3; }));
  host_->end(1, 2, -1, 11);
  ASSERT_TRUE(reaches([&] {
    return a_.has_heard([](const auto& m) { return m.exited().id().incarnation() == 2; });
  }));
  agent_->terminate();  // before the second restart, which is not at once
  ASSERT_TRUE(reaches([&] { return a_.has_heard([](const auto& m) { return m.has_leaving(); }); }));
  EXPECT_TRUE(reaches([&] { return status_.has_value(); }));
  EXPECT_EQ(host_->spawned.size(), 3u);
}

static_assert(grace_of(60s) == 55s);
static_assert(grace_of(8s) == 6s);
static_assert(grace_of(0s) == 0s);

}  // namespace
}  // namespace rubato::worker
