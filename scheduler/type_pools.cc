#include "scheduler/type_pools.h"

#include <algorithm>

namespace rubato::sched {

void TypePools::add(const Types& types) {
  const auto [at, is_new] = pools_.try_emplace(types);
  if (!is_new) return;
  Gpus healthy = 0;
  for (NodeIndex n; n < problem_.end_of_nodes(); ++n)
    if (problem_.node(n).schedulable && std::ranges::binary_search(types, problem_.type_of(n)))
      healthy += problem_.node(n).gpus_total;
  at->second.most = static_cast<Gpus>(times_ * static_cast<double>(healthy));
}

std::vector<TypePools::Pool*> TypePools::with_all(const Types& types) {
  std::vector<Pool*> all;
  for (auto& [of, pool] : pools_)
    if (std::ranges::includes(of, types)) all.push_back(&pool);
  return all;
}

}  // namespace rubato::sched
