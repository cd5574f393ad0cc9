#include "tools/rubatoctl/durations.h"

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

TEST(Durations, AreSecondsOrWhatKubectlTakes) {
  const auto seconds = [](std::string_view text) {
    const auto wait = parse_wait(text);
    return wait.ok() ? wait->count() : -1;
  };
  EXPECT_EQ(seconds("0"), 0);
  EXPECT_EQ(seconds("90"), 90);
  EXPECT_EQ(seconds("1s"), 1);
  EXPECT_EQ(seconds("1m30s"), 90);
  EXPECT_EQ(seconds("1.5h"), 5400);
  EXPECT_EQ(seconds("300ms"), 1);
  EXPECT_EQ(seconds("1h0m0s"), 3600);
  EXPECT_EQ(seconds("99999999999999h"), kLongestWait.count());
  for (const char* wrong : {"", "s", "-1s", "1d", "1m30", "soon", "1 s", "nan", "inf", "1e3s"})
    EXPECT_EQ(seconds(wrong), -1) << wrong;
  EXPECT_EQ(parse_wait("1d").error().what(),
            "\"1d\" is no time to wait: name seconds (90), or hours, minutes and seconds as "
            "kubectl does (1h30m, 90s)");
}

}  // namespace
}  // namespace rubato::ctl
