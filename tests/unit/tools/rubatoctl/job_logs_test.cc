#include "tools/rubatoctl/job_logs.h"

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

// What is let through of a reading.
std::vector<std::string> read(LogPosition& position, const std::vector<std::string>& lines) {
  position.reopen();
  std::vector<std::string> passed;
  for (const std::string& text : lines) {
    const PodLine line = split_time("p", text);
    if (position.is_new(line.time)) passed.push_back(line.line);
  }
  return passed;
}

using Lines = std::vector<std::string>;

TEST(LogPosition, LinesOfOneTimeComeOnceEach) {
  const std::string time = "2026-11-21T08:00:00.123456Z ";
  LogPosition position;
  EXPECT_EQ(read(position, {time + "a", time + "b"}), (Lines{"a", "b"}));
  EXPECT_EQ(read(position, {time + "a"}), Lines{});  // cut again, before what is new
  EXPECT_EQ(read(position, {time + "a", time + "b", time + "c"}), Lines{"c"});
  EXPECT_EQ(read(position, {time + "a", time + "b", time + "c"}), Lines{});
}

TEST(LogPosition, GoesOnWhereTheStreamWasCut) {
  const std::string early = "2026-11-21T08:00:00.000001Z ";
  const std::string late = "2026-11-21T08:00:00.000002Z ";
  LogPosition position;
  EXPECT_EQ(read(position, {early + "a", late + "b"}), (Lines{"a", "b"}));
  // A clock that was set back, and a line without a time.
  EXPECT_EQ(read(position, {early + "a", late + "b", late + "c", early + "d", "e"}),
            (Lines{"c", "d", "e"}));
}

TEST(LogPosition, WithoutTimesEachReadingIsWhole) {
  LogPosition position;
  EXPECT_EQ(read(position, {"a", "b"}), (Lines{"a", "b"}));
  EXPECT_EQ(read(position, {"a", "b"}), (Lines{"a", "b"}));
}

}  // namespace
}  // namespace rubato::ctl
