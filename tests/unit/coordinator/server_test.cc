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

// Whose reading thread beats when the test says so.
class BeatenNetwork : public net::Network {
 public:
  explicit BeatenNetwork(std::unique_ptr<net::Network> inner) : inner_(std::move(inner)) {}
  Result<std::unique_ptr<net::Listener>> listen(const net::Endpoint& at, const net::TlsConfig& tls,
                                                const net::ListenLimits& limits) override {
    beat = limits.beat;
    return inner_->listen(at, tls, limits);
  }
  Result<std::unique_ptr<net::Channel>> dial(const net::Endpoint& to, const net::TlsConfig& tls,
                                             MonoTime deadline) override {
    return inner_->dial(to, tls, deadline);
  }

  std::function<void()> beat;

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
      return Server::Standing{.leading = true, .epoch = 1, .job = job_, .agents = kPods};
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
  void say_hello(net::Channel& channel, int pod) {
    wire::AgentMessage message;
    wire::Hello& hello = *message.mutable_hello();
    hello.set_version_min(1);
    hello.set_version_max(1);
    hello.set_job_uid("job-uid");
    hello.set_token(net::hmac_sha256_hex("key", "job-uid"));
    hello.set_pod_uid(uid(pod));
    hello.set_pod_name("gpt-" + std::to_string(pod));
    CHECK(channel.send(message.SerializeAsString(), agent_.now() + 1s).ok());
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
  EXPECT_NE(metrics_.expose().find("{reason=\"NotTheProtocol\"} 1"), std::string::npos);
}

}  // namespace
}  // namespace rubato::coordinator
