// What the jobs of a queue with a limit have, exactly: steps by value a GPU leave a part of a small
// limit unused where the next job does not fit, or fill it with what is worth little.
#include "scheduler/policy/room.h"
#include "scheduler/policy/rubato_claim.h"

#include <algorithm>
#include <map>

namespace rubato::sched {
namespace {

// Of one knapsack: sizes of all its jobs, times its GPUs. Where it would be more the steps are
// close to the best anyway.
constexpr std::int64_t kKnapsackWork = 1'000'000;

struct Option {
  TypeIndex type;
  Gpus gpus = 0;
  std::int64_t worth = 0;  // beyond what its GPUs cost
};
using Options = std::vector<Option>;

template <class MayHave>
Options options_of(const JobValues& values, Gpus most, const PriceTable& prices,
                   const MayHave& may_have) {
  std::map<Gpus, Option> best;  // by size
  for (const auto& one : values.types)
    for (const SizeValue& size : values.of(one)) {
      const auto& [gpus, value] = size;
      if (gpus > most) break;
      if (!may_have(one.type, size)) continue;
      if (value <= 0 || prices[one.type] > (value - 1) / gpus) continue;  // not worth its price
      const std::int64_t worth = value - prices[one.type] * gpus;
      Option& known = best[gpus];
      if (worth > known.worth) known = {one.type, gpus, worth};
    }
  Options options;
  for (const auto& [gpus, option] : best)
    if (option.worth > (options.empty() ? 0 : options.back().worth)) options.push_back(option);
  return options;
}

// Of each job one option or none, such that together they are worth most and fit.
std::vector<const Option*> best_fit(const std::vector<Options>& jobs, Gpus room) {
  std::vector<std::int64_t> best(static_cast<std::size_t>(room) + 1, 0);  // by GPUs
  std::vector<std::vector<std::size_t>> chosen;                           // 0: none
  for (const Options& options : jobs) {
    std::vector<std::size_t>& own = chosen.emplace_back(best.size(), 0);
    for (std::size_t gpus = best.size(); gpus-- > 0;)
      for (std::size_t i = 0; i < options.size(); ++i) {
        const auto size = static_cast<std::size_t>(options[i].gpus);
        if (size > gpus || best[gpus - size] + options[i].worth <= best[gpus]) continue;
        best[gpus] = best[gpus - size] + options[i].worth;
        own[gpus] = i + 1;
      }
  }
  std::vector<const Option*> fit(jobs.size(), nullptr);
  std::size_t left = best.size() - 1;
  for (std::size_t j = jobs.size(); j-- > 0;) {
    const std::size_t choice = chosen[j][left];
    if (choice == 0) continue;
    fit[j] = &jobs[j][choice - 1];
    left -= static_cast<std::size_t>(fit[j]->gpus);
  }
  return fit;
}

}  // namespace

void RubatoPolicy::fit_into_limits(const Problem& problem, const std::vector<JobIndex>& jobs,
                                   std::vector<Claim>& claims, const Room& room,
                                   const PriceTable& prices) {
  std::map<QueueIndex, std::vector<JobIndex>> of_queue;
  for (const JobIndex j : jobs)
    if (problem.takes_part(j) && room.left_of(problem.queue_of(j)) != kNoLimit)
      of_queue[room.tightest(problem.queue_of(j))].push_back(j);
  for (const auto& [queue, own] : of_queue) {
    const Gpus left = room.left_of(queue);
    std::vector<Options> options;
    Gpus wanted = 0;
    std::int64_t count = 0;
    for (const JobIndex j : own) {
      const Claim& claim = claims[j.value];
      options.push_back(
          options_of(*claim.values, std::min(left, claim.most), prices,
                     [&](TypeIndex type, const SizeValue& to) { return gains(claim, type, to); }));
      if (!options.back().empty()) wanted += options.back().back().gpus;
      count += std::ssize(options.back());
    }
    if (wanted <= left || count * left > kKnapsackWork) continue;
    const auto fit = best_fit(options, left);
    for (std::size_t i = 0; i < own.size(); ++i) {
      Claim& claim = claims[own[i].value];
      claim.at_most = fit[i] == nullptr ? 0 : fit[i]->gpus;
      if (fit[i] != nullptr) claim.first = fit[i]->type;
    }
  }
}

}  // namespace rubato::sched
