// The processes of this machine, as /proc shows them. Private to this folder.
#pragma once

#include <optional>
#include <vector>

#include <sys/types.h>

namespace rubato::worker {

struct ProcessEntry {
  pid_t pid = -1;
  pid_t parent = -1;
  pid_t group = -1;
  bool is_zombie = false;
};

// Of an open /proc/PID/stat. Nothing: the process is gone, which may be since the file was opened
// (the kernel then answers ESRCH).
std::optional<ProcessEntry> entry_of(int stat_file);
// All that this process sees.
std::vector<ProcessEntry> process_table();

}  // namespace rubato::worker
