// The plans of recorded snapshots, byte for byte: what a change that is not to change any decision
// is held to. tests/data/scheduler/README.md says how they were recorded, and when to do it anew.
#include "common/words.h"
#include "scheduler/snapshot/snapshot.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <zlib.h>

namespace rubato::sched {
namespace {

const std::string kFolder = "tests/data/scheduler/";
constexpr std::size_t kShownBytes = 400;
constexpr std::size_t kToldMost = 5;

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return lines;
  std::string text;
  std::vector<char> part(1 << 20);
  for (int n = 0; (n = gzread(file, part.data(), static_cast<unsigned>(part.size()))) > 0;)
    text.append(part.data(), static_cast<std::size_t>(n));
  gzclose(file);
  for (std::size_t from = 0, to = 0; (to = text.find('\n', from)) != std::string::npos;
       from = to + 1)
    lines.push_back(text.substr(from, to - from));
  return lines;
}

// The first action, or else the first verdict, that is not the same.
std::string difference(const json::Value& recorded, const json::Value& now) {
  for (const char* list : {"actions", "verdicts"}) {
    const std::size_t size = std::max(recorded[list].size(), now[list].size());
    for (std::size_t i = 0; i < size; ++i) {
      const std::string was = json::dump(recorded[list][i]);
      const std::string is = json::dump(now[list][i]);
      if (was != is)
        return std::string(list) + "[" + std::to_string(i) +
               "]\n  recorded: " + clipped(was, kShownBytes) +
               "\n  now:      " + clipped(is, kShownBytes);
    }
  }
  return "the same actions and verdicts, written otherwise";
}

// How many plans are others now; the first few are told.
std::size_t count_different(const std::vector<std::string>& lines) {
  std::size_t different = 0;
  for (const std::string& line : lines) {
    const auto record = json::parse(line);
    const std::string from = record.ok() ? (*record)["from"].string_or("") : line;
    const auto snapshot = decode_snapshot(record.ok() ? (*record)["snapshot"] : json::Value());
    if (!snapshot.ok()) {
      ADD_FAILURE() << from << ": " << snapshot.error().what();
      continue;
    }
    const auto again = decode_snapshot(to_json(*snapshot));
    EXPECT_TRUE(again.ok() && *again == *snapshot) << from;
    const json::Value now = to_json(make_plan(snapshot->state, snapshot->policy), snapshot->state);
    if (json::dump(now) == json::dump((*record)["plan"])) continue;
    if (++different <= kToldMost)
      ADD_FAILURE() << "the plan of " << from << " differs in "
                    << difference((*record)["plan"], now);
  }
  return different;
}

TEST(RecordedPlans, StayEqual) {
  const std::vector<std::string> stories = lines_of(kFolder + "stories.jsonl.gz");
  EXPECT_EQ(stories.size(), 500u);
  const std::vector<std::string> drawn = lines_of(kFolder + "drawn.jsonl.gz");
  EXPECT_EQ(drawn.size(), 432u);
  EXPECT_EQ(count_different(stories) + count_different(drawn), 0u) << "plans differ";
}

}  // namespace
}  // namespace rubato::sched
