// The attack suite: clients that mean harm, against the coordinator's port and the workers' ports,
// while a job trains with real agents and workers. No member is lost, no worker is replaced, no bit
// of the losses changes, memory is bounded, and each attacker is refused and counted.
#include "common/rng.h"
#include "operator/coordinator/server.h"
#include "tests/integration/coordinator/attackers.h"
#include "tests/integration/coordinator/job_processes.h"
#include "worker/protocol/wire.pb.h"

#include <cmath>
#include <limits>
#include <thread>

#include <gtest/gtest.h>

namespace rubato::coordinator {
namespace {

constexpr std::uint64_t kSteps = 400;
constexpr auto kPace = 10ms;  // of a micro-batch, until the attack is over
constexpr std::size_t kGrowthMax = 200 << 20;

JobOptions options() {
  JobOptions options;
  options.steps = kSteps;
  options.timing.silence = 20s;  // a busy machine is no attack
  return options;
}

class Attack : public ::testing::Test {
 protected:
  Attack() : job_(options()) {
    job_.pace(kPace);
    job_.start_workers = 2;
    job_.lead(1);
    job_.start_pod();
    job_.start_pod();
  }

  void begin() {
    ASSERT_TRUE(job_.wait([&] { return job_.view().step >= 5; })) << job_.view().reason;
    for (const auto& pod : job_.pods) workers_.push_back(job_.workers(*pod));
    resident_ = attack::resident_bytes();
  }

  void train_on(std::uint64_t steps) {
    const std::uint64_t until = job_.view().step + steps;
    ASSERT_TRUE(job_.wait([&] { return job_.view().step >= until; })) << job_.view().reason;
  }

  // Nobody was disturbed.
  void expect_whole() {
    EXPECT_EQ(job_.view().generation, 1u) << job_.view().reason;
    EXPECT_EQ(job_.view().members.size(), 2u);
    EXPECT_EQ(job_.view().failure_count, 0u);
    for (std::size_t i = 0; i < workers_.size(); ++i)
      EXPECT_EQ(job_.workers(*job_.pods[i]), workers_[i]);
    const std::size_t resident = attack::resident_bytes();
    EXPECT_LT(resident, resident_ + kGrowthMax);
  }

  void expect_finish() {
    job_.pace(0ms);
    ASSERT_TRUE(job_.wait([&] { return job_.view().phase == Phase::kFinished; }))
        << job_.view().reason;
    EXPECT_EQ(job_.losses().size(), kSteps);
  }

  std::uint64_t refused(const std::string& reason) const {
    const std::string name = "rubato_coordinator_refused_total{reason=\"" + reason + "\"} ";
    const std::string text = job_.metrics();
    const std::size_t at = text.find(name);
    return at == std::string::npos ? 0 : std::stoull(text.substr(at + name.size()));
  }
  void expect_refused(const std::string& reason, std::uint64_t least) {
    EXPECT_TRUE(job_.wait([&] { return refused(reason) >= least; }, 30s))
        << reason << ": " << refused(reason);
  }

  // A certificate of this installation for the job `uid`, or of another authority.
  net::TlsConfig tls(const net::KeyPair& by, const std::string& uid, Duration from = -1h,
                     Duration to = 1h) {
    const WallTime now = executor_.clock().wall();
    const auto pair = net::issue_certificate(by, {.common_name = uid,
                                                  .dns_names = {uid},
                                                  .not_before = now + from,
                                                  .not_after = now + to})
                          .value();
    return {.certificate = pair.certificate,
            .private_key = pair.private_key,
            .authority = job_.authority().certificate,
            .peer_name = "rubato-operator"};
  }
  // In TLS 1.3 the dialer learns with its first read that it was refused.
  std::unique_ptr<net::Channel> dial(const net::TlsConfig& config) {
    auto channel = network_.dial(job_.port(), config, soon());
    return channel.ok() ? std::move(*channel) : nullptr;
  }
  MonoTime soon() { return executor_.now() + 20s; }
  void expect_closed(const std::unique_ptr<net::Channel>& channel) {
    if (channel == nullptr) return;
    for (int frames = 0; frames < 100; ++frames) {
      const auto frame = channel->receive(soon());
      if (frame.ok()) continue;
      EXPECT_EQ(frame.error().code(), Code::kUnavailable) << frame.error().to_string();
      return;
    }
    FAIL() << "it was answered for ever";
  }
  wire::AgentMessage hello(const std::string& job_uid, const std::string& pod_uid) const {
    wire::AgentMessage message;
    wire::Hello& hello = *message.mutable_hello();
    hello.set_version_min(1);
    hello.set_version_max(1);
    hello.set_job_uid(job_uid);
    hello.set_token(job_.token());
    hello.set_pod_uid(pod_uid);
    hello.set_pod_name("gpt-9");
    hello.set_node("n");
    return message;
  }
  std::string reason_of(net::Channel& channel) {
    const auto frame = channel.receive(soon());
    wire::CoordinatorMessage answer;
    if (!frame.ok() || !answer.ParseFromString(*frame) || !answer.has_refused()) return "no answer";
    return answer.refused().reason();
  }

  ThreadExecutor executor_;
  net::TlsNetwork network_{executor_};
  JobProcesses job_;
  std::vector<std::vector<pid_t>> workers_;
  std::size_t resident_ = 0;
};

TEST_F(Attack, WhoHasNoCertificateOfTheJobIsNotHeard) {
  begin();
  const WallTime now = executor_.clock().wall();
  const auto stranger = net::make_authority("stranger", now - 1h, now + 1h).value();
  const std::string other = "11111111-0000-0000-0000-000000000000";
  net::TlsConfig none = tls(job_.authority(), job_.job_uid());
  none.certificate = none.private_key = "";
  const std::string pod = job_.pods[0]->uid;
  for (const net::TlsConfig& config :
       {none, tls(stranger, job_.job_uid()), tls(job_.authority(), job_.job_uid(), -2h, -1h)}) {
    const auto channel = dial(config);
    if (channel) (void)channel->send(hello(job_.job_uid(), pod).SerializeAsString(), soon());
    expect_closed(channel);
  }
  expect_refused("Handshake", 3);
  // Another job's certificate with this job's token, this job's with a wrong token, a pod that is
  // not wanted.
  const auto channel = dial(tls(job_.authority(), other));
  ASSERT_NE(channel, nullptr);
  ASSERT_TRUE(channel->send(hello(job_.job_uid(), pod).SerializeAsString(), soon()).ok());
  EXPECT_EQ(reason_of(*channel), "BadCertificate");
  const auto guess = dial(tls(job_.authority(), job_.job_uid()));
  ASSERT_NE(guess, nullptr);
  wire::AgentMessage guessed = hello(job_.job_uid(), pod);
  guessed.mutable_hello()->set_token("0000");
  ASSERT_TRUE(guess->send(guessed.SerializeAsString(), soon()).ok());
  EXPECT_EQ(reason_of(*guess), "BadToken");
  const auto unwanted = dial(tls(job_.authority(), job_.job_uid()));
  ASSERT_NE(unwanted, nullptr);
  ASSERT_TRUE(unwanted->send(hello(job_.job_uid(), other).SerializeAsString(), soon()).ok());
  EXPECT_EQ(reason_of(*unwanted), "NotWanted");
  expect_refused("BadCertificate", 1);
  expect_refused("BadToken", 1);
  train_on(10);
  expect_whole();
  expect_finish();
}

TEST_F(Attack, IdleHalfOpenAndGarbageConnectionsKeepNobodyOut) {
  begin();
  attack::RawClients idle(job_.port().port);
  idle.open(400, "");
  attack::RawClients half(job_.port().port);
  half.open(200, attack::half_hello());
  attack::RawClients noise(job_.port().port);
  for (std::uint64_t seed = 0; seed < 100; ++seed) noise.open(1, attack::garbage(seed, 1000));
  expect_refused("TooManyHandshakes", 300);
  // The workers' ports, too.
  std::vector<std::unique_ptr<attack::RawClients>> others;
  for (const auto& pod : workers_)
    for (const std::uint16_t port : attack::listening_ports(pod.at(0))) {
      others.push_back(std::make_unique<attack::RawClients>(port));
      others.back()->open(150, "");
      others.back()->open(50, attack::half_hello());
      others.back()->open(20, attack::garbage(port, 1000));
    }
  EXPECT_GE(others.size(), 2u);
  train_on(20);
  expect_whole();
  // A newcomer gets in at both ports while they are held.
  idle.open(200, "");
  for (const auto& held : others) held->open(150, "");
  job_.start_pod();
  ASSERT_TRUE(job_.wait([&] { return job_.view().members.size() == 3; })) << job_.view().reason;
  EXPECT_EQ(job_.view().failure_count, 0u);
  EXPECT_EQ(job_.workers(*job_.pods[0]), workers_[0]);
  expect_finish();
  EXPECT_TRUE(job_.wait([&] { return idle.alive() == 0; }, 30s)) << idle.alive();
  expect_refused("Handshake", 200);  // most of the first 256, which were let in
}

TEST_F(Attack, HugeFramesAndFloodsOfStrangersCostThemAlone) {
  begin();
  const std::string other = "11111111-0000-0000-0000-000000000000";
  const net::TlsConfig theirs = tls(job_.authority(), other);
  // More than are let in that have not said hello, and one frame that is too long.
  std::vector<std::unique_ptr<net::Channel>> mute;
  for (std::size_t i = 0; i < kGreetingMin + 20; ++i) mute.push_back(dial(theirs));
  expect_refused("TooManyConnections", 20);
  const auto huge = dial(tls(job_.authority(), "22222222-0000-0000-0000-000000000000"));
  ASSERT_NE(huge, nullptr);
  (void)huge->send(std::string(8 << 20, 'x'), soon());
  expect_closed(huge);
  for (const auto& channel : mute) expect_closed(channel);  // the hello's time is over
  expect_refused("NoHello", 1);
  const auto noise = dial(theirs);
  ASSERT_NE(noise, nullptr);
  (void)noise->send(attack::garbage(1, 1000), soon());
  expect_closed(noise);
  expect_refused("NotTheProtocol", 1);
  train_on(10);
  expect_whole();
  expect_finish();
}

// Who says in full what an agent has said, and who says it so slowly that it never ends. At the
// workers' ports, too.
TEST_F(Attack, SlowAndReplayedClientsAreRefusedAtBothPorts) {
  job_.pace(60ms);
  begin();
  const std::string nobody = "11111111-0000-0000-0000-000000000000";
  const std::string session = attack::recorded(job_.port().port, [&](std::uint16_t port) {
    auto channel =
        network_.dial({"127.0.0.1", port}, tls(job_.authority(), job_.job_uid()), soon());
    ASSERT_TRUE(channel.ok()) << channel.error().to_string();
    ASSERT_TRUE((*channel)->send(hello(job_.job_uid(), nobody).SerializeAsString(), soon()).ok());
    EXPECT_EQ(reason_of(**channel), "NotWanted");
  });
  ASSERT_GT(session.size(), 500u);
  std::vector<std::uint16_t> ports{job_.port().port};
  for (const auto& pod : workers_)
    for (const std::uint16_t port : attack::listening_ports(pod.at(0))) ports.push_back(port);
  ASSERT_GE(ports.size(), 3u);
  const std::uint64_t unwanted = refused("NotWanted");
  std::vector<std::unique_ptr<attack::RawClients>> replaying;
  std::vector<std::unique_ptr<attack::RawClients>> slow;
  for (const std::uint16_t port : ports) {
    replaying.push_back(std::make_unique<attack::RawClients>(port));
    replaying.back()->open(20, session);
    slow.push_back(std::make_unique<attack::RawClients>(port));
    slow.back()->open(20, "");
  }
  for (std::size_t at = 0; at < 30; ++at) {  // six seconds: longer than a handshake may take
    for (const auto& clients : slow) clients->say(session.substr(at, 1));
    executor_.sleep_for(200ms);
  }
  for (std::size_t i = 0; i < ports.size(); ++i) {
    EXPECT_TRUE(job_.wait([&] { return slow[i]->alive() == 0; }, 10s)) << "port " << ports[i];
    EXPECT_TRUE(job_.wait([&] { return replaying[i]->alive() == 0; }, 10s)) << "port " << ports[i];
  }
  EXPECT_EQ(refused("NotWanted"), unwanted) << "a hello was heard twice";
  expect_refused("Handshake", 40);  // of the coordinator's port; workers count none
  train_on(10);
  expect_whole();
  expect_finish();
}

// A worker lets in who has a certificate of the job that is valid, and closes to all others before
// they have said anything.
TEST_F(Attack, OnlyTheJobsCertificateOpensAWorkersPort) {
  job_.pace(60ms);
  begin();
  const WallTime now = executor_.clock().wall();
  const auto stranger = net::make_authority("stranger", now - 1h, now + 1h).value();
  const std::string other = "11111111-0000-0000-0000-000000000000";
  const net::Endpoint port{"127.0.0.1", attack::listening_ports(workers_.at(0).at(0)).at(0)};
  const auto is_closed = [&](net::TlsConfig config, MonoTime until) {
    config.authority = job_.authority().certificate;
    config.peer_name = job_.job_uid();
    const auto channel = network_.dial(port, config, soon());
    return !channel.ok() || (*channel)->receive(until).error().code() != Code::kTimeout;
  };
  EXPECT_FALSE(is_closed(tls(job_.authority(), job_.job_uid()), executor_.now() + 2s));
  EXPECT_TRUE(is_closed(tls(job_.authority(), other), soon())) << "another job's";
  EXPECT_TRUE(is_closed(tls(stranger, job_.job_uid()), soon())) << "of another authority";
  EXPECT_TRUE(is_closed(tls(job_.authority(), job_.job_uid(), -2h, -1h), soon()))
      << "that has ended";
  net::TlsConfig none = tls(job_.authority(), job_.job_uid());
  none.certificate = none.private_key = "";
  EXPECT_TRUE(is_closed(none, soon())) << "none";
  train_on(10);
  expect_whole();
  expect_finish();
}

// A pod of the job itself that says what no worker says, as fast as it can.
TEST_F(Attack, AFloodOfNonsenseByAPodOfTheJobDisturbsNoMember) {
  begin();
  const JobProcesses::Pod& own = job_.promise_pod();
  const auto channel = dial(tls(job_.authority(), job_.job_uid()));
  ASSERT_NE(channel, nullptr);
  wire::AgentMessage first = hello(job_.job_uid(), own.uid);
  ASSERT_TRUE(channel->send(first.SerializeAsString(), soon()).ok());
  const MonoTime until = executor_.now() + 5s;
  std::uint64_t sent = 0;
  Rng rng(7);
  while (executor_.now() < until && !channel->closed()) {
    wire::AgentMessage message;
    auto& heartbeat = *message.mutable_heartbeat();
    for (int i = 0; i < 20; ++i) {
      wire::WorkerStanding& standing = *heartbeat.add_workers();
      standing.mutable_id()->set_pod_uid(i % 2 == 0 ? own.uid : job_.pods[0]->uid);
      standing.mutable_id()->set_slot(static_cast<std::uint32_t>(rng.next()));
      standing.mutable_id()->set_incarnation(rng.next());
      standing.set_phase(wire::WORKER_STARTING);
      standing.set_step(rng.next());
      standing.set_seq(rng.next());
      standing.set_loss(std::nan(""));
      standing.set_step_seconds(std::numeric_limits<double>::infinity());
      standing.set_fingerprint(std::string(2000, 'f'));
    }
    if (channel->send(message.SerializeAsString(), executor_.now() + 100ms).ok()) ++sent;
    while (channel->receive(executor_.now()).ok()) continue;
  }
  EXPECT_GT(sent, 100u);
  train_on(10);
  expect_whole();
  EXPECT_TRUE(std::isfinite(job_.view().loss));
  EXPECT_LT(job_.view().step, kSteps);
  // Nothing but empty workers, each of which is two bytes.
  const auto again = dial(tls(job_.authority(), job_.job_uid()));
  ASSERT_NE(again, nullptr);
  ASSERT_TRUE(again->send(first.SerializeAsString(), soon()).ok());
  wire::AgentMessage empty;
  for (int i = 0; i < 100'000; ++i) empty.mutable_heartbeat()->add_workers();
  ASSERT_TRUE(again->send(empty.SerializeAsString(), soon()).ok());
  expect_closed(again);
  expect_refused("NotTheProtocol", 1);
  channel->close();
  job_.pods.back()->wanted = false;
  job_.wish();
  expect_finish();
}

}  // namespace
}  // namespace rubato::coordinator
