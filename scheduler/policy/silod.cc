#include "scheduler/policy/silod.h"

#include "scheduler/policy/order.h"

#include <algorithm>

namespace rubato::sched {

Descriptor SiloD::describe() {
  return {
      .name = "silod",
      .about = "shortest remaining time first; shares of cache and remote bandwidth with the GPUs",
      .rule =
          "The job with the least time left at its minimum goes first, and preempts those with "
          "more; one of which it is not known goes first, in order of arrival. What there is of "
          "cache goes to the data sets of jobs that hold GPUs, the one first of which most bytes "
          "a second are read for each byte that it has (cache efficiency), as much as it has. "
          "Remote bandwidth goes to these jobs by max-min over what each needs beside the cache "
          "for its full speed. A job reads min(f, b / (1 - c / d)): f at full speed, b of its "
          "bandwidth, c cached of d bytes.",
      .choose =
          "Where jobs read more than the remote storage gives, and their data sets are larger "
          "than the cache. Long jobs may starve.",
      .source =
          "Zhao et al., EuroSys'23. *Reconstruction* of its shortest-job-first variant: data sets "
          "and rates are given, what a job has of the cache is there at once, and remaining time "
          "is that at full speed. Its published results are *unverified* here",
      .knows = Knows::kRemaining,
      .shares_storage = true};
}

Targets SiloD::decide(const Problem& problem) const {
  return {.order = order_by(problem,
                            [&](JobIndex j) { return problem.job(j).remaining_ms.value_or(0); }),
          .displaces = Displaces::kLaterInOrder};
}

std::optional<StorageShares> SiloD::share_storage(const ClusterState& state,
                                                  const std::vector<Gpus>& gpus) const {
  struct Ranked {
    double efficiency;
    const std::string* name;
    Bytes bytes;
  };
  const auto datasets = datasets_in_use(state, gpus);
  std::vector<Ranked> ranked;
  ranked.reserve(datasets.size());
  for (const auto& [name, of] : datasets)
    ranked.push_back({of.bytes_per_second / static_cast<double>(of.bytes), &name, of.bytes});
  std::ranges::stable_sort(ranked, std::greater(), &Ranked::efficiency);
  std::map<std::string, Bytes> cache;
  Bytes left = state.storage->cache_bytes;
  for (const Ranked& one : ranked) {
    const Bytes given = std::min(one.bytes, left);
    cache[*one.name] = given;
    left -= given;
  }
  return with_bandwidth(state, gpus, std::move(cache));
}

}  // namespace rubato::sched
