#include "scheduler/model/cluster_state.h"

#include "common/check.h"
#include "common/saturate.h"

#include <algorithm>

namespace rubato::sched {

bool Resources::fits(const Resources& wanted) const {
  if (wanted.gpus > gpus || wanted.cpu > cpu || wanted.memory > memory) return false;
  for (std::size_t i = 0; i < kOthers; ++i)
    if (wanted.others[i] > others[i]) return false;
  return true;
}

std::int64_t Resources::copies_of(const Resources& wanted) const {
  CHECK_GT(wanted.gpus, 0);
  std::int64_t n = gpus / wanted.gpus;
  const auto limit = [&](std::int64_t have, std::int64_t one) {
    if (one > 0) n = std::min(n, have / one);
  };
  limit(cpu, wanted.cpu);
  limit(memory, wanted.memory);
  for (std::size_t i = 0; i < kOthers; ++i) limit(others[i], wanted.others[i]);
  return std::max<std::int64_t>(n, 0);
}

void Resources::raise_to_zero() {
  gpus = std::max<Gpus>(gpus, 0);
  cpu = std::max<MilliCpu>(cpu, 0);
  memory = std::max<Bytes>(memory, 0);
  for (std::int64_t& other : others) other = std::max<std::int64_t>(other, 0);
}

Resources& Resources::operator-=(const Resources& other) {
  gpus = saturating_subtract(gpus, other.gpus);
  cpu = saturating_subtract(cpu, other.cpu);
  memory = saturating_subtract(memory, other.memory);
  for (std::size_t i = 0; i < kOthers; ++i)
    others[i] = saturating_subtract(others[i], other.others[i]);
  return *this;
}

Resources& Resources::operator+=(const Resources& other) {
  gpus = saturating_add(gpus, other.gpus);
  cpu = saturating_add(cpu, other.cpu);
  memory = saturating_add(memory, other.memory);
  for (std::size_t i = 0; i < kOthers; ++i) others[i] = saturating_add(others[i], other.others[i]);
  return *this;
}

}  // namespace rubato::sched
