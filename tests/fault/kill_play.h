// Plays one case of the kill matrix with real agents and workers, and compares what it leaves with
// an undisturbed run: loss bytes, weights, optimizer state, and every sample exactly once. Whoever
// was not hit has to be the same process all along.
#pragma once

#include "tests/fault/kill_case.h"
#include "tests/fault/kill_outcome.h"
#include "tests/integration/coordinator/node_networks.h"

#include <filesystem>
#include <map>
#include <string>

namespace rubato::fault {

struct Verdict {
  std::string fault;  // empty: equal
  double seconds = 0;
  std::filesystem::path files;  // kept when it failed
  bool ok() const { return fault.empty(); }
};

class Player {
 public:
  // `networks` may be null: then cables cannot be cut. Without `disks` none can be broken.
  Player(NodeNetworks* networks, bool disks);
  ~Player();
  // Whether this machine has what the case needs.
  bool can_play(const KillCase& one) const;
  // With the undisturbed run first, where it is the first of its size.
  Verdict play(const KillCase& one);

 private:
  struct Reference {
    Outcome outcome;
    std::filesystem::path folder;
  };
  const Outcome& reference(std::uint32_t micro_batches);
  bool play_once(const KillCase& one, const Outcome& undisturbed, Verdict& verdict) const;

  NodeNetworks* const networks_;
  const bool disks_;
  std::map<std::uint32_t, Reference> references_;  // undisturbed runs, by micro-batches of a step
};

}  // namespace rubato::fault
