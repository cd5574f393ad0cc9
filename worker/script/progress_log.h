// A pipe for a program's output, read for how far it is. A thread hands all of it on to `out`, byte
// for byte, and keeps in `file` what the newest line says that the pattern finds something in, as a
// program would write it itself (progress_of_file). Lines end with \n or, as progress bars have it,
// \r. A file that cannot be written, as on a full disk, keeps what it has, and is tried again.
#pragma once

#include "worker/script/progress.h"

#include <memory>
#include <string>

namespace rubato::worker {

class ProgressLog {
 public:
  static Result<std::unique_ptr<ProgressLog>> open(ProgressPattern pattern, std::string file,
                                                   int out);
  ~ProgressLog();
  ProgressLog(const ProgressLog&) = delete;
  ProgressLog& operator=(const ProgressLog&) = delete;
  int input() const;  // for the program's standard output and error
  // The program is gone: what it printed is read, 100 ms are waited for that at most, and is in the
  // file, if that can be written.
  void end();
  // Another one starts: what the last one printed counts no more.
  void begin();

 private:
  struct Impl;
  explicit ProgressLog(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rubato::worker
