#include "common/clock.h"

#include <gtest/gtest.h>

namespace rubato {
namespace {

WallTime at(std::int64_t unix_seconds, Duration rest = Duration(0)) {
  return WallTime(std::chrono::seconds(unix_seconds)) + rest;
}

TEST(Clock, PrintsAsKubernetesDoes) {
  EXPECT_EQ(to_rfc3339(at(0)), "1970-01-01T00:00:00Z");
  EXPECT_EQ(to_rfc3339(at(1795246709)), "2026-11-21T07:38:29Z");
  EXPECT_EQ(to_rfc3339_micro(at(1795246709, 1234567ns)), "2026-11-21T07:38:29.001234Z");
  EXPECT_EQ(to_rfc3339(at(-1)), "1969-12-31T23:59:59Z");
}

TEST(Clock, ReadsWhatItPrintsAndOffsets) {
  EXPECT_EQ(parse_rfc3339("2026-11-21T07:38:29Z").value(), at(1795246709));
  EXPECT_EQ(parse_rfc3339("2026-11-21T08:38:29.5+01:00").value(), at(1795246709, 500ms));
  EXPECT_EQ(parse_rfc3339("2026-11-20t23:38:29.123456789-08:00").value(),
            at(1795246709, 123456789ns));
  EXPECT_EQ(parse_rfc3339("2024-02-29T00:00:00Z").value(), at(1709164800));
}

TEST(Clock, TimesOutOfReachAreReadAsTheNearestThatIsHeld) {
  for (const char* text : {"9999-12-31T23:59:59Z", "9999-12-31t23:59:59.999z",
                           "9999-12-31T23:59:59-23:59", "2300-01-01T00:00:00+01:00"})
    EXPECT_EQ(parse_rfc3339(text).value(), kLastTime) << text;
  for (const char* text : {"0000-01-01T00:00:00Z", "0000-01-01T00:00:00+23:59",
                           "1677-12-31T23:59:59.9Z", "1500-01-01T00:00:00Z"})
    EXPECT_EQ(parse_rfc3339(text).value(), kFirstTime) << text;
  for (const WallTime end : {kFirstTime, kLastTime})
    EXPECT_EQ(parse_rfc3339(to_rfc3339(end)).value(), end);
  EXPECT_EQ(parse_rfc3339("2261-12-31T23:59:59.5Z").value(), kLastTime - 500ms);
}

TEST(Clock, SecondsOutOfReachAreTheNearestTimeThatIsHeld) {
  const auto in = [](std::int64_t seconds) {
    return nearest_wall_time(std::chrono::sys_seconds(std::chrono::seconds(seconds)));
  };
  EXPECT_EQ(in(253402300799), kLastTime) << "9999-12-31";
  EXPECT_EQ(in(-62135596800), kFirstTime) << "0001-01-01";
  EXPECT_EQ(in(1795246709), at(1795246709));
}

TEST(Clock, RefusesWhatIsNoTime) {
  for (const char* text : {"", "2026", "2026-11-21", "2026-11-21T07:38:29", "2026-11-21 07:38:29Z",
                           "2026-13-01T00:00:00Z", "2025-02-29T00:00:00Z", "2026-11-21T24:00:00Z",
                           "2026-11-21T07:60:29Z", "2026-11-21T07:38:29.Z", "2026-11-21T07:38:29Zx",
                           "2026-11-21T07:38:29+24:00", "-026-11-21T07:38:29Z"}) {
    const auto time = parse_rfc3339(text);
    ASSERT_FALSE(time.ok()) << text;
    EXPECT_EQ(time.error().code(), Code::kInvalid);
  }
}

TEST(Clock, AgesReadAsKubectlPrintsThem) {
  using std::chrono::hours;
  EXPECT_EQ(human_duration(-5s), "<invalid>");
  EXPECT_EQ(human_duration(-1s), "0s");
  EXPECT_EQ(human_duration(32s), "32s");
  EXPECT_EQ(human_duration(119s), "119s");
  EXPECT_EQ(human_duration(120s), "2m");
  EXPECT_EQ(human_duration(365s), "6m5s");
  EXPECT_EQ(human_duration(11min), "11m");
  EXPECT_EQ(human_duration(4h), "4h");
  EXPECT_EQ(human_duration(4h + 5min), "4h5m");
  EXPECT_EQ(human_duration(47h), "47h");
  EXPECT_EQ(human_duration(hours(72)), "3d");
  EXPECT_EQ(human_duration(hours(75)), "3d3h");
  EXPECT_EQ(human_duration(hours(24 * 400)), "400d");
  EXPECT_EQ(human_duration(hours(24 * 365 * 3 + 48)), "3y2d");
  EXPECT_EQ(human_duration(hours(24 * 365 * 9)), "9y");
}

}  // namespace
}  // namespace rubato
