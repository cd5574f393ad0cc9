#include "common/net/tls_network.h"

#include "common/free_with.h"
#include "common/net/certificates.h"
#include "common/net/tls_limits.h"
#include "tests/unit/common/net/raw_client.h"

#include <array>
#include <atomic>
#include <condition_variable>
#include <string_view>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace rubato::net {
namespace {

constexpr auto kLong = 60s;  // no step here needs a second

// What the system is asked in this program. Of names under silent.test there is no answer until
// `over`, or for ten seconds.
struct Dns {
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  int answered = 0;  // of those
};
Dns dns;

int answer_late() {
  std::unique_lock lock(dns.mutex);
  dns.changed.wait_for(lock, 10s, [] { return dns.over; });
  ++dns.answered;
  dns.changed.notify_all();
  return EAI_AGAIN;
}

int answer(std::string_view name, const char* service, const addrinfo* hints, addrinfo** found) {
  static const auto system =
      reinterpret_cast<decltype(&::getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  if (name == "known.test") return system("127.0.0.1", service, hints, found);
  return name.ends_with(".silent.test") ? answer_late() : EAI_NONAME;
}

}  // namespace
}  // namespace rubato::net

// In place of the C library's.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  return rubato::net::answer(name, service, hints, found);
}

namespace rubato::net {
namespace {

// A dialer that has OpenSSL to itself, and answers for none of it.
class RawTlsClient {
 public:
  RawTlsClient(const Endpoint& to, const KeyPair& shown)
      : raw_(to), context_(SSL_CTX_new(TLS_client_method())), certificate_(read(shown)) {
    const std::unique_ptr<BIO, FreeWith<BIO_free>> text(
        BIO_new_mem_buf(shown.private_key.data(), static_cast<int>(shown.private_key.size())));
    const std::unique_ptr<EVP_PKEY, FreeWith<EVP_PKEY_free>> key(
        PEM_read_bio_PrivateKey(text.get(), nullptr, nullptr, nullptr));
    CHECK_EQ(SSL_CTX_use_certificate(context_.get(), certificate_.get()), 1);
    CHECK_EQ(SSL_CTX_use_PrivateKey(context_.get(), key.get()), 1);
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), raw_.fd());
  }
  bool connect() { return SSL_connect(ssl_.get()) == 1; }
  void use_groups(const char* groups) { CHECK_EQ(SSL_set1_groups_list(ssl_.get(), groups), 1); }
  void show_also(int times) {
    while (times-- > 0) CHECK_EQ(SSL_add1_chain_cert(ssl_.get(), certificate_.get()), 1);
  }
  void update_key(int times) {
    for (; times > 0; --times) {
      if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) return;
      if (SSL_do_handshake(ssl_.get()) != 1) return;
    }
  }
  void send(const std::string& bytes) {
    SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size()));
  }

 private:
  using Certificate = std::unique_ptr<X509, FreeWith<X509_free>>;
  static Certificate read(const KeyPair& pair) {
    const std::unique_ptr<BIO, FreeWith<BIO_free>> text(
        BIO_new_mem_buf(pair.certificate.data(), static_cast<int>(pair.certificate.size())));
    return Certificate(PEM_read_bio_X509(text.get(), nullptr, nullptr, nullptr));
  }

  RawClient raw_;
  const std::unique_ptr<SSL_CTX, FreeWith<SSL_CTX_free>> context_;
  const Certificate certificate_;
  std::unique_ptr<SSL, FreeWith<SSL_free>> ssl_;
};

// A port that takes no connection more: who dials it hears nothing. On another address than the
// tests' listeners, so that it may have the port of one of them.
class SilentPort {
 public:
  explicit SilentPort(const char* address, std::uint16_t port = 0)
      : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    ::inet_pton(AF_INET, address, &at.sin_addr);
    socklen_t size = sizeof at;
    CHECK_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&at), size), 0);
    CHECK_EQ(::listen(fd_, 0), 0);
    CHECK_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size), 0);
    fills_ = std::make_unique<RawClient>(Endpoint{address, ntohs(at.sin_port)});
  }
  ~SilentPort() { ::close(fd_); }
  SilentPort(const SilentPort&) = delete;
  SilentPort& operator=(const SilentPort&) = delete;

 private:
  int fd_;
  std::unique_ptr<RawClient> fills_;
};

// Whether ::1 can be listened on here.
bool has_ipv6() {
  const int fd = ::socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 at{};
  at.sin6_family = AF_INET6;
  at.sin6_addr = in6addr_loopback;
  const bool is_bound =
      fd >= 0 && ::bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0;
  if (fd >= 0) ::close(fd);
  return is_bound;
}

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
  // Counts what it refuses.
  std::unique_ptr<Listener> listen(ListenLimits limits) {
    limits.refused = [this](Refusal why) {
      const std::lock_guard lock(mutex_);
      ++refused_.at(static_cast<std::size_t>(why));
      refuses_->notify_all();
    };
    return network_->listen({"127.0.0.1", 0}, server_tls(), limits).value();
  }
  int refused(Refusal why) {
    const std::lock_guard lock(mutex_);
    return refused_.at(static_cast<std::size_t>(why));
  }
  bool refuses(Refusal why, int times) {
    std::unique_lock lock(mutex_);
    return refuses_->wait_until(
        lock, soon(), [&] { return refused_.at(static_cast<std::size_t>(why)) >= times; });
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
  std::mutex mutex_;
  const std::unique_ptr<Condition> refuses_ = executor_.make_condition();
  std::array<int, 2> refused_{};  // by Refusal
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

TEST_F(TlsNetworkTest, AddressesOfIpv6AreDialledAndVerified) {
  if (!has_ipv6()) GTEST_SKIP() << "::1 cannot be listened on here";
  const KeyPair shown = issue(authority_, {}, {"::1"});
  TlsConfig own = server_tls();
  own.certificate = shown.certificate;
  own.private_key = shown.private_key;
  const auto listener = network_->listen(parse_endpoint("[::1]:0").value(), own, {}).value();
  EXPECT_TRUE(to_string(listener->local()).starts_with("[::1]:"));
  TlsConfig tls = client_tls();
  tls.peer_name = "::1";
  const auto client = other_->dial(listener->local(), tls, soon()).value();
  const auto server = listener->accept(soon()).value();
  EXPECT_EQ(client->peer(), listener->local());
  ASSERT_TRUE(client->send("hello", soon()).ok());
  EXPECT_EQ(server->receive(soon()).value(), "hello");
  for (const char* bad : {"::2", "127.0.0.1", "coordinator.test"}) {
    tls.peer_name = bad;
    EXPECT_EQ(other_->dial(listener->local(), tls, soon()).error().code(), Code::kDenied) << bad;
  }
}

// As the chart's operator listens.
TEST_F(TlsNetworkTest, BothFamiliesReachWhoListensOnAllAddresses) {
  if (!has_ipv6()) GTEST_SKIP() << "::1 cannot be listened on here";
  const auto listener = network_->listen({"::", 0}, server_tls(), {}).value();
  for (const char* host : {"127.0.0.1", "::1"}) {
    TlsConfig tls = client_tls();
    tls.peer_name = "coordinator.test";
    const auto client = other_->dial({host, listener->local().port}, tls, soon());
    ASSERT_TRUE(client.ok()) << host << ": " << client.error().to_string();
    EXPECT_TRUE(listener->accept(soon()).ok()) << host;
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
  std::vector<std::unique_ptr<RawClient>> mute;
  for (int i = 0; i < 100; ++i) mute.push_back(std::make_unique<RawClient>(listener->local()));
  const MonoTime start = executor_.now();
  const Pair pair = connect(*listener);
  EXPECT_LT(executor_.now() - start, kHandshakeLimit);
}

// As many as are let in, of more than one host.
TEST_F(TlsNetworkTest, HangingHandshakesOfAFewHostsMakeRoom) {
  const auto listener = listen({.pending = 32, .pending_per_source = 16});
  std::vector<std::unique_ptr<RawClient>> mute;
  for (const char* from : {"127.0.0.2", "127.0.0.3"})
    for (int i = 0; i < 16; ++i)
      mute.push_back(std::make_unique<RawClient>(listener->local(), from));
  for (int i = 0; i < 4; ++i) connect(*listener);
  EXPECT_EQ(refused(Refusal::kTooMany), 1);
  EXPECT_EQ(mute.front()->read_until(""), "") << "the oldest was closed";
  const RawClient beyond(listener->local(), "127.0.0.3");  // it has 16 still
  EXPECT_TRUE(refuses(Refusal::kTooMany, 2));
  EXPECT_EQ(refused(Refusal::kHandshake), 0);
}

// When all agents come at once nobody loses its place.
TEST_F(TlsNetworkTest, WhoHasFewHandshakesLosesNone) {
  const auto listener = listen({.pending = kFewHandshakes});
  std::vector<std::unique_ptr<RawClient>> mute;
  for (std::size_t i = 0; i < kFewHandshakes; ++i)
    mute.push_back(std::make_unique<RawClient>(listener->local(), "127.0.0.2"));
  const auto waits = other_->dial(listener->local(), client_tls(), executor_.now() + 50ms);
  EXPECT_EQ(waits.error().code(), Code::kTimeout);
  EXPECT_EQ(refused(Refusal::kTooMany), 0);
}

TEST_F(TlsNetworkTest, FailedHandshakesAreCounted) {
  const auto listener = listen(ListenLimits{});
  RawClient noise(listener->local());
  noise.send("GET / HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(refuses(Refusal::kHandshake, 1));
  const KeyPair stranger = issue(authority("stranger"), {}, {});
  RawTlsClient(listener->local(), stranger).connect();
  EXPECT_TRUE(refuses(Refusal::kHandshake, 2));
  EXPECT_EQ(refused(Refusal::kTooMany), 0);
}

// Each is 27 bytes for the peer, and OpenSSL reads on as long as they come.
TEST_F(TlsNetworkTest, WhoOnlyUpdatesItsKeyIsClosed) {
  const auto listener = listen();
  RawTlsClient some(listener->local(), client_);
  ASSERT_TRUE(some.connect());
  const auto heard = listener->accept(soon()).value();
  some.update_key(kHandshakeMessagesMost / 2);
  some.send(std::string("\0\0\0\2hi", 6));
  EXPECT_EQ(heard->receive(soon()).value(), "hi");
  RawTlsClient endless(listener->local(), client_);
  ASSERT_TRUE(endless.connect());
  const auto closed = listener->accept(soon()).value();
  endless.update_key(10 * kHandshakeMessagesMost);
  const auto end = closed->receive(soon());
  ASSERT_EQ(end.error().code(), Code::kUnavailable);
  EXPECT_NE(end.error().what().find("more TLS messages"), std::string::npos) << end.error().what();
}

// Its key exchange costs the thread that serves all 100 ms.
TEST_F(TlsNetworkTest, NobodyChoosesAKeyExchangeThatIsDear) {
  const auto listener = listen(ListenLimits{});
  RawTlsClient dear(listener->local(), client_);
  dear.use_groups("ffdhe8192");
  EXPECT_FALSE(dear.connect());
  EXPECT_TRUE(refuses(Refusal::kHandshake, 1));
  RawTlsClient old(listener->local(), client_);
  old.use_groups("P-256");
  EXPECT_TRUE(old.connect());
}

TEST_F(TlsNetworkTest, ALongChainIsNotRead) {
  const auto listener = listen(ListenLimits{});
  RawTlsClient client(listener->local(), client_);
  client.show_also(static_cast<int>(kPeerChainBytes / 256));
  client.connect();
  EXPECT_TRUE(refuses(Refusal::kHandshake, 1));
}

// Of a dual-stack name one family may be dead: it swallows what is sent to it.
TEST_F(TlsNetworkTest, TheNextAddressOfANameIsTriedInTime) {
  const auto listener = listen();
  const std::uint16_t port = listener->local().port;
  const SilentPort silent("127.0.0.9", port);
  TlsNetwork dialer(executor_, [](const std::string& name, const LookupDone& done) {
    if (name == "nobody.test") return done(Error(Code::kUnavailable, "Host not found"));
    done(std::vector<std::string>{"127.0.0.9", "127.0.0.1"});
  });
  TlsConfig tls = client_tls();
  tls.peer_name = "coordinator.test";
  const auto channel = dialer.dial({"two.test", port}, tls, executor_.now() + 3s);
  ASSERT_TRUE(channel.ok()) << channel.error().to_string();
  EXPECT_EQ((*channel)->peer().host, "127.0.0.1");
  EXPECT_TRUE(listener->accept(soon()).ok());
  const auto nobody = dialer.dial({"nobody.test", port}, tls, soon());
  EXPECT_EQ(nobody.error().code(), Code::kUnavailable);
}

TEST_F(TlsNetworkTest, AnAnswerOfDnsThatComesLateIsForTheNextDial) {
  const auto listener = listen();
  std::vector<LookupDone> asked;  // by the I/O thread, before its dial ends
  TlsNetwork dialer(executor_,
                    [&](const std::string&, const LookupDone& done) { asked.push_back(done); });
  TlsConfig tls = client_tls();
  tls.peer_name = "coordinator.test";
  const Endpoint to{"late.test", listener->local().port};
  for (int i = 0; i < 2; ++i) {
    const auto early = dialer.dial(to, tls, soon());
    ASSERT_EQ(early.error().code(), Code::kUnavailable) << early.error().to_string();
  }
  EXPECT_TRUE(dialer.dial(listener->local(), tls, soon()).ok()) << "an address waits for no name";
  EXPECT_TRUE(listener->accept(soon()).ok());
  ASSERT_EQ(asked.size(), 1u) << "it was asked again";
  asked[0](std::vector<std::string>{"127.0.0.1"});
  EXPECT_TRUE(dialer.dial(to, tls, soon()).ok());
  EXPECT_TRUE(listener->accept(soon()).ok());
  EXPECT_EQ(asked.size(), 1u);
}

TEST_F(TlsNetworkTest, TheSystemIsAskedForTheAddressesOfAName) {
  const auto listener = listen();
  TlsConfig tls = client_tls();
  tls.peer_name = "coordinator.test";
  const std::uint16_t port = listener->local().port;
  const auto channel = other_->dial({"known.test", port}, tls, soon());
  ASSERT_TRUE(channel.ok()) << channel.error().to_string();
  EXPECT_EQ((*channel)->peer().host, "127.0.0.1");
  EXPECT_TRUE(listener->accept(soon()).ok());
  const auto nobody = other_->dial({"nobody.test", port}, tls, soon());
  ASSERT_EQ(nobody.error().code(), Code::kUnavailable);
  EXPECT_NE(nobody.error().what().find(::gai_strerror(EAI_NONAME)), std::string::npos)
      << nobody.error().what();
}

// What an agent must not do when its job is over and DNS cannot be reached.
TEST_F(TlsNetworkTest, ItsEndDoesNotWaitForDns) {
  {
    const std::lock_guard lock(dns.mutex);
    dns.over = false;
    dns.answered = 0;
  }
  for (const char* name : {"a.silent.test", "b.silent.test"}) {
    const auto channel = other_->dial({name, 1}, client_tls(), soon());
    EXPECT_EQ(channel.error().code(), Code::kUnavailable);
  }
  other_.reset();
  std::unique_lock lock(dns.mutex);
  EXPECT_EQ(dns.answered, 0);
  dns.over = true;
  dns.changed.notify_all();
  EXPECT_TRUE(dns.changed.wait_for(lock, kLong, [] { return dns.answered == 2; }));
}

TEST_F(TlsNetworkTest, TheThreadThatReadsSaysThatItDoes) {
  const auto beaten = executor_.make_condition();
  std::mutex mutex;
  int beats = 0;
  ListenLimits limits;
  limits.beat = [&] {
    const std::lock_guard lock(mutex);
    ++beats;
    beaten->notify_all();
  };
  {
    const auto listener = network_->listen({"127.0.0.1", 0}, server_tls(), limits).value();
    std::unique_lock lock(mutex);
    EXPECT_TRUE(beaten->wait_until(lock, soon(), [&] { return beats >= 3; }));
  }
  network_.reset();  // it ends with the listener
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
