#include "worker/testing/file_ledger.h"

#include "common/log.h"
#include "worker/backend/digest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace rubato::worker {

Result<std::unique_ptr<SampleLedger>> FileLedger::open(FileSystem& files, const std::string& path) {
  TRY_OK(make_lasting_directories(files, parent_of(path)));
  TRY(auto file, files.open(path, OpenMode::kUpdate));
  TRY(const std::uint64_t size, file->size());
  return std::unique_ptr<SampleLedger>(new FileLedger(std::move(file), size));
}

void FileLedger::line(const std::string& text) {
  if (is_broken_) return;
  const Status written = file_->write_at(size_, std::as_bytes(std::span(text)));
  size_ += text.size();
  if (written.ok()) return;
  is_broken_ = true;
  LOG_ERROR("ledger", "{}; the ledger of this worker ends here", written.error().what());
}

void FileLedger::forward(std::uint64_t generation, std::uint64_t seq, std::uint64_t step,
                         std::uint32_t micro, std::span<const std::int64_t> ids,
                         std::uint64_t tokens) {
  line(fmt::format(
      R"({{"forward":1,"generation":{},"seq":{},"step":{},"micro":{},"ids":[{}],"tokens":"{}"}})"
      "\n",
      generation, seq, step, micro, fmt::join(ids, ","), to_hex(tokens)));
}

void FileLedger::vote(std::uint64_t generation, std::uint64_t seq, std::uint64_t step,
                      std::span<const std::uint32_t> micros) {
  line(fmt::format(R"({{"vote":1,"generation":{},"seq":{},"step":{},"micros":[{}]}})"
                   "\n",
                   generation, seq, step, fmt::join(micros, ",")));
}

void FileLedger::decided(std::uint64_t generation, std::uint64_t seq, std::uint64_t step,
                         const std::string& outcome, std::uint64_t sample_digest) {
  line(fmt::format(
      R"({{"decided":1,"generation":{},"seq":{},"step":{},"outcome":"{}","digest":"{}"}})"
      "\n",
      generation, seq, step, outcome, to_hex(sample_digest)));
}

}  // namespace rubato::worker
