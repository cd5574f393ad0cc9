// SampleLedger: what this worker really fed to the model, and what it contributed to each decision.
// JSON lines, one write each, so that they outlive a SIGKILL of the process:
//   {"forward":1,"generation":g,"seq":n,"step":s,"micro":m,"ids":[…],"tokens":"<hex digest>"}
//   {"vote":1,"generation":g,"seq":n,"step":s,"micros":[…]}          what the reduction contains
//   {"decided":1,"seq":n,"step":s,"outcome":"apply","generation":g,"digest":"<hex>"}
// Written by the code that feeds tokens to the model, never by the sampler. Read by check_ledger.
// Thread: the step thread alone.
#pragma once

#include "common/files.h"
#include "common/result.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace rubato::worker {

class SampleLedger {
 public:
  // Appends to `path`; its folder is created.
  static Result<std::unique_ptr<SampleLedger>> open(FileSystem& files, const std::string& path);

  // `tokens` is a digest of all token rows of the micro-batch as they were read.
  void forward(std::uint64_t generation, std::uint64_t seq, std::uint64_t step, std::uint32_t micro,
               std::span<const std::int64_t> ids, std::uint64_t tokens);
  void vote(std::uint64_t generation, std::uint64_t seq, std::uint64_t step,
            std::span<const std::uint32_t> micros);
  void decided(std::uint64_t generation, std::uint64_t seq, std::uint64_t step,
               const std::string& outcome, std::uint64_t sample_digest);

 private:
  SampleLedger(std::unique_ptr<File> file, std::uint64_t size)
      : file_(std::move(file)), size_(size) {}
  void line(const std::string& text);
  std::unique_ptr<File> file_;
  std::uint64_t size_;      // where the next line goes
  bool is_broken_ = false;  // a write failed: said once, then nothing more is written
};

}  // namespace rubato::worker
