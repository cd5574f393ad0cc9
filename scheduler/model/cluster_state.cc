#include "scheduler/model/cluster_state.h"

namespace rubato::sched {

Resources& Resources::operator-=(const Resources& other) {
  gpus -= other.gpus;
  cpu -= other.cpu;
  memory -= other.memory;
  return *this;
}

Resources& Resources::operator+=(const Resources& other) {
  gpus += other.gpus;
  cpu += other.cpu;
  memory += other.memory;
  return *this;
}

}  // namespace rubato::sched
