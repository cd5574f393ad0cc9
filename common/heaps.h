// Few heaps: by itself glibc gives each of a process's threads one of its own, up to eight for each
// core, and each keeps what its busiest moment took. A process with some threads a job would grow
// for hundreds of jobs, although it keeps nothing of them (`make bench-local-churn`).
#pragma once

#include <malloc.h>

namespace rubato {

constexpr int kHeaps = 2;

// First in main(), before there are threads.
inline void keep_few_heaps() { ::mallopt(M_ARENA_MAX, kHeaps); }

// To the system, what is free in the middle of a heap too. Without this, the objects that live on
// between those of a pod that is gone keep its pages resident.
inline void give_back_free_pages() { ::malloc_trim(0); }

}  // namespace rubato
