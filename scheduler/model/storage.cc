#include "scheduler/model/storage.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace rubato::sched {
namespace {

double bytes_read(const Job& job, Gpus gpus) {
  return static_cast<double>(job.dataset->bytes_per_second) * static_cast<double>(gpus) /
         static_cast<double>(job.min);
}

// Of what the job reads at full speed, what is not in the cache.
double bandwidth_needed(const Job& job, Gpus gpus, const std::map<std::string, Bytes>& cache) {
  const auto found = cache.find(job.dataset->name);
  const Bytes cached = found == cache.end() ? 0 : std::min(found->second, job.dataset->bytes);
  return bytes_read(job, gpus) *
         (1 - static_cast<double>(cached) / static_cast<double>(job.dataset->bytes));
}

// Nobody needs more.
constexpr double kBandwidthMost = 1e18;

}  // namespace

std::map<std::string, DatasetInUse> datasets_in_use(const ClusterState& state,
                                                    const std::vector<Gpus>& gpus) {
  std::map<std::string, DatasetInUse> all;
  for (std::size_t i = 0; i < state.jobs.size(); ++i) {
    const Job& job = state.jobs[i];
    if (!job.dataset || gpus[i] == 0) continue;
    DatasetInUse& of = all[job.dataset->name];
    of.bytes = std::max(of.bytes, job.dataset->bytes);
    of.bytes_per_second += bytes_read(job, gpus[i]);
  }
  return all;
}

std::vector<Bytes> max_min_shares(Bytes total, const std::vector<Bytes>& needs) {
  std::vector<std::size_t> order(needs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return needs[i]; });
  std::vector<Bytes> shares(needs.size());
  Bytes left = std::ssize(needs);
  for (const std::size_t i : order) {
    shares[i] = std::min(needs[i], total / left);
    total -= shares[i];
    --left;
  }
  return shares;
}

StorageShares with_bandwidth(const ClusterState& state, const std::vector<Gpus>& gpus,
                             std::map<std::string, Bytes> cache) {
  StorageShares shares{.cache = std::move(cache), .bandwidth = {}};
  std::vector<Bytes> needs;
  std::vector<const Job*> readers;
  for (std::size_t i = 0; i < state.jobs.size(); ++i) {
    const Job& job = state.jobs[i];
    if (!job.dataset || gpus[i] == 0) continue;
    readers.push_back(&job);
    const double needed = std::ceil(bandwidth_needed(job, gpus[i], shares.cache));
    needs.push_back(static_cast<Bytes>(std::min(needed, kBandwidthMost)));
  }
  const std::vector<Bytes> given = max_min_shares(state.storage->remote_bytes_per_second, needs);
  for (std::size_t i = 0; i < readers.size(); ++i) shares.bandwidth[readers[i]->id] = given[i];
  return shares;
}

StorageShares uniform_shares(const ClusterState& state, const std::vector<Gpus>& gpus) {
  const auto datasets = datasets_in_use(state, gpus);
  std::vector<Bytes> needs;
  needs.reserve(datasets.size());
  for (const auto& [name, of] : datasets) needs.push_back(of.bytes);
  const std::vector<Bytes> given = max_min_shares(state.storage->cache_bytes, needs);
  std::map<std::string, Bytes> cache;
  std::size_t next = 0;
  for (const auto& [name, of] : datasets) cache[name] = given[next++];
  return with_bandwidth(state, gpus, std::move(cache));
}

bool are_within(const StorageShares& shares, const Storage& all) {
  Bytes cache = 0, bandwidth = 0;
  for (const auto& [name, bytes] : shares.cache) cache += bytes;
  for (const auto& [job, bytes] : shares.bandwidth) bandwidth += bytes;
  return cache <= all.cache_bytes && bandwidth <= all.remote_bytes_per_second;
}

double part_of_full_speed(const Job& job, Gpus gpus, const StorageShares& shares) {
  if (!job.dataset || gpus == 0) return 1;
  const double needed = bandwidth_needed(job, gpus, shares.cache);
  const auto found = shares.bandwidth.find(job.id);
  const double given = found == shares.bandwidth.end() ? 0 : static_cast<double>(found->second);
  return given >= needed ? 1 : given / needed;
}

}  // namespace rubato::sched
