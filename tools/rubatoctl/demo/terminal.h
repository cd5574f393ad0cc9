// What the demo prints: a clock in front, headings, and one line of progress that redraws itself on
// a terminal and comes now and then elsewhere. And whether somebody has pressed Ctrl-C.
#pragma once

#include "common/executor.h"

#include <string>

namespace rubato::ctl {

// In place of the line that the cursor is in; what is too long is cut: a line that went on in the
// next row could not be drawn over. Pure.
std::string drawn_over(const std::string& line);

class Terminal {
 public:
  explicit Terminal(Executor& executor);
  void heading(const std::string& text);
  void say(const std::string& text);     // with the time since the start
  void print(const std::string& block);  // as it is
  // The live line. `is_first` of its kind: at once, not when its time has come.
  void progress(const std::string& text, bool is_first = false);
  double seconds() const;

 private:
  void clear();
  Executor& executor_;
  MonoTime start_;
  MonoTime next_progress_{};
  bool is_terminal_;
  bool has_line_ = false;
};

}  // namespace rubato::ctl
