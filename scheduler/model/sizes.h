// Which sizes a job may have.
#pragma once

#include "scheduler/model/cluster_state.h"

#include <optional>

namespace rubato::sched {

// The smallest allowed size >= at_least, if it is <= job.max.
std::optional<Gpus> size_at_least(const Job& job, Gpus at_least);
// The largest allowed size <= at_most, if it is >= job.min.
std::optional<Gpus> size_at_most(const Job& job, Gpus at_most);
// GPUs of the pods that count: neither lost nor leaving.
Gpus effective_gpus(const Job& job);

}  // namespace rubato::sched
