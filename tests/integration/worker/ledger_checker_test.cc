// The checker itself: a good ledger passes, and each planted fault is caught.
#include "tests/integration/worker/ledger_checker.h"

#include "worker/backend/digest.h"
#include "worker/data/token_file.h"
#include "worker/testing/file_ledger.h"

#include <cstdlib>
#include <filesystem>
#include <numeric>

#include <gtest/gtest.h>

namespace rubato::worker {
namespace {

constexpr std::uint32_t kMicros = 4;
constexpr std::uint32_t kRows = 2;
constexpr std::uint32_t kLength = 8;
constexpr std::uint64_t kSteps = 5;
constexpr std::int64_t kSamples = 64;

class LedgerCheckerTest : public ::testing::Test {
 protected:
  LedgerCheckerTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ledger-XXXXXX").string();
    CHECK(::mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
    auto writer = TokenFileWriter::create(files_, folder_ + "/tokens.bin", 256);
    tokens_.resize(kSamples * kLength + 1);
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      tokens_[i] = static_cast<std::int32_t>(i * i % 251);
    }
    CHECK(writer.value().append(tokens_).ok());
    CHECK(writer.value().finish().ok());
    // Two workers share each step; ids_[step][micro] are what they feed.
    std::int64_t next = 0;
    for (auto& step : ids_) {
      step.resize(kMicros);
      for (auto& micro : step) {
        micro.resize(kRows);
        std::iota(micro.begin(), micro.end(), next);
        next += kRows;
      }
    }
    write("reference");
  }
  ~LedgerCheckerTest() override { std::filesystem::remove_all(folder_); }

  std::uint64_t digest_of_ids(const std::vector<std::int64_t>& ids) const {
    std::vector<std::int32_t> rows;
    for (const std::int64_t id : ids) {
      const auto first = tokens_.begin() + id * kLength;
      rows.insert(rows.end(), first, first + kLength + 1);
    }
    return digest_of(rows.data(), rows.size() * sizeof(rows[0]));
  }

  void write(const std::string& name) {
    for (std::uint32_t worker = 0; worker < 2; ++worker) {
      const auto ledger =
          FileLedger::open(files_, folder_ + "/" + name + "/w" + std::to_string(worker) + ".jsonl");
      for (std::uint64_t step = 0; step < kSteps; ++step) {
        std::vector<std::uint32_t> mine;
        for (std::uint32_t micro = worker * 2; micro < worker * 2 + 2; ++micro) {
          if (std::pair(step, micro) == skipped_) continue;
          const auto& ids = ids_[step][micro];
          const std::uint64_t seen = std::pair(step, micro) == misread_ ? 1 : digest_of_ids(ids);
          ledger.value()->forward(1, step, step, micro, ids, seen);
          mine.push_back(micro);
        }
        if (worker == 1 && step == repeated_) mine.push_back(0);  // worker 0's too
        if (worker == 1 && step == repeated_) {
          ledger.value()->forward(1, step, step, 0, ids_[step][0], digest_of_ids(ids_[step][0]));
        }
        ledger.value()->vote(1, step, step, mine);
        ledger.value()->decided(1, step, step, "apply", 0);
      }
    }
  }
  LedgerReport check() {
    write("run");
    LedgerTerms terms;
    terms.folder = folder_ + "/run";
    terms.reference = folder_ + "/reference";
    terms.tokens = folder_ + "/tokens.bin";
    terms.micro_batches = kMicros;
    terms.micro_batch = kRows;
    terms.sequence_length = kLength;
    terms.steps = kSteps;
    terms.train_samples = kSamples;
    return check_ledger(terms).value();
  }

  PosixFileSystem files_;
  std::string folder_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::vector<std::int64_t>> ids_[kSteps];
  std::pair<std::uint64_t, std::uint32_t> skipped_{99, 0};
  std::pair<std::uint64_t, std::uint32_t> misread_{99, 0};
  std::uint64_t repeated_ = 99;
};

TEST_F(LedgerCheckerTest, AGoodRunPasses) {
  const LedgerReport report = check();
  EXPECT_TRUE(report.faults.empty()) << report.faults.front();
  EXPECT_EQ(report.steps, kSteps);
  EXPECT_EQ(report.samples, kSteps * kMicros * kRows);
  EXPECT_EQ(report.recomputed, 0u);
}

TEST_F(LedgerCheckerTest, CatchesASkip) {
  skipped_ = {2, 3};
  EXPECT_FALSE(check().faults.empty());
}

TEST_F(LedgerCheckerTest, CatchesARepeatedMicroBatch) {
  repeated_ = 1;
  EXPECT_FALSE(check().faults.empty());
}

TEST_F(LedgerCheckerTest, CatchesARepeatedSample) {
  ids_[3][1] = ids_[0][0];
  EXPECT_FALSE(check().faults.empty());
}

TEST_F(LedgerCheckerTest, CatchesAReorder) {
  std::swap(ids_[1][2], ids_[4][0]);  // every sample once, but not when it should
  EXPECT_FALSE(check().faults.empty());
}

TEST_F(LedgerCheckerTest, CatchesTokensOfAnotherSample) {
  misread_ = {0, 1};
  EXPECT_FALSE(check().faults.empty());
}

TEST_F(LedgerCheckerTest, CatchesAStepThatIsMissing) {
  const LedgerReport report = [&] {
    write("run");
    LedgerTerms terms;
    terms.folder = folder_ + "/run";
    terms.tokens = folder_ + "/tokens.bin";
    terms.micro_batches = kMicros;
    terms.micro_batch = kRows;
    terms.sequence_length = kLength;
    terms.steps = kSteps + 1;
    terms.train_samples = kSamples;
    return check_ledger(terms).value();
  }();
  EXPECT_FALSE(report.faults.empty());
}

}  // namespace
}  // namespace rubato::worker
