// Story: what happened in a simulated run, line by line, and the first thing that should not have.
// One thread; outside of any simulated process.
#pragma once

#include "common/testing/sim_executor.h"

#include <deque>
#include <optional>
#include <string>

#include <fmt/core.h>

namespace rubato::sim {

constexpr std::size_t kStoryLines = 20'000;  // older ones are forgotten

// As stories tell how long a fault lasts.
inline double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

class Story {
 public:
  // `listening`: keep lines; else only the violation is kept, and say() costs nothing.
  Story(testing::SimExecutor& executor, bool listening, bool aloud)
      : executor_(executor),
        listening_(listening || aloud),
        aloud_(aloud),
        begin_(executor.now()) {}

  bool listening() const { return listening_; }
  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    if (listening_) put(fmt::format(format, std::forward<Args>(args)...));
  }
  // Seconds since the story began.
  double seconds() const { return std::chrono::duration<double>(executor_.now() - begin_).count(); }
  MonoTime now() const { return executor_.now(); }

  // The first violation counts; the run ends soon after.
  void broken(const std::string& what) {
    if (violation_) return;
    violation_ = fmt::format("at {:.3f} s: {}", seconds(), what);
    say("VIOLATION {}", what);
  }
  const std::optional<std::string>& violation() const { return violation_; }
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  void put(const std::string& text) {
    lines_.push_back(fmt::format("{:9.3f}  {}", seconds(), text));
    if (aloud_) fmt::print("{}\n", lines_.back());
    if (lines_.size() > kStoryLines) lines_.pop_front();
  }

  testing::SimExecutor& executor_;
  const bool listening_;
  const bool aloud_;
  const MonoTime begin_;
  std::deque<std::string> lines_;
  std::optional<std::string> violation_;
};

}  // namespace rubato::sim
