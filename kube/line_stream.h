// LineStream: the lines of a long answer of an API server as they come: a container's log that is
// followed, a watch of tables. Nothing is read ahead of what the reader takes.
#pragma once

#include "common/clock.h"
#include "common/result.h"

#include <string>
#include <string_view>

namespace rubato::kube {

// reason() of the error that tells an orderly end.
inline constexpr std::string_view kStreamEnd = "StreamEnd";

// One task reads it. Destroying it closes it.
class LineStream {
 public:
  virtual ~LineStream() = default;
  // The next line, without its newline. kTimeout: none until `deadline` (the stream goes on).
  // kUnavailable: the stream ended, in order when reason() is kStreamEnd.
  virtual Result<std::string> next(MonoTime deadline) = 0;
  // Ends a blocked next() with kCancelled; from any task.
  virtual void stop() = 0;
};

}  // namespace rubato::kube
