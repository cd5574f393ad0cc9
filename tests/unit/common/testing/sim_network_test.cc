#include "common/testing/sim_network.h"

#include <vector>

#include <gtest/gtest.h>

namespace rubato::testing {
namespace {

using net::Channel;
using net::Listener;
using net::Network;

class SimNetworkTest : public ::testing::Test {
 protected:
  struct Pair {
    std::unique_ptr<Channel> client;
    std::unique_ptr<Channel> server;
  };
  Pair connect(Listener& listener) {
    Pair pair;
    pair.client = client_net_->dial(listener.local(), kTls, client_.now() + 10s).value();
    pair.server = listener.accept(server_.now() + 10s).value();
    return pair;
  }
  std::unique_ptr<Listener> listen() { return server_net_->listen({"", 0}, kTls, {}).value(); }
  MonoTime soon() { return sim_.now() + 10s; }

  const net::TlsConfig kTls{.certificate = "cert", .private_key = "key", .authority = "ca"};
  SimExecutor sim_{11};
  SimNetwork network_{sim_, 12};
  SimProcess& client_ = sim_.process("client");
  SimProcess& server_ = sim_.process("server");
  std::unique_ptr<Network> client_net_ = network_.attach(client_, "a");
  std::unique_ptr<Network> server_net_ = network_.attach(server_, "b");
};

TEST_F(SimNetworkTest, FramesArriveInOrderAfterADelay) {
  network_.set_link({.delay_min = 10ms, .delay_max = 20ms});
  const auto listener = listen();
  EXPECT_EQ(listener->local().host, "b");
  const Pair pair = connect(*listener);
  EXPECT_EQ(pair.client->peer(), listener->local());
  const MonoTime start = sim_.now();
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(pair.client->send(std::to_string(i), soon()).ok());
  for (int i = 0; i < 100; ++i) EXPECT_EQ(pair.server->receive(soon()).value(), std::to_string(i));
  EXPECT_GE(sim_.now() - start, 10ms);
  EXPECT_LE(sim_.now() - start, 20ms);
  EXPECT_EQ(pair.server->receive(sim_.now() + 1s).error().code(), Code::kTimeout);
}

TEST_F(SimNetworkTest, RefusesWhatTlsWouldRefuse) {
  EXPECT_EQ(server_net_->listen({"", 0}, {}, {}).error().code(), Code::kInvalid);
  EXPECT_EQ(client_net_->dial({"b", 1}, {}, soon()).error().code(), Code::kInvalid);
  EXPECT_EQ(client_net_->dial({"b", 1}, kTls, soon()).error().code(), Code::kUnavailable);
  const auto listener = server_net_->listen({"", 7}, kTls, {});
  EXPECT_EQ(server_net_->listen({"", 7}, kTls, {}).error().code(), Code::kUnavailable);
  EXPECT_TRUE(client_net_->listen({"", 7}, kTls, {}).ok());
}

TEST_F(SimNetworkTest, ACutHoldsFramesAndAHealDeliversThem) {
  const auto listener = listen();
  const Pair pair = connect(*listener);
  ASSERT_TRUE(pair.client->send("in flight", soon()).ok());
  network_.cut("b");
  ASSERT_TRUE(pair.client->send("later", soon()).ok());
  EXPECT_EQ(pair.server->receive(sim_.now() + 1h).error().code(), Code::kTimeout);
  EXPECT_FALSE(pair.client->closed());
  EXPECT_EQ(client_net_->dial(listener->local(), kTls, sim_.now() + 5s).error().code(),
            Code::kTimeout);
  network_.heal("b");
  EXPECT_EQ(pair.server->receive(sim_.now() + 1s).value(), "in flight");
  EXPECT_EQ(pair.server->receive(sim_.now() + 1s).value(), "later");

  network_.cut_pair("b", "a");
  sim_.at(sim_.now() + 3s, [&] { network_.heal_pair("a", "b"); });
  EXPECT_TRUE(client_net_->dial(listener->local(), kTls, sim_.now() + 10s).ok());
}

TEST_F(SimNetworkTest, CloseIsSeenAfterTheLastFrame) {
  const auto listener = listen();
  Pair pair = connect(*listener);
  ASSERT_TRUE(pair.client->send("last", soon()).ok());
  pair.client.reset();
  EXPECT_EQ(pair.server->receive(soon()).value(), "last");
  EXPECT_EQ(pair.server->receive(soon()).error().code(), Code::kUnavailable);
  EXPECT_TRUE(pair.server->closed());
  EXPECT_EQ(pair.server->send("x", soon()).error().code(), Code::kUnavailable);
}

TEST_F(SimNetworkTest, CloseWakesABlockedReceiveAndAccept) {
  const auto listener = listen();
  const Pair pair = connect(*listener);
  Task reader = client_.spawn("reader", [&](std::stop_token) {
    EXPECT_EQ(pair.client->receive(sim_.now() + 1h).error().code(), Code::kUnavailable);
  });
  Task acceptor = server_.spawn("acceptor", [&](std::stop_token) {
    EXPECT_EQ(listener->accept(sim_.now() + 1h).error().code(), Code::kUnavailable);
  });
  sim_.settle();
  pair.client->close();
  listener->close();
  sim_.settle();
  EXPECT_TRUE(reader.done());
  EXPECT_TRUE(acceptor.done());
  EXPECT_EQ(client_net_->dial(listener->local(), kTls, soon()).error().code(), Code::kUnavailable);
}

TEST_F(SimNetworkTest, ACrashResetsUnlessTheHostIsCut) {
  const auto listener = listen();
  const Pair first = connect(*listener);
  SimProcess& third = sim_.process("third");
  const auto third_net = network_.attach(third, "c");
  const auto from_third = third_net->dial(listener->local(), kTls, soon()).value();
  const auto to_third = listener->accept(soon()).value();

  network_.cut("c");
  third.crash();  // as a node that lost its power: its peer hears nothing
  EXPECT_EQ(to_third->receive(sim_.now() + 1h).error().code(), Code::kTimeout);

  const MonoTime start = sim_.now();
  server_.crash();
  EXPECT_EQ(first.client->receive(sim_.now() + 1h).error().code(), Code::kUnavailable);
  EXPECT_LT(sim_.now() - start, 5ms);
  EXPECT_EQ(client_net_->dial(listener->local(), kTls, soon()).error().code(), Code::kUnavailable);
}

TEST_F(SimNetworkTest, AFrozenProcessAcceptsNobodyUntilItThaws) {
  const auto listener = listen();
  server_.freeze();
  EXPECT_EQ(client_net_->dial(listener->local(), kTls, sim_.now() + 3s).error().code(),
            Code::kTimeout);
  sim_.at(sim_.now() + 3s, [&] { server_.thaw(); });
  EXPECT_TRUE(client_net_->dial(listener->local(), kTls, sim_.now() + 10s).ok());
}

TEST_F(SimNetworkTest, ResetIsSeenByBothEnds) {
  const auto listener = listen();
  const Pair pair = connect(*listener);
  network_.reset_connections("a");
  EXPECT_EQ(pair.client->receive(soon()).error().code(), Code::kUnavailable);
  EXPECT_EQ(pair.server->receive(soon()).error().code(), Code::kUnavailable);
  const Pair again = connect(*listener);
  EXPECT_TRUE(again.client->send("x", soon()).ok());
  EXPECT_EQ(again.server->receive(soon()).value(), "x");
}

TEST_F(SimNetworkTest, ASlowReaderHoldsTheSenderBack) {
  const auto listener = listen();
  const Pair pair = connect(*listener);
  std::size_t sent = 0;
  while (pair.client->send(std::string(1u << 20, 'x'), sim_.now() + 100ms).ok()) ++sent;
  EXPECT_EQ(sent, 63u);  // 64 MiB less the headers
  Task sender = client_.spawn("sender", [&](std::stop_token) {
    EXPECT_TRUE(pair.client->send(std::string(1u << 20, 'x'), sim_.now() + 1h).ok());
  });
  sim_.settle();
  EXPECT_FALSE(sender.done());
  EXPECT_TRUE(pair.server->receive(soon()).ok());
  sim_.settle();
  EXPECT_TRUE(sender.done());
}

// A server that echoes and clients that come and go under cuts, resets and crashes.
std::uint64_t run_story(std::uint64_t seed, int& echoes) {
  SimExecutor sim(seed);
  SimNetwork network(sim, seed);
  const net::TlsConfig tls{.certificate = "c", .private_key = "k", .authority = "a"};
  SimProcess& server = sim.process("server");
  const auto server_net = network.attach(server, "s");
  const auto listener = server_net->listen({"", 1}, tls, {}).value();
  std::vector<std::unique_ptr<Network>> nets;
  std::vector<Task> tasks;  // last: they use the rest until they are joined
  tasks.push_back(server.spawn("accept", [&](std::stop_token stop) {
    std::vector<Task> echo;
    while (!stop.stop_requested()) {
      auto accepted = listener->accept(server.now() + 1s);
      if (!accepted.ok()) continue;
      const std::shared_ptr<Channel> channel = std::move(*accepted);
      echo.push_back(server.spawn("echo", [&server, channel](std::stop_token) {
        for (auto frame = channel->receive(server.now() + 5s); frame.ok();
             frame = channel->receive(server.now() + 5s)) {
          (void)channel->send(std::move(*frame), server.now() + 5s);
        }
      }));
    }
  }));
  for (int c = 0; c < 8; ++c) {
    SimProcess& client = sim.process("client");
    const std::string host = "h" + std::to_string(c);
    nets.push_back(network.attach(client, host));
    tasks.push_back(client.spawn("client", [&, net = nets.back().get()](std::stop_token stop) {
      while (!stop.stop_requested()) {
        auto channel = net->dial({"s", 1}, tls, client.now() + 2s);
        for (int i = 0; channel.ok() && i < 20; ++i) {
          if (!(*channel)->send(std::to_string(i), client.now() + 1s).ok()) break;
          const auto back = (*channel)->receive(client.now() + 1s);
          if (!back.ok()) break;
          EXPECT_EQ(*back, std::to_string(i));
          ++echoes;
        }
        client.sleep_for(10ms, stop);
      }
    }));
    for (int k = 1; k < 10; ++k) {
      const Duration when = std::chrono::milliseconds(sim.rng().below(60'000));
      sim.at(sim.now() + when, [&, host] { network.cut(host); });
      sim.at(sim.now() + when + 3s, [&, host] { network.heal(host); });
      sim.at(sim.now() + when + 1s, [&, host] { network.reset_connections(host); });
    }
    if (c == 0) sim.at(sim.now() + 30s, [&client] { client.crash(); });
  }
  sim.run_for(1min);
  return sim.digest();
}

TEST(SimNetwork, AStormIsReplayedExactly) {
  int first = 0;
  int again = 0;
  int other = 0;
  const std::uint64_t digest = run_story(5, first);
  EXPECT_EQ(digest, run_story(5, again));
  EXPECT_EQ(first, again);
  EXPECT_GT(first, 10'000);
  EXPECT_NE(digest, run_story(6, other));
}

}  // namespace
}  // namespace rubato::testing
