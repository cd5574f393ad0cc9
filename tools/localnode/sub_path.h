// A volumeMount's subPath, opened within its volume: whatever links pods put there, before and
// meanwhile, what is opened is in the volume. The path of it, looked up once more, need not be.
#pragma once

#include "common/result.h"

#include <string>

namespace rubato::localnode {

// Not read from, and closed by exec.
class OpenPath {
 public:
  explicit OpenPath(int descriptor = -1) : descriptor_(descriptor) {}
  ~OpenPath();
  OpenPath(OpenPath&& other) noexcept;
  OpenPath& operator=(OpenPath&& other) noexcept;
  OpenPath(const OpenPath&) = delete;

  int descriptor() const { return descriptor_; }
  std::string path() const;  // leads to it in this process alone

 private:
  int descriptor_;
};

// A file or folder; made as a folder, with its parents, when nothing is there. Links in the volume
// are followed as long as they stay in it; before Linux 5.6, and where a sandbox refuses openat2,
// there may be none on the way. kInvalid: the path would lead out of the volume.
Result<OpenPath> open_sub_path(const std::string& volume, const std::string& sub_path);

}  // namespace rubato::localnode
