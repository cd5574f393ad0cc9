// FileLedger: the SampleLedger as JSON lines, one write each, so that they outlive a SIGKILL of the
// process:
//   {"forward":1,"generation":g,"seq":n,"step":s,"micro":m,"ids":[…],"tokens":"<hex digest>"}
//   {"vote":1,"generation":g,"seq":n,"step":s,"micros":[…]}          what the reduction contains
//   {"decided":1,"seq":n,"step":s,"outcome":"apply","generation":g,"digest":"<hex>"}
// Read by check_ledger. A write that fails is logged, and the ledger ends there.
#pragma once

#include "common/files.h"
#include "common/result.h"
#include "worker/step/sample_ledger.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace rubato::worker {

class FileLedger final : public SampleLedger {
 public:
  // Appends to `path`; its folder is created.
  static Result<std::unique_ptr<SampleLedger>> open(FileSystem& files, const std::string& path);

  void forward(std::uint64_t generation, std::uint64_t seq, std::uint64_t step, std::uint32_t micro,
               std::span<const std::int64_t> ids, std::uint64_t tokens) override;
  void vote(std::uint64_t generation, std::uint64_t seq, std::uint64_t step,
            std::span<const std::uint32_t> micros) override;
  void decided(std::uint64_t generation, std::uint64_t seq, std::uint64_t step,
               const std::string& outcome, std::uint64_t sample_digest) override;

 private:
  FileLedger(std::unique_ptr<File> file, std::uint64_t size)
      : file_(std::move(file)), size_(size) {}
  void line(const std::string& text);
  std::unique_ptr<File> file_;
  std::uint64_t size_;      // where the next line goes
  bool is_broken_ = false;  // a write failed: said once, then nothing more is written
};

}  // namespace rubato::worker
