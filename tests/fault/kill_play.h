// Plays one case of the kill matrix with real agents and workers, and compares what it leaves with
// an undisturbed run: loss bytes, weights, optimizer state, and every sample exactly once.
#pragma once

#include "tests/fault/kill_case.h"
#include "tests/integration/coordinator/node_networks.h"

#include <filesystem>
#include <string>

namespace rubato::fault {

struct Outcome {
  std::string steps;    // steps.bin
  std::string weights;  // model.safetensors of the last checkpoint
  std::string moments;  // optimizer.safetensors
  std::filesystem::path ledger;
  std::filesystem::path tokens;
};

struct Verdict {
  std::string fault;  // empty: equal
  double seconds = 0;
  std::filesystem::path files;  // kept when it failed
  bool ok() const { return fault.empty(); }
};

class Player {
 public:
  // `networks` may be null: then cables cannot be cut. Runs the undisturbed job.
  explicit Player(NodeNetworks* networks);
  ~Player();
  Verdict play(const KillCase& one) const;

 private:
  NodeNetworks* const networks_;
  Outcome reference_;
  std::filesystem::path folder_;  // of the undisturbed run
};

}  // namespace rubato::fault
