// One line per fact, to stderr: time, level, component, text. Never log a token, a key, or the
// contents of a Secret. Format strings are fmt's. Thread-safe.
//
//   LOG_INFO("coordinator", "job {} generation {} formed in {} ms", key, generation, ms);
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <fmt/core.h>

namespace rubato {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

struct LogConfig {
  LogLevel level = LogLevel::kInfo;
  bool json = false;  // one JSON object per line
};
void configure_log(const LogConfig& config);
// Replaces stderr as the destination (simulation timelines, tests); empty restores stderr.
void set_log_sink(
    std::function<void(LogLevel, std::string_view component, std::string_view text)> sink);
bool log_enabled(LogLevel level);
void log_line(LogLevel level, std::string_view component, std::string_view text);

}  // namespace rubato

#define RUBATO_LOG_(level, component, ...)                              \
  do {                                                                  \
    if (::rubato::log_enabled(level))                                   \
      ::rubato::log_line(level, component, ::fmt::format(__VA_ARGS__)); \
  } while (false)
#define LOG_DEBUG(component, ...) RUBATO_LOG_(::rubato::LogLevel::kDebug, component, __VA_ARGS__)
#define LOG_INFO(component, ...) RUBATO_LOG_(::rubato::LogLevel::kInfo, component, __VA_ARGS__)
#define LOG_WARNING(component, ...) \
  RUBATO_LOG_(::rubato::LogLevel::kWarning, component, __VA_ARGS__)
#define LOG_ERROR(component, ...) RUBATO_LOG_(::rubato::LogLevel::kError, component, __VA_ARGS__)
