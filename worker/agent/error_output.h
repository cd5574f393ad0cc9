// ErrorOutput: what a worker writes on stderr passes through here to our own, and its end is
// remembered: of a program that dies, nothing else says why.
#pragma once

#include "common/executor.h"

#include <memory>
#include <string>
#include <string_view>

namespace rubato::worker {

constexpr std::size_t kErrorTailBytes = 16u << 10;  // that are remembered: a long traceback
constexpr std::size_t kLastWordsBytes = 512;

class ErrorOutput {
 public:
  // kUnavailable: no file descriptors, or no threads, are left.
  static Result<std::unique_ptr<ErrorOutput>> open(Executor& executor, const std::string& name);
  ~ErrorOutput();
  // For the worker, until forget_write_end().
  int write_end() const { return write_; }
  void forget_write_end();
  // To be called once, after the worker's end; the last_words() of all that it wrote. Its own
  // children, if they outlive it, have nowhere to write any more. Waits while our stderr takes no
  // more.
  std::string finish();

 private:
  ErrorOutput(int read, int write, int wake) : read_(read), write_(write), wake_(wake) {}
  void run();
  bool pass_on();  // all that is there; false: its end

  int read_;
  int write_;
  const int wake_;
  std::string tail_;  // of `task_`, until that has ended
  Task task_;
};

// The line that tells most about a program's end: after a traceback of Python the exception, else
// the last line that is not blank. At most kLastWordsBytes bytes of well-formed text.
std::string last_words(std::string_view output);

}  // namespace rubato::worker
