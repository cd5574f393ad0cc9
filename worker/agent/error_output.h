// ErrorOutput: what a worker writes on stderr goes through here to our own, and its end is
// remembered: of a program that dies, nothing else says why.
#pragma once

#include "common/executor.h"

#include <memory>
#include <string>
#include <string_view>

#include <unistd.h>

namespace rubato::worker {

constexpr std::size_t kErrorTailBytes = 16u << 10;  // that are remembered: a long traceback
constexpr std::size_t kLastWordsBytes = 512;
constexpr auto kErrorWaitMost = 100ms;  // the exits of all slots wait for it

class ErrorOutput {
 public:
  // To `out`, which outlives it. kUnavailable: no file descriptors, or no threads, are left.
  static Result<std::unique_ptr<ErrorOutput>> open(Executor& executor, const std::string& name,
                                                   int out = STDERR_FILENO);
  ~ErrorOutput();
  // For the worker, until forget_write_end().
  int write_end() const { return write_; }
  void forget_write_end();
  // To be called once, after the worker's end; the last_words() of all that it wrote. Its own
  // children, if they outlive it, have nowhere to write any more. Where our stderr takes nothing
  // for kErrorWaitMost, as nobody reads it, what is left is not written there.
  std::string finish();

 private:
  ErrorOutput(int read, int write, int wake, int out, int out_of_our_own)
      : read_(read), write_(write), wake_(wake), out_(out), out_of_our_own_(out_of_our_own) {}
  void run();
  bool hand_on();  // all that is there; false: its end
  void write_fully(std::string_view text);

  int read_;
  int write_;
  const int wake_;
  const int out_;
  const int out_of_our_own_;  // -1: there is none, and a write to `out_` may wait
  bool is_stalled_ = false;   // it is to end, and nobody reads our stderr
  std::string tail_;          // of `task_`, until that has ended
  Task task_;
};

// The line that tells most about a program's end: after a traceback of Python the exception, else
// the last line that is not blank. At most kLastWordsBytes bytes of well-formed text.
std::string last_words(std::string_view output);

}  // namespace rubato::worker
