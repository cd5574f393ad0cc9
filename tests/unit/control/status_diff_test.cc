#include "operator/control/status_diff.h"

#include "operator/api/resources.h"
#include "tests/unit/control/fixtures.h"

namespace rubato::control {
namespace {

constexpr MonoTime kWrittenAt{1h};
constexpr const char* kWanted = R"({"state":"Queued","priority":{"value":7},
  "progress":{"step":3,"tokens":9},"conditions":[{"type":"Queued","reason":"WaitingForGPUs"}]})";
// By a server whose CRD knows less.
constexpr const char* kKept =
    R"({"state":"Queued","progress":{"step":3},"conditions":[{"type":"Queued"}]})";

std::string patch(StatusDiff& diff, const json::Value& seen, const json::Value& wanted,
                  MonoTime now = kWrittenAt) {
  return json::dump(diff.patch(api::kTrainingJob, seen, wanted, now));
}

TEST(StatusDiff, WhatTheServerDropsIsNotWrittenAgainAndAgain) {
  StatusDiff diff;
  json::Value wanted = parse(kWanted);
  const json::Value kept = parse(kKept);
  const json::Value first = diff.patch(api::kTrainingJob, json::Value(), wanted, kWrittenAt);
  EXPECT_EQ(first, wanted);
  diff.note_written(api::kTrainingJob, first, wanted, kept, kWrittenAt);
  EXPECT_EQ(patch(diff, kept, wanted), "{}");
  wanted.set("state", "Running");
  EXPECT_EQ(patch(diff, kept, wanted), R"({"state":"Running"})") << "all else is";
  wanted.at("progress").set("step", 4);
  EXPECT_EQ(patch(diff, kept, wanted), R"({"state":"Running","progress":{"step":4}})");
}

// It is tried again, by one object of the kind, and what it then keeps is not taken from it.
TEST(StatusDiff, ItIsWrittenOnceTheCrdKnowsIt) {
  StatusDiff diff;
  const json::Value wanted = parse(kWanted), kept = parse(kKept);
  diff.note_written(api::kTrainingJob, wanted, wanted, kept, kWrittenAt);
  EXPECT_EQ(patch(diff, wanted, wanted), "{}") << "somebody else wrote it meanwhile";
  EXPECT_EQ(patch(diff, kept, wanted, kWrittenAt + kDroppedFor - 1s), "{}");
  const json::Value again = diff.patch(api::kTrainingJob, kept, wanted, kWrittenAt + kDroppedFor);
  EXPECT_TRUE(again.has("priority")) << json::dump(again);
  EXPECT_TRUE(again["progress"].has("tokens")) << json::dump(again);
  diff.note_written(api::kTrainingJob, again, wanted, wanted, kWrittenAt + kDroppedFor);
  EXPECT_EQ(patch(diff, kept, wanted, kWrittenAt + kDroppedFor), json::dump(again))
      << "of all others";
}

TEST(StatusDiff, WhatANewerReleaseWroteStays) {
  StatusDiff diff;
  const json::Value seen =
      parse(R"({"state":"Queued","fieldOfTomorrow":1,"parkedSince":"2026-11-21T08:00:00Z"})");
  EXPECT_EQ(patch(diff, seen, parse(R"({"state":"Running"})")),
            R"({"state":"Running","parkedSince":null})");
}

}  // namespace
}  // namespace rubato::control
