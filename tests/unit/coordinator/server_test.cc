// Server: what one agent, and one thread that is late, mean for all others.
#include "operator/coordinator/server.h"

#include "apiserver/memory/memory_client.h"
#include "common/net/certificates.h"
#include "common/testing/sim_executor.h"
#include "common/testing/sim_network.h"

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

constexpr int kPods = 60;  // more than a crowd
constexpr std::uint64_t kEpoch = 1;

// Of an agent that never says anything.
class MuteChannel : public net::Channel {
 public:
  Status send(std::string, MonoTime) override { return ok(); }
  Result<std::string> receive(MonoTime) override { return Error(Code::kTimeout, "mute"); }
  void on_news(std::function<void()>) override {}
  void close() override { closed_ = true; }
  bool closed() const override { return closed_; }
  net::Endpoint peer() const override { return {"mute", 1}; }
  std::string peer_name() const override { return ""; }

 private:
  bool closed_ = false;
};

// To which `mute` agents come besides those that dial.
class CrowdedListener : public net::Listener {
 public:
  CrowdedListener(std::unique_ptr<net::Listener> inner, std::size_t& mute)
      : inner_(std::move(inner)), mute_(mute) {}
  Result<std::unique_ptr<net::Channel>> accept(MonoTime deadline) override {
    if (mute_ == 0) return inner_->accept(deadline);
    --mute_;
    return std::unique_ptr<net::Channel>(std::make_unique<MuteChannel>());
  }
  net::Endpoint local() const override { return inner_->local(); }
  Status renew(const net::TlsConfig& tls) override { return inner_->renew(tls); }
  void close() override { inner_->close(); }

 private:
  const std::unique_ptr<net::Listener> inner_;
  std::size_t& mute_;
};

// Whose reading thread beats, and to which a crowd comes, when the test says so.
class BeatenNetwork : public net::Network {
 public:
  explicit BeatenNetwork(std::unique_ptr<net::Network> inner) : inner_(std::move(inner)) {}
  Result<std::unique_ptr<net::Listener>> listen(const net::Endpoint& at, const net::TlsConfig& tls,
                                                const net::ListenLimits& limits) override {
    beat = limits.beat;
    TRY(auto listener, inner_->listen(at, tls, limits));
    return std::unique_ptr<net::Listener>(
        std::make_unique<CrowdedListener>(std::move(listener), mute));
  }
  Result<std::unique_ptr<net::Channel>> dial(const net::Endpoint& to, const net::TlsConfig& tls,
                                             MonoTime deadline) override {
    return inner_->dial(to, tls, deadline);
  }

  std::function<void()> beat;
  std::size_t mute = 0;

 private:
  const std::unique_ptr<net::Network> inner_;
};

class ServerTest : public ::testing::Test {
 protected:
  ServerTest() {
    Wish wish;
    wish.job = {"default", "gpt"};
    wish.uid = "job-uid";
    for (int i = 0; i < kPods; ++i)
      wish.pods.push_back({"gpt-" + std::to_string(i), uid(i), "n", "H100", 1, false});
    const auto never = [] { return MonoTime{}; };
    job_ = std::make_shared<JobTask>(process_, client_, Timing{}, wish, 0, 1,
                                     JobTask::World{never, never, never}, JobTask::Hooks{});
    Dependencies dependencies{.executor = process_,
                              .network = network_,
                              .client = client_,
                              .metrics = metrics_,
                              .credentials = {.master_key = "key", .tls = {}},
                              .listen = {"operator", 0},
                              .leader_address = [] { return ""; },
                              .identity = "operator",
                              .timing = {}};
    dependencies.credentials.tls.certificate = "certificate";
    server_ = std::make_unique<Server>(dependencies, [this](const std::string&) {
      return Server::Standing{.leading = true, .epoch = kEpoch, .job = job_, .agents = kPods};
    });
    CHECK(server_->start().ok());
  }

  static std::string uid(int pod) { return "uid-" + std::to_string(pod); }

  // Runs as an agent's process, for a second at most.
  void as_agent(const std::function<void()>& what) {
    const Task task = agent_.spawn("agent", [&](const std::stop_token&) { what(); });
    sim_.run_for(1s);
  }
  std::unique_ptr<net::Channel> dial() {
    return agents_->dial(server_->local(), {.authority = "authority"}, agent_.now() + 1s).value();
  }
  static wire::AgentMessage hello_of(int pod) {
    wire::AgentMessage message;
    wire::Hello& hello = *message.mutable_hello();
    hello.set_version_min(1);
    hello.set_version_max(1);
    hello.set_job_uid("job-uid");
    hello.set_token(net::hmac_sha256_hex("key", "job-uid"));
    hello.set_pod_uid(uid(pod));
    hello.set_pod_name("gpt-" + std::to_string(pod));
    return message;
  }
  void say(net::Channel& channel, const wire::AgentMessage& message) {
    CHECK(channel.send(message.SerializeAsString(), agent_.now() + 1s).ok());
  }
  void say_hello(net::Channel& channel, int pod) { say(channel, hello_of(pod)); }
  // What an agent that says so is told; empty: it is not refused.
  wire::Refused refusal_of(const wire::AgentMessage& hello) {
    wire::CoordinatorMessage answer;
    as_agent([&] {
      const auto channel = dial();
      say(*channel, hello);
      const auto frame = channel->receive(agent_.now() + 500ms);
      ASSERT_TRUE(frame.ok()) << frame.error().to_string();
      ASSERT_TRUE(answer.ParseFromString(*frame));
    });
    return answer.refused();
  }
  void expect_counted(const std::string& reason) {
    EXPECT_NE(metrics_.expose().find("{reason=\"" + reason + "\"} 1\n"), std::string::npos)
        << reason;
  }
  void come(const std::function<int(int)>& pod_of) {
    as_agent([&] {
      for (int i = 0; i < kPods; ++i) {
        channels_.push_back(dial());
        say_hello(*channels_.back(), pod_of(i));
      }
    });
  }

  testing::SimExecutor sim_{1};
  testing::SimProcess& process_ = sim_.process("operator");
  testing::SimProcess& agent_ = sim_.process("pod");
  testing::SimNetwork hosts_{sim_, 2};
  BeatenNetwork network_{hosts_.attach(process_, "operator")};
  std::unique_ptr<net::Network> agents_ = hosts_.attach(agent_, "pod");
  kube::MemoryServer api_{process_.clock()};
  kube::MemoryClient client_{api_, process_};
  Metrics metrics_;
  std::shared_ptr<JobTask> job_;
  std::unique_ptr<Server> server_;
  std::vector<std::unique_ptr<net::Channel>> channels_;
};

TEST_F(ServerTest, OnePodThatComesAgainAndAgainIsNoCrowd) {
  come([](int) { return 0; });
  EXPECT_EQ(server_->crowded_at(), MonoTime{});
}

TEST_F(ServerTest, ManyPodsAreACrowd) {
  come([](int i) { return i; });
  EXPECT_GT(server_->crowded_at(), MonoTime{});
}

TEST_F(ServerTest, NobodyIsJudgedByWhatALateThreadHasNotRead) {
  sim_.run_for(1s);
  EXPECT_EQ(server_->heard_until(), process_.now()) << "it has not begun";
  network_.beat();
  sim_.run_for(net::kReadBeat);
  network_.beat();
  EXPECT_EQ(server_->heard_until(), process_.now());
  const MonoTime before = process_.now() - net::kReadBeat;
  sim_.run_for(10s);
  EXPECT_EQ(server_->heard_until(), before);
  network_.beat();  // others wait behind it still
  EXPECT_EQ(server_->heard_until(), before + net::kReadBeat);
  sim_.run_for(net::kReadBeat);
  network_.beat();
  EXPECT_EQ(server_->heard_until(), process_.now());
}

TEST_F(ServerTest, AFrameOfEmptyWorkersEndsItsSession) {
  as_agent([&] {
    const auto channel = dial();
    say_hello(*channel, 0);
    EXPECT_TRUE(channel->receive(agent_.now() + 500ms).ok());  // welcome
    wire::AgentMessage message;
    for (int i = 0; i < 100'000; ++i) message.mutable_heartbeat()->add_workers();
    EXPECT_TRUE(channel->send(message.SerializeAsString(), agent_.now() + 100ms).ok());
    EXPECT_EQ(channel->receive(agent_.now() + 100ms).error().code(), Code::kUnavailable);
  });
  expect_counted("NotTheProtocol");
}

TEST_F(ServerTest, WhoIsWelcomeIsNotRefused) { EXPECT_EQ(refusal_of(hello_of(0)).reason(), ""); }

TEST_F(ServerTest, AnAgentOfAnotherProtocolIsToldSoForGood) {
  for (const std::uint32_t version : {kWireVersionMin - 1, kWireVersion + 1}) {
    wire::AgentMessage message = hello_of(0);
    message.mutable_hello()->set_version_min(version);
    message.mutable_hello()->set_version_max(version);
    const wire::Refused refused = refusal_of(message);
    EXPECT_EQ(refused.reason(), "Version") << version;
    EXPECT_TRUE(refused.permanent());
    if (version < kWireVersion) expect_counted("Version");
  }
  const auto refused = job_->view().refused;
  ASSERT_EQ(refused.size(), 1u) << "its node is of no use to the job";
  EXPECT_NE(
      refused[0].message.find("speaks versions 0 to 0 of the protocol, and this operator 1 to"),
      std::string::npos)
      << refused[0].message;
}

TEST_F(ServerTest, WhoHasObeyedANewerLeaderMayComeAgain) {
  wire::AgentMessage message = hello_of(0);
  message.mutable_hello()->set_leader_epoch(kEpoch);
  EXPECT_EQ(refusal_of(message).reason(), "") << "it is ours";
  message.mutable_hello()->set_leader_epoch(kEpoch + 1);
  const wire::Refused refused = refusal_of(message);
  EXPECT_EQ(refused.reason(), "StaleLeader");
  EXPECT_FALSE(refused.permanent());
  expect_counted("StaleLeader");
}

TEST_F(ServerTest, WhoseJobIsNotKnownYetMayComeAgain) {
  job_.reset();
  const wire::Refused refused = refusal_of(hello_of(0));
  EXPECT_EQ(refused.reason(), "UnknownJob");
  EXPECT_FALSE(refused.permanent());
  expect_counted("UnknownJob");
}

TEST_F(ServerTest, WhoSendsMoreThanItsJobTakesDownIsClosedAndCounted) {
  as_agent([&] {  // nobody takes down what is said: the job's task has not begun
    channels_.push_back(dial());
    say_hello(*channels_.back(), 0);
    wire::AgentMessage message;
    message.mutable_heartbeat()->set_sequence(1);
    for (std::size_t i = 0; i < kInputsMax + kTurnFrames; ++i) say(*channels_.back(), message);
  });
  EXPECT_FALSE(channels_.back()->closed());
  sim_.run_for(kInputWait + 1s);
  EXPECT_TRUE(channels_.back()->closed());
  expect_counted("Flood");
}

TEST_F(ServerTest, MoreAgentsThanItServesAreClosedAndCounted) {
  network_.mute = kSessionsMax + 1;
  sim_.run_for(2s);  // shorter than a hello's limit
  EXPECT_EQ(network_.mute, 0u);
  expect_counted("TooManyAgents");
  sim_.run_for(kHelloLimit);
  EXPECT_EQ(refusal_of(hello_of(0)).reason(), "") << "there is room again";
}

}  // namespace
}  // namespace rubato::coordinator
