#include "worker/step/sample_ledger.h"

#include "common/log.h"
#include "worker/backend/digest.h"

#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

namespace rubato::worker {

Result<std::unique_ptr<SampleLedger>> SampleLedger::open(const std::string& path) {
  std::error_code failed;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), failed);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return Error(Code::kUnavailable, path + ": " + std::strerror(errno));
  return std::unique_ptr<SampleLedger>(new SampleLedger(fd));
}

SampleLedger::~SampleLedger() { ::close(fd_); }

void SampleLedger::line(const std::string& text) {
  if (is_broken_) return;
  const auto written = ::write(fd_, text.data(), text.size());
  if (written == static_cast<ssize_t>(text.size())) return;
  is_broken_ = true;
  LOG_ERROR("ledger", "cannot write: {}; the ledger of this worker ends here",
            std::strerror(errno));
}

void SampleLedger::forward(std::uint64_t generation, std::uint64_t seq, std::uint64_t step,
                           std::uint32_t micro, std::span<const std::int64_t> ids,
                           std::uint64_t tokens) {
  line(fmt::format(
      R"({{"forward":1,"generation":{},"seq":{},"step":{},"micro":{},"ids":[{}],"tokens":"{}"}})"
      "\n",
      generation, seq, step, micro, fmt::join(ids, ","), to_hex(tokens)));
}

void SampleLedger::vote(std::uint64_t generation, std::uint64_t seq, std::uint64_t step,
                        std::span<const std::uint32_t> micros) {
  line(fmt::format(R"({{"vote":1,"generation":{},"seq":{},"step":{},"micros":[{}]}})"
                   "\n",
                   generation, seq, step, fmt::join(micros, ",")));
}

void SampleLedger::decided(std::uint64_t generation, std::uint64_t seq, std::uint64_t step,
                           const std::string& outcome, std::uint64_t sample_digest) {
  line(fmt::format(
      R"({{"decided":1,"generation":{},"seq":{},"step":{},"outcome":"{}","digest":"{}"}})"
      "\n",
      generation, seq, step, outcome, to_hex(sample_digest)));
}

}  // namespace rubato::worker
