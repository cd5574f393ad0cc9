// Replica: one replica of the operator, life after life: the same Operator object that
// operator/main runs, in a simulated process, with API clients whose requests are late, refused,
// answered and then forgotten, or cut short by a crash before or after the n-th write of the story.
// One thread; outside of any simulated process.
#pragma once

#include "apiserver/memory/memory_client.h"
#include "common/metrics.h"
#include "operator/control/installation.h"
#include "operator/control/operator.h"
#include "tests/sim/model_node.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace rubato::sim {

constexpr std::uint16_t kCoordinatorPort = 7443;
constexpr Duration kRequestLimit = 1300ms;       // of the operator's requests
constexpr Duration kLeaseRequestLimit = 1300ms;  // of those for the Lease
constexpr std::uint64_t kLateMillis = 8000;      // a late write's delay, at most

// Where operators are to die: before (even) or after (odd) the write of this number / 2.
struct WriteCrashes {
  std::uint64_t writes = 0;  // so far, of all replicas
  std::map<std::uint64_t, bool> due;
  std::function<void()> on_crash = [] {};
};

// What is wrong with the API as one replica sees it.
struct ApiTrouble {
  double flaky = 0;        // chance of an error, before or after the effect
  double expired = 0;      // chance that an event is a 410 instead
  Duration slow_events{};  // events of `slow_kind` come late
  std::string slow_kind;
  double late = 0;  // chance that a fenced write takes effect after its client gave up
  // What the API server says no to, and how; unset: to nothing.
  std::function<std::optional<Error>(const kube::Operation&)> refuses = {};
};

struct ReplicaSettings {
  std::string host;  // "op-a"
  std::string ns = "rubato-system";
  control::Installation installation = {};
  std::vector<std::string> coordinators;
  Duration api_delay = 5ms;
  Duration monotonic_skew{};
  Duration wall_skew{};
  kube::LeaseTiming lease;
  std::uint64_t seed = 1;
  control::RoundRecorder record = {};
};

class Replica {
 public:
  Replica(const Ground& ground, WriteCrashes& crashes, ReplicaSettings settings);

  void start();  // a new life
  void crash();  // and a new life soon after
  void stop();   // in order, as an upgrade does; a new life soon after
  void move(const std::string& ns) { settings_.ns = ns; }  // of lives to come
  void freeze();
  void thaw();
  bool is_alive() const { return life_ != nullptr; }
  bool is_leader() const;
  bool is_frozen() const;
  bool is_ready() const;
  // Of the life whose request is being served.
  std::optional<std::uint64_t> epoch() const;
  testing::SimProcess* process();
  const std::string& host() const { return settings_.host; }
  ApiTrouble& trouble() { return trouble_; }
  std::uint64_t lives() const { return lives_; }

 private:
  struct Life;
  class Faults;
  void died();

  const Ground& ground_;
  WriteCrashes& crashes_;
  ReplicaSettings settings_;
  ApiTrouble trouble_;
  MonoTime late_until_{};  // when the last late write takes effect
  Rng rng_;
  Life* life_ = nullptr;  // never destroyed: what a crashed process owned stays as it was
  std::uint64_t lives_ = 0;
};

// Whose request the API server is serving now; null: nobody's (kubelets, people).
Replica*& serving();

}  // namespace rubato::sim
