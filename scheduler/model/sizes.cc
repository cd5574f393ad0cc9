#include "scheduler/model/sizes.h"

#include <algorithm>

namespace rubato::sched {

namespace {

// kWholeNodes is expressed by per_pod: such a job's pod is a whole node.
bool allowed(const Job& job, Gpus size) {
  return size >= job.min && size <= job.max && size % job.per_pod.gpus == 0;
}

}  // namespace

std::optional<Gpus> size_at_least(const Job& job, Gpus at_least) {
  if (job.shape == Shape::kPowersOfTwo) {
    for (Gpus size = 1; size <= job.max; size *= 2)
      if (size >= at_least && allowed(job, size)) return size;
    return std::nullopt;
  }
  const Gpus unit = job.per_pod.gpus;
  const Gpus size = (std::max(at_least, job.min) + unit - 1) / unit * unit;
  return size <= job.max ? std::optional(size) : std::nullopt;
}

std::optional<Gpus> size_at_most(const Job& job, Gpus at_most) {
  if (job.shape == Shape::kPowersOfTwo) {
    std::optional<Gpus> largest;
    for (Gpus size = 1; size <= std::min(at_most, job.max); size *= 2)
      if (allowed(job, size)) largest = size;
    return largest;
  }
  const Gpus unit = job.per_pod.gpus;
  const Gpus size = std::min(at_most, job.max) / unit * unit;
  return size >= job.min && size > 0 ? std::optional(size) : std::nullopt;
}

Gpus effective_gpus(const Job& job) {
  Gpus sum = 0;
  for (const Held& held : job.held) {
    if (held.stays()) sum += held.gpus;
  }
  return sum;
}

}  // namespace rubato::sched
