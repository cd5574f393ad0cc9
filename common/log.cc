#include "common/log.h"

#include "common/clock.h"
#include "common/json.h"

#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>

namespace rubato {
namespace {

using Sink = std::function<void(LogLevel, std::string_view, std::string_view)>;

struct State {
  std::atomic<LogLevel> level{LogLevel::kInfo};
  std::atomic<bool> json{false};
  std::mutex mutex;  // guards sink and keeps lines whole on stderr
  std::shared_ptr<const Sink> sink;
};

// Never destroyed: tasks may log while static objects die.
State& state() {
  static State* const kInstance = new State;
  return *kInstance;
}

const char* name_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "DEBUG";
    case LogLevel::kInfo:
      return "INFO";
    case LogLevel::kWarning:
      return "WARNING";
    case LogLevel::kError:
      return "ERROR";
  }
  return "?";
}

// A text with line breaks must not look like two facts (or forge one).
std::string one_line(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 && c != '\t') {
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out;
}

std::string render(LogLevel level, std::string_view component, std::string_view text, bool json) {
  const std::string time = to_rfc3339_micro(SystemClock().wall());
  if (!json) {
    return fmt::format("{} {} {}: {}\n", time, name_of(level), component, one_line(text));
  }
  const auto line = json::Value::object(
      {{"time", time}, {"level", name_of(level)}, {"component", component}, {"text", text}});
  return json::dump(line) + "\n";
}

}  // namespace

void configure_log(const LogConfig& config) {
  state().level = config.level;
  state().json = config.json;
}

void set_log_sink(Sink sink) {
  const std::lock_guard lock(state().mutex);
  state().sink = sink ? std::make_shared<const Sink>(std::move(sink)) : nullptr;
}

bool log_enabled(LogLevel level) { return level >= state().level.load(std::memory_order_relaxed); }

void log_line(LogLevel level, std::string_view component, std::string_view text) {
  std::unique_lock lock(state().mutex);
  if (const auto sink = state().sink) {
    lock.unlock();  // a sink may log
    (*sink)(level, component, text);
    return;
  }
  lock.unlock();
  const std::string line = render(level, component, text, state().json);
  lock.lock();
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace rubato
