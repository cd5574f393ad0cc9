// How much memory a process on a Linux machine may have at most: the machine's, or less where a
// cgroup above the process says so. What a kernel does not say, or says in words that are none of
// its own, is no limit. All swap of the machine counts beside, as a pod may have it.
#pragma once

#include "common/files.h"
#include "worker/backend/device.h"

#include <string>

namespace rubato::worker::cpu {

// The least of MemTotal in /proc/meminfo and of the cgroups of /proc/self/cgroup: memory.max (v2)
// and memory.limit_in_bytes (v1) at each level below /sys/fs/cgroup. In a container the path may be
// the host's, which is not there: the levels that are count. `root` comes before all these paths.
MemoryLimit memory_limit(FileSystem& files, const std::string& root);

}  // namespace rubato::worker::cpu
