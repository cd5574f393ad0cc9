// The kill matrix: what is done to whom, where, and how many there are. A case is a scene (a step,
// a join, a recovery …) in which one to three workers, or their disks, are hit at a named place
// (the phases of worker/testing/fault_points.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rubato::fault {

enum class Scene {
  kStep,     // training goes on, nothing else happens
  kJoin,     // a newcomer comes
  kLeave,    // the last one is told to leave
  kRecover,  // the last one's node dies at its vote; the others are hit while they recover
  kLevel,    // the first one hears all votes and its own is lost: the others are a round behind it
  kStart,    // the first generation
  kEnd,      // the last step
  kLeader,   // the coordinator is replaced as the fault strikes
  kPark,     // too few are left, until another comes
};
const char* name_of(Scene scene);

enum class Fault {
  kKill,    // SIGKILL to the worker; its agent starts another
  kPod,     // SIGKILL to agent and worker: the node is gone
  kStop,    // SIGSTOP to the worker, for good, while its agent's heartbeats go on
  kFreeze,  // SIGSTOP to agent and worker; SIGCONT once they are given up: a zombie
  kCut,     // the node's cable is pulled, and put back once the node is given up
  kDeaf,    // what the node sends to the coordinator is lost, for a while
  kSplit,   // what the node sends to other nodes is lost, for a while
  kRack,    // nothing passes between the first half of the nodes and the other, for a while
  kFull,    // the disk with the checkpoints has no room, for a while
  kSlow,    // the disk takes its time for every call, for a while
  kEio,     // every call to the disk fails, for a while
};
constexpr Fault kFaults[] = {Fault::kKill, Fault::kPod,  Fault::kStop,  Fault::kFreeze,
                             Fault::kCut,  Fault::kDeaf, Fault::kSplit, Fault::kRack,
                             Fault::kFull, Fault::kSlow, Fault::kEio};
const char* name_of(Fault fault);
bool is_of_network(Fault fault);
bool is_of_disk(Fault fault);
// The first hit of such a scene makes the place of the others come.
bool is_of_recovery(Scene scene);

enum class Role { kFirst, kSecond, kThird, kLast, kNewcomer };
const char* name_of(Role role);

struct Hit {
  Role role = Role::kFirst;
  std::string phase;
  Fault fault = Fault::kKill;
  bool everywhere = false;  // a fault of disks: on all nodes
  bool is_long = false;     // … longer than anybody has to show progress
};

constexpr std::uint32_t kUsualMicroBatches = 8;

struct KillCase {
  Scene scene = Scene::kStep;
  int world = 1;  // members before
  std::vector<Hit> hits;
  bool replace = false;  // another pod comes at once, whatever becomes of the one that was hit
  std::uint32_t micro_batches = kUsualMicroBatches;  // of a step

  std::string name() const;
  int pod_of(Role role) const;
};

std::vector<KillCase> all_cases();
// Names of the cases that `make test` runs: each scene, fault and world size at least once.
std::vector<std::string> telling_cases();

}  // namespace rubato::fault
