#include "common/log.h"

#include <vector>

#include <gtest/gtest.h>

namespace rubato {
namespace {

class LogTest : public ::testing::Test {
 protected:
  ~LogTest() override {
    set_log_sink({});
    configure_log({});
  }
};

TEST_F(LogTest, SinkReceivesWhatIsEnabled) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view component, std::string_view text) {
    lines.push_back(std::string(component) + ": " + std::string(text));
  });
  LOG_DEBUG("test", "not shown {}", 1);
  LOG_INFO("test", "job {} formed in {} ms", "a/b", 12);
  configure_log({.level = LogLevel::kError});
  LOG_WARNING("test", "not shown");
  LOG_ERROR("test", "shown");
  EXPECT_EQ(lines, (std::vector<std::string>{"test: job a/b formed in 12 ms", "test: shown"}));
}

TEST_F(LogTest, OneFactIsOneLine) {
  ::testing::internal::CaptureStderr();
  LOG_INFO("test", "first\nsecond\x1b[31m");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("INFO test: first\\nsecond\\x1b[31m\n"), std::string::npos) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

TEST_F(LogTest, JsonLines) {
  configure_log({.json = true});
  ::testing::internal::CaptureStderr();
  LOG_WARNING("test", "say \"hi\"\n");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find(R"("level":"WARNING","component":"test","text":"say \"hi\"\n"})"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace rubato
