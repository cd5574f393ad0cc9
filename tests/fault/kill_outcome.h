// What a job of the kill matrix leaves behind, and whether it is what an undisturbed one leaves.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace rubato::fault {

// Of the job that all cases play.
constexpr std::uint64_t kSteps = 120;
constexpr int kMicro = 1;
constexpr int kLength = 32;
constexpr double kValidation = 0.1;

struct Outcome {
  std::string steps;    // steps.bin
  std::string weights;  // model.safetensors of the last checkpoint
  std::string moments;  // optimizer.safetensors
  std::filesystem::path ledger;
  std::filesystem::path tokens;
};

// Reads it; the ledger stays where it is.
Outcome outcome_of(const std::filesystem::path& folder);
// The first difference, and what is wrong in the ledger; empty when it is equal.
std::string compare(const Outcome& outcome, const Outcome& reference, std::uint32_t micro_batches);

}  // namespace rubato::fault
