// Where training data comes from: a cache that all nodes share, and what lies behind it. How fast
// that lets a job be is SiloDPerf (Zhao et al., EuroSys'23): a job that reads f bytes/s at full
// speed, of a data set of d bytes of which c are cached, each once an epoch in any order, and may
// read b bytes/s of the rest, reads
//
//   min(f, b / (1 - c / d))
#pragma once

#include "scheduler/model/cluster_state.h"

#include <map>
#include <string>
#include <vector>

namespace rubato::sched {

// Who gets how much of ClusterState::storage.
struct StorageShares {
  std::map<std::string, Bytes> cache;  // by data set, for all its jobs together
  std::map<JobId, Bytes> bandwidth;    // bytes a second of what is not cached
  bool operator==(const StorageShares&) const = default;
};

// A data set in use.
struct DatasetInUse {
  Bytes bytes = 0;
  double bytes_per_second = 0;  // read by all its jobs together, at full speed
};
// By name. `gpus`: by job, what it holds; who holds nothing reads nothing.
std::map<std::string, DatasetInUse> datasets_in_use(const ClusterState& state,
                                                    const std::vector<Gpus>& gpus);

// Of `total` to each as much as it needs, if that is not more than an equal share of what those
// who need less leave.
std::vector<Bytes> max_min_shares(Bytes total, const std::vector<Bytes>& needs);

// With what each data set has of the cache: the bandwidth by max-min over what each job needs for
// its full speed.
StorageShares with_bandwidth(const ClusterState& state, const std::vector<Gpus>& gpus,
                             std::map<std::string, Bytes> cache);
// The same where nobody decides: an equal part of the cache for each data set in use, as far as it
// needs so much.
StorageShares uniform_shares(const ClusterState& state, const std::vector<Gpus>& gpus);

// No more is given than there is.
bool are_within(const StorageShares& shares, const Storage& all);

// Of the speed that its GPUs alone let it have.
double part_of_full_speed(const Job& job, Gpus gpus, const StorageShares& shares);

}  // namespace rubato::sched
