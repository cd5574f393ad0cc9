#include "scheduler/model/sizes.h"

#include <algorithm>

namespace rubato::sched {

namespace {
bool allowed(const Job& job, Gpus size) {
  if (size < job.min || size > job.max || size % job.per_pod.gpus != 0) return false;
  // kWholeNodes is expressed by per_pod: such a job's pod is a whole node.
  return job.shape != Shape::kPowersOfTwo || (size & (size - 1)) == 0;
}
}  // namespace

std::optional<Gpus> size_at_least(const Job& job, Gpus at_least) {
  const Gpus unit = job.per_pod.gpus;
  for (Gpus size = (std::max(at_least, job.min) + unit - 1) / unit * unit; size <= job.max;
       size += unit) {
    if (allowed(job, size)) return size;
  }
  return std::nullopt;
}

std::optional<Gpus> size_at_most(const Job& job, Gpus at_most) {
  const Gpus unit = job.per_pod.gpus;
  for (Gpus size = std::min(at_most, job.max) / unit * unit; size >= job.min && size > 0;
       size -= unit) {
    if (allowed(job, size)) return size;
  }
  return std::nullopt;
}

Gpus effective_gpus(const Job& job) {
  Gpus sum = 0;
  for (const Held& held : job.held) {
    if (!held.lost && !held.leaving) sum += held.gpus;
  }
  return sum;
}

}  // namespace rubato::sched
