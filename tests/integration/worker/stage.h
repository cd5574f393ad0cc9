// What worker_alone runs its stories on: one job, a folder, fresh processes, and what a story
// leaves behind.
#pragma once

#include "tests/integration/worker/crew.h"
#include "worker/backend/device.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace rubato::worker {

constexpr std::uint32_t kMicroBatches = 8;
constexpr std::uint32_t kMicroBatch = 2;

struct Options {
  std::string program;  // the worker with the hooks of tests
  std::string shipped;  // the one without
  std::string folder;
  std::uint64_t steps = 30;
  std::uint64_t seeds = 4;  // of chaos
  std::uint64_t first_seed = 1;
  std::uint64_t layers = 2;
  std::uint64_t hidden = 64;
  std::uint64_t length = 64;  // tokens of a sample
  std::string family = "gpt2";
  Precision precision = Precision::kF32;
  std::string device;      // RUBATO_DEVICE of the workers; empty: the CPU
  std::string collective;  // RUBATO_COLLECTIVE; empty: links
  bool keep = false;
  std::vector<std::string> stories;
};

// What a story leaves behind.
struct Outcome {
  std::string steps;    // steps.bin
  std::string weights;  // model.safetensors of the last checkpoint
  std::string moments;  // optimizer.safetensors
  std::string ledger;
};

class Stage {
 public:
  Stage(const Options& options, const std::string& name, const std::string& secret_dir);
  // A fresh set of processes; a story that stops and resumes asks twice.
  Crew& crew();
  std::uint64_t steps() const { return options_.steps; }
  Outcome outcome() const;

 private:
  const Options& options_;
  std::string folder_;
  CrewConfig config_;
  std::unique_ptr<Crew> crew_;
  int crews_ = 0;
};

// The tokens that all stages of `options.folder` read.
void write_tokens(const Options& options);
// The weights that jobs of the family llama start from: a Hugging Face folder.
void write_first_weights(const Options& options);
// What differs from the undisturbed run: bytes, weights, samples. Empty: nothing.
std::vector<std::string> compare(const Options& options, const Outcome& outcome,
                                 const Outcome& reference);

}  // namespace rubato::worker
