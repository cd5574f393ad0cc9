#include "common/net/tls_network.h"

#include "common/net/certificates.h"

#include <atomic>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace rubato::net {
namespace {

constexpr auto kLong = 60s;  // no step here needs a second

// A plain TCP connection that never speaks.
class MuteClient {
 public:
  explicit MuteClient(const Endpoint& to) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(to.port);
    ::inet_pton(AF_INET, to.host.c_str(), &address.sin_addr);
    CHECK_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  ~MuteClient() { ::close(fd_); }
  MuteClient(const MuteClient&) = delete;
  MuteClient& operator=(const MuteClient&) = delete;

 private:
  int fd_;
};

class TlsNetworkTest : public ::testing::Test {
 protected:
  struct Pair {
    std::unique_ptr<Channel> client;
    std::unique_ptr<Channel> server;
  };

  KeyPair authority(const std::string& name) {
    const WallTime now = executor_.clock().wall();
    return make_authority(name, now - 1min, now + 1h).value();
  }
  KeyPair issue(const KeyPair& by, std::vector<std::string> dns, std::vector<std::string> ips) {
    const WallTime now = executor_.clock().wall();
    return issue_certificate(by, {.common_name = "test",
                                  .dns_names = std::move(dns),
                                  .ip_addresses = std::move(ips),
                                  .not_before = now - 1min,
                                  .not_after = now + 1h})
        .value();
  }
  MonoTime soon() { return executor_.now() + kLong; }

  TlsConfig server_tls() {
    return {.certificate = server_.certificate,
            .private_key = server_.private_key,
            .authority = authority_.certificate,
            .require_peer_certificate = true};
  }
  TlsConfig client_tls() {
    return {.certificate = client_.certificate,
            .private_key = client_.private_key,
            .authority = authority_.certificate};
  }
  std::unique_ptr<Listener> listen() {
    return network_->listen({"127.0.0.1", 0}, server_tls(), {}).value();
  }
  Pair connect(Listener& listener) {
    Pair pair;
    pair.client = other_->dial(listener.local(), client_tls(), soon()).value();
    pair.server = listener.accept(soon()).value();
    return pair;
  }

  ThreadExecutor executor_;
  const KeyPair authority_ = authority("rubato");
  const KeyPair server_ = issue(authority_, {"coordinator.test"}, {"127.0.0.1"});
  const KeyPair client_ = issue(authority_, {}, {});
  std::unique_ptr<TlsNetwork> network_ = std::make_unique<TlsNetwork>(executor_);
  std::unique_ptr<TlsNetwork> other_ = std::make_unique<TlsNetwork>(executor_);
};

TEST_F(TlsNetworkTest, Echo) {
  const auto listener = listen();
  EXPECT_NE(listener->local().port, 0);
  const Pair pair = connect(*listener);
  EXPECT_EQ(pair.client->peer(), listener->local());
  std::vector<std::string> frames = {"", "a", std::string("\0\1\2", 3), std::string(100'000, 'x'),
                                     std::string(kMaxFrame, 'y')};
  for (const std::string& frame : frames) ASSERT_TRUE(pair.client->send(frame, soon()).ok());
  for (const std::string& frame : frames) {
    auto got = pair.server->receive(soon());
    ASSERT_TRUE(got.ok());
    ASSERT_TRUE(*got == frame);
    ASSERT_TRUE(pair.server->send(std::move(*got), soon()).ok());
  }
  for (const std::string& frame : frames)
    ASSERT_TRUE(pair.client->receive(soon()).value() == frame);
  EXPECT_EQ(pair.client->send(std::string(kMaxFrame + 1, 'z'), soon()).error().code(),
            Code::kInvalid);
}

TEST_F(TlsNetworkTest, APortCanBeTakenAgainAtOnce) {
  Endpoint at{"127.0.0.1", 0};
  for (int i = 0; i < 100; ++i) {
    auto listener = network_->listen(at, server_tls(), {});
    ASSERT_TRUE(listener.ok()) << listener.error().to_string();
    at = (*listener)->local();
    if (i % 10 == 0) connect(**listener);
  }
}

TEST_F(TlsNetworkTest, ManySmallFramesFromManySenders) {
  const auto listener = listen();
  const Pair pair = connect(*listener);
  constexpr int kSenders = 4;
  constexpr int kFrames = 2'000;
  std::vector<Task> tasks;
  for (int s = 0; s < kSenders; ++s) {
    tasks.push_back(executor_.spawn("sender", [&, s](std::stop_token) {
      for (int i = 0; i < kFrames; ++i) {
        ASSERT_TRUE(pair.client->send(std::to_string(s) + ":" + std::to_string(i), soon()).ok());
      }
    }));
  }
  std::vector<int> next(kSenders, 0);
  for (int i = 0; i < kSenders * kFrames; ++i) {
    const std::string frame = pair.server->receive(soon()).value();
    const auto sender = static_cast<std::size_t>(frame[0] - '0');
    ASSERT_EQ(std::stoi(frame.substr(2)), next.at(sender)++);  // in order per sender
  }
}

TEST_F(TlsNetworkTest, AWrongAuthorityIsRefused) {
  const auto listener = listen();
  TlsConfig tls = client_tls();
  tls.authority = authority("rubato").certificate;  // same name, another key
  EXPECT_EQ(other_->dial(listener->local(), tls, soon()).error().code(), Code::kDenied);
}

TEST_F(TlsNetworkTest, AClientWithoutAKnownCertificateIsRefused) {
  const auto listener = listen();
  TlsConfig none = client_tls();
  none.certificate = none.private_key = "";
  const KeyPair stranger = issue(authority("stranger"), {}, {});
  TlsConfig wrong = client_tls();
  wrong.certificate = stranger.certificate;
  wrong.private_key = stranger.private_key;
  for (const TlsConfig& tls : {none, wrong}) {
    auto channel = other_->dial(listener->local(), tls, soon());
    if (channel.ok()) {  // in TLS 1.3 the dialer learns it with the first read
      EXPECT_EQ((*channel)->receive(soon()).error().code(), Code::kUnavailable);
      EXPECT_TRUE((*channel)->closed());
    }
  }
  const Pair good = connect(*listener);  // and it is the first that accept() ever returned
  ASSERT_TRUE(good.client->send("hello", soon()).ok());
  EXPECT_EQ(good.server->receive(soon()).value(), "hello");
}

TEST_F(TlsNetworkTest, ThePeersNameIsVerified) {
  const auto listener = listen();
  TlsConfig tls = client_tls();
  for (const char* good : {"127.0.0.1", "coordinator.test", ""}) {
    tls.peer_name = good;
    EXPECT_TRUE(other_->dial(listener->local(), tls, soon()).ok()) << good;
  }
  for (const char* bad : {"127.0.0.2", "other.test", "test", "::1"}) {
    tls.peer_name = bad;
    EXPECT_EQ(other_->dial(listener->local(), tls, soon()).error().code(), Code::kDenied) << bad;
  }
}

// What a dialer keeps is of its configuration: another certificate is shown, another authority is
// asked, whoever was dialed before.
TEST_F(TlsNetworkTest, ADialerShowsAndTrustsWhatItIsToldNow) {
  const auto listener = listen();
  const auto shown_to_us = [&](const TlsConfig& tls) {
    const auto client = other_->dial(listener->local(), tls, soon()).value();
    return listener->accept(soon()).value()->peer_name();
  };
  const auto named = [&](const std::string& name) {
    const KeyPair pair = issue(authority_, {name}, {});
    TlsConfig tls = client_tls();
    tls.certificate = pair.certificate;
    tls.private_key = pair.private_key;
    return tls;
  };
  const TlsConfig first = named("first.test");
  for (int i = 0; i < 20; ++i) {  // more than are kept
    const std::string name = "other-" + std::to_string(i) + ".test";
    EXPECT_EQ(shown_to_us(first), "first.test");
    EXPECT_EQ(shown_to_us(named(name)), name);
  }
  TlsConfig distrusts = first;
  distrusts.authority = authority("rubato").certificate;
  EXPECT_EQ(other_->dial(listener->local(), distrusts, soon()).error().code(), Code::kDenied);
  TlsConfig demands = first;
  demands.peer_name = "other.test";
  EXPECT_EQ(other_->dial(listener->local(), demands, soon()).error().code(), Code::kDenied);
  EXPECT_EQ(shown_to_us(first), "first.test");
}

TEST_F(TlsNetworkTest, RefusesConfigurationsThatVerifyNothing) {
  const auto listener = listen();
  TlsConfig tls = client_tls();
  tls.authority = "";
  EXPECT_EQ(other_->dial(listener->local(), tls, soon()).error().code(), Code::kInvalid);
  EXPECT_EQ(network_->listen({"127.0.0.1", 0}, {}, {}).error().code(), Code::kInvalid);
  TlsConfig server = server_tls();
  server.authority = "";
  EXPECT_EQ(network_->listen({"127.0.0.1", 0}, server, {}).error().code(), Code::kInvalid);
  server = server_tls();
  server.private_key = client_.private_key;
  EXPECT_EQ(network_->listen({"127.0.0.1", 0}, server, {}).error().code(), Code::kInvalid);
  EXPECT_EQ(network_->listen({"nowhere", 0}, server_tls(), {}).error().code(), Code::kInvalid);
  EXPECT_EQ(network_->listen(listener->local(), server_tls(), {}).error().code(),
            Code::kUnavailable);
}

TEST_F(TlsNetworkTest, ARenewedListenerShowsTheNewCertificateToWhoComesThen) {
  const auto listener = listen();
  const Pair before = connect(*listener);
  const KeyPair others = authority("rubato");  // of the same name
  const KeyPair shown = issue(others, {}, {"127.0.0.1"});
  const TlsConfig renewed{.certificate = shown.certificate, .private_key = shown.private_key};
  ASSERT_TRUE(listener->renew(renewed).ok());
  EXPECT_EQ(listener->renew({.certificate = "nonsense"}).error().code(), Code::kInvalid);
  TlsConfig tls = client_tls();
  EXPECT_EQ(other_->dial(listener->local(), tls, soon()).error().code(), Code::kDenied);
  tls.authority += others.certificate;
  EXPECT_TRUE(other_->dial(listener->local(), tls, soon()).ok());
  ASSERT_TRUE(before.client->send("still here", soon()).ok());
  EXPECT_EQ(before.server->receive(soon()).value(), "still here");
}

TEST_F(TlsNetworkTest, NobodyListens) {
  const Endpoint at = listen()->local();  // closed at the end of the line
  const auto channel = other_->dial(at, client_tls(), soon());
  ASSERT_FALSE(channel.ok());
  EXPECT_EQ(channel.error().code(), Code::kUnavailable);
}

TEST_F(TlsNetworkTest, ASilentServerMeetsTheDialDeadline) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  ASSERT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const auto channel =
      other_->dial({"127.0.0.1", ntohs(address.sin_port)}, client_tls(), executor_.now() + 50ms);
  EXPECT_EQ(channel.error().code(), Code::kTimeout);
  ::close(fd);
}

TEST_F(TlsNetworkTest, HangingHandshakesDelayNobody) {
  const auto listener = listen();
  std::vector<std::unique_ptr<MuteClient>> mute;
  for (int i = 0; i < 100; ++i) mute.push_back(std::make_unique<MuteClient>(listener->local()));
  const MonoTime start = executor_.now();
  const Pair pair = connect(*listener);
  EXPECT_LT(executor_.now() - start, kHandshakeLimit);
}

TEST_F(TlsNetworkTest, ASlowReaderHoldsTheSenderBack) {
  const auto listener = listen();
  const Pair pair = connect(*listener);
  constexpr std::size_t kFrame = 1u << 20;
  constexpr std::size_t kQueued = kSendQueueBytes + kReceiveQueueBytes - 2 * kFrame;
  const MonoTime deadline = soon();
  std::size_t sent = 0;
  // A time-out tells that all is full only once the queues are: a busy machine moves late.
  for (bool full = false; !full;) {
    std::string frame(kFrame, static_cast<char>('a' + sent % 26));
    const Status status = pair.client->send(std::move(frame), executor_.now() + 500ms);
    if (status.ok()) {
      ++sent;
    } else {
      ASSERT_EQ(status.error().code(), Code::kTimeout);
      full = sent * kFrame >= kQueued;
    }
    ASSERT_LT(sent, 200u);
    ASSERT_LT(executor_.now(), deadline) << sent;
  }
  // Both queues, one frame beyond, and what the kernel's socket buffers take.
  EXPECT_LE(sent * kFrame, kSendQueueBytes + kReceiveQueueBytes + (20u << 20));
  for (std::size_t i = 0; i < sent; ++i) {
    const std::string frame = pair.server->receive(soon()).value();
    ASSERT_EQ(frame.size(), kFrame);
    ASSERT_EQ(frame.back(), static_cast<char>('a' + i % 26));
  }
}

// The kernel closes a killed process's sockets without a farewell; so does a network that goes.
TEST_F(TlsNetworkTest, ABlockedReceiveLearnsOfADeadPeer) {
  const auto listener = listen();
  const Pair pair = connect(*listener);
  std::atomic<Code> code{Code::kInternal};
  Task reader = executor_.spawn(
      "reader", [&](std::stop_token) { code = pair.server->receive(soon()).error().code(); });
  other_.reset();
  reader.join();
  EXPECT_EQ(code, Code::kUnavailable);
  EXPECT_TRUE(pair.client->closed());
  EXPECT_TRUE(pair.server->closed());
  EXPECT_EQ(pair.server->send("x", soon()).error().code(), Code::kUnavailable);
}

TEST_F(TlsNetworkTest, CloseSendsWhatIsQueued) {
  const auto listener = listen();
  Pair pair = connect(*listener);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(pair.client->send(std::to_string(i), soon()).ok());
  pair.client->close();
  EXPECT_EQ(pair.client->send("x", soon()).error().code(), Code::kUnavailable);
  pair.client.reset();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(pair.server->receive(soon()).value(), std::to_string(i));
  EXPECT_EQ(pair.server->receive(soon()).error().code(), Code::kUnavailable);
}

TEST_F(TlsNetworkTest, CloseWakesABlockedReceiveAndAccept) {
  const auto listener = listen();
  const Pair pair = connect(*listener);
  const MonoTime start = executor_.now();
  {
    Task reader = executor_.spawn("reader", [&](std::stop_token) {
      EXPECT_EQ(pair.client->receive(soon()).error().code(), Code::kUnavailable);
    });
    Task acceptor = executor_.spawn("acceptor", [&](std::stop_token) {
      EXPECT_EQ(listener->accept(soon()).error().code(), Code::kUnavailable);
    });
    pair.client->close();
    listener->close();
  }
  EXPECT_LT(executor_.now() - start, kLong);
}

TEST_F(TlsNetworkTest, WaitsKeepTheirDeadlines) {
  const auto listener = listen();
  const Pair pair = connect(*listener);
  EXPECT_EQ(pair.client->receive(executor_.now() + 5ms).error().code(), Code::kTimeout);
  EXPECT_EQ(listener->accept(executor_.now() + 5ms).error().code(), Code::kTimeout);
  EXPECT_FALSE(pair.client->closed());
}

TEST_F(TlsNetworkTest, ClosingFromManyThreadsWhileInUse) {
  const auto listener = listen();
  for (int round = 0; round < 20; ++round) {
    const Pair pair = connect(*listener);
    std::vector<Task> tasks;
    tasks.push_back(executor_.spawn("sender", [&](std::stop_token) {
      while (pair.client->send(std::string(1000, 'x'), soon()).ok()) {
      }
    }));
    tasks.push_back(executor_.spawn("reader", [&](std::stop_token) {
      while (pair.server->receive(soon()).ok()) {
      }
    }));
    tasks.push_back(executor_.spawn("closer", [&](std::stop_token) { pair.client->close(); }));
    tasks.push_back(executor_.spawn("closer", [&](std::stop_token) { pair.server->close(); }));
  }
}

}  // namespace
}  // namespace rubato::net
