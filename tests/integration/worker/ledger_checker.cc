#include "tests/integration/worker/ledger_checker.h"

#include "common/json.h"
#include "worker/backend/digest.h"
#include "worker/data/token_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include <fmt/format.h>

namespace rubato::worker {

namespace {
constexpr std::size_t kFaultsMax = 20;

using Ids = std::vector<std::int64_t>;
struct Forward {
  std::uint64_t step = 0;
  Ids ids;
  std::string tokens;
};
struct Attempt {  // one round of one generation
  std::uint64_t step = 0;
  // micro-batch -> who voted it
  std::multimap<std::uint32_t, std::string> voted;
};
struct Ledger {
  // (file, seq, micro) -> what was fed to the model there, latest
  std::set<std::uint64_t> redone;  // rounds decided as redo
  std::map<std::tuple<std::string, std::uint64_t, std::uint32_t>, Forward> forwards;
  std::map<std::pair<std::uint64_t, std::uint64_t>, Attempt> attempts;  // (generation, seq)
  // step -> (generation, seq) of rounds that were applied, as any worker saw them
  std::map<std::uint64_t, std::set<std::pair<std::uint64_t, std::uint64_t>>> applied;
  std::uint64_t forward_count = 0;
};

std::uint64_t number(const json::Value& value) {
  return static_cast<std::uint64_t>(value.int_or(0));
}

void take_line(Ledger& ledger, const std::string& file, const json::Value& line) {
  const std::uint64_t generation = number(line["generation"]);
  const std::uint64_t seq = number(line["seq"]);
  const std::uint64_t step = number(line["step"]);
  if (line.has("forward")) {
    Forward forward{step, {}, line["tokens"].string_or("")};
    for (const json::Value& id : line["ids"].items()) forward.ids.push_back(id.int_or(-1));
    const auto micro = static_cast<std::uint32_t>(line["micro"].int_or(0));
    ledger.forwards[{file, seq, micro}] = std::move(forward);
    ++ledger.forward_count;
  } else if (line.has("vote")) {
    Attempt& attempt = ledger.attempts[{generation, seq}];
    attempt.step = step;
    for (const json::Value& micro : line["micros"].items()) {
      attempt.voted.emplace(static_cast<std::uint32_t>(micro.int_or(0)), file);
    }
  } else if (line.has("decided") && line["outcome"].string_or("") == "apply") {
    ledger.applied[step].insert({generation, seq});
  } else if (line.has("decided") && line["outcome"].string_or("") == "redo") {
    ledger.redone.insert(seq);
  }
}

Result<Ledger> read_ledger(const std::string& folder) {
  Ledger ledger;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failed)) {
    if (entry.path().extension() != ".jsonl") continue;
    std::ifstream file(entry.path());
    for (std::string text; std::getline(file, text);) {
      auto line = json::parse(text);
      if (!line.ok()) continue;  // the last line of a killed worker may be torn
      take_line(ledger, entry.path().filename().string(), line.value());
    }
  }
  if (failed) return Error(Code::kInvalid, folder + ": " + failed.message());
  return ledger;
}

class Checker {
 public:
  Checker(const LedgerTerms& terms, const Ledger& ledger) : terms_(terms), ledger_(ledger) {}

  LedgerReport report;

  // step -> micro -> what was committed
  std::map<std::uint64_t, std::map<std::uint32_t, Forward>> committed() {
    std::map<std::uint64_t, std::map<std::uint32_t, Forward>> steps;
    for (std::uint64_t step = 0; step < terms_.steps; ++step) {
      const Attempt* attempt = deciding_attempt(step);
      if (attempt == nullptr) {
        fault(fmt::format("step {}: no decided round with all its votes", step));
        continue;
      }
      for (std::uint32_t micro = 0; micro < terms_.micro_batches; ++micro) {
        const auto count = attempt->voted.count(micro);
        if (count != 1) {
          fault(fmt::format("step {} micro-batch {}: contributed {} times", step, micro, count));
          continue;
        }
        const std::string& file = attempt->voted.find(micro)->second;
        const auto found = ledger_.forwards.find({file, seq_, micro});
        if (found == ledger_.forwards.end() || found->second.step != step) {
          fault(fmt::format("step {} micro-batch {}: {} voted it without a forward pass", step,
                            micro, file));
          continue;
        }
        steps[step][micro] = found->second;
        ++report.recomputed;  // used ones, turned into unused below
      }
      ++report.steps;
    }
    report.forwards = ledger_.forward_count;
    report.redone = ledger_.redone.size();
    report.recomputed = report.forwards - report.recomputed;
    return steps;
  }

  void check_once(const std::map<std::uint64_t, std::map<std::uint32_t, Forward>>& steps) {
    std::uint64_t position = 0;
    std::map<std::uint64_t, std::set<std::int64_t>> epochs;
    for (const auto& [step, micros] : steps) {
      for (const auto& [micro, forward] : micros) {
        if (forward.ids.size() != terms_.micro_batch) {
          fault(fmt::format("step {} micro-batch {}: {} samples", step, micro, forward.ids.size()));
        }
        for (const std::int64_t id : forward.ids) {
          ++report.samples;
          if (!epochs[position / terms_.train_samples].insert(id).second) {
            fault(fmt::format("step {} micro-batch {}: sample {} a second time in its epoch", step,
                              micro, id));
          }
          ++position;
        }
      }
    }
  }

  Status check_tokens(const std::map<std::uint64_t, std::map<std::uint32_t, Forward>>& steps) {
    PosixFileSystem files;
    TRY(const TokenFile file, TokenFile::open(files, terms_.tokens));
    const std::uint64_t length = terms_.sequence_length;
    for (const auto& [step, micros] : steps) {
      for (const auto& [micro, forward] : micros) {
        std::vector<std::int32_t> rows;
        for (const std::int64_t id : forward.ids) {
          std::vector<std::int32_t> row(length + 1);
          TRY_OK(file.read(static_cast<std::uint64_t>(id) * length, row));
          rows.insert(rows.end(), row.begin(), row.end());
        }
        const auto digest = to_hex(digest_of(rows.data(), rows.size() * sizeof(rows[0])));
        if (digest != forward.tokens) {
          fault(fmt::format("step {} micro-batch {}: the tokens read are not its samples'", step,
                            micro));
        }
      }
    }
    return ok();
  }

  void compare(const std::map<std::uint64_t, std::map<std::uint32_t, Forward>>& ours,
               const std::map<std::uint64_t, std::map<std::uint32_t, Forward>>& theirs) {
    for (const auto& [step, micros] : ours) {
      const auto other = theirs.find(step);
      for (const auto& [micro, forward] : micros) {
        const bool equal = other != theirs.end() && other->second.contains(micro) &&
                           other->second.at(micro).ids == forward.ids;
        if (!equal) {
          fault(
              fmt::format("step {} micro-batch {}: not the samples of the reference", step, micro));
        }
      }
    }
  }

 private:
  // Of the rounds that were applied for a step, the one of the latest generation with all votes. A
  // worker that was levelled notes the generation it was levelled in, which has no votes.
  const Attempt* deciding_attempt(std::uint64_t step) {
    const auto applied = ledger_.applied.find(step);
    if (applied == ledger_.applied.end()) return nullptr;
    const Attempt* chosen = nullptr;
    for (const auto& key : applied->second) {
      const auto found = ledger_.attempts.find(key);
      if (found == ledger_.attempts.end() || found->second.voted.empty()) continue;
      chosen = &found->second;
      seq_ = key.second;
    }
    return chosen;
  }
  void fault(std::string text) {
    if (report.faults.size() < kFaultsMax) report.faults.push_back(std::move(text));
  }

  const LedgerTerms& terms_;
  const Ledger& ledger_;
  std::uint64_t seq_ = 0;
};
}  // namespace

Result<LedgerReport> check_ledger(const LedgerTerms& terms) {
  TRY(const Ledger ledger, read_ledger(terms.folder));
  Checker checker(terms, ledger);
  const auto steps = checker.committed();
  checker.check_once(steps);
  TRY_OK(checker.check_tokens(steps));
  if (!terms.reference.empty()) {
    TRY(const Ledger reference, read_ledger(terms.reference));
    Checker theirs(terms, reference);
    checker.compare(steps, theirs.committed());
  }
  return checker.report;
}

}  // namespace rubato::worker
