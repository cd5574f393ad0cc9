#include "scheduler/model/quota.h"

#include "common/planted.h"
#include "scheduler/model/sizes.h"

#include <algorithm>

namespace rubato::sched {
namespace {

Gpus left_of(Gpus most, Gpus used) {
  return most == kNoLimit ? kNoLimit : std::max<Gpus>(most - used, 0);
}

// Who has cells and may not borrow is bound to these, wherever that is said.
bool goes_beyond_guarantees(const Queue& queue) { return queue.borrowing || !queue.cells.empty(); }

}  // namespace

Allowance allowance_of(const Quota* quota, bool may_borrow, Gpus unnamed) {
  Allowance allowance;
  if (quota != nullptr && quota->limit) allowance.limit = *quota->limit;
  if (!may_borrow) allowance.guarantee = quota != nullptr ? quota->guaranteed : unnamed;
  return allowance;
}

bool is_bounded(const Queue& queue) {
  return !goes_beyond_guarantees(queue) || std::ranges::any_of(queue.quotas, [](const auto& entry) {
    return entry.second.limit.has_value();
  });
}

QuotaBook::Rules::Rules(const Problem& problem)
    : count_types(problem.count_types()), queues(problem.count_queues()) {
  for (QueueIndex q; q < queues.end_key(); ++q) {
    queues[q].first = paths.size();
    for (std::optional<QueueIndex> one = q; one; one = problem.parent_of(*one))
      paths.push_back(*one);
    queues[q].level = paths.size() - queues[q].first;
    deepest = std::max(deepest, queues[q].level);
    if (problem.queue(q) != nullptr) add(problem, q);
  }
  const std::vector<OfQueue> own(queues.begin(), queues.end());
  for (OfQueue& of : queues)
    for (const QueueIndex one : std::span(paths).subspan(of.first, of.level)) {
      of.is_bounded |= own[one.value].is_bounded;
      of.is_limited |= own[one.value].is_limited;
    }
}

void QuotaBook::Rules::add(const Problem& problem, QueueIndex queue) {
  const Queue& said = *problem.queue(queue);
  const auto& quotas = problem.quotas_of(queue);
  const auto all = quotas.find(kAllTypes);
  const Quota* of_all = all == quotas.end() ? nullptr : &all->second;
  const bool may_borrow = goes_beyond_guarantees(said);
  OfQueue& of = queues[queue];
  of.most = allowance_of(of_all, may_borrow, kNoLimit).most();
  const Gpus unnamed = of_all == nullptr ? 0 : kNoLimit;
  of.most_unnamed = allowance_of(nullptr, may_borrow, unnamed).most();
  of.guaranteed = of_all == nullptr ? 0 : of_all->guaranteed;
  of.is_bounded = sched::is_bounded(said);
  of.is_limited = of.most != kNoLimit || of.most_unnamed != kNoLimit;
  has_guarantees = has_guarantees || of.guaranteed > 0;
  add_types(problem, queue, may_borrow, unnamed);
}

void QuotaBook::Rules::add_types(const Problem& problem, QueueIndex queue, bool may_borrow,
                                 Gpus unnamed) {
  OfQueue& of = queues[queue];
  for (const auto& [name, quota] : problem.quotas_of(queue)) {
    if (name == kAllTypes) continue;
    has_guarantees = has_guarantees || quota.guaranteed > 0;
    const auto type = problem.find_type(name);
    if (!type) continue;
    if (of.row == kNoRow) {
      of.row = static_cast<std::uint32_t>(types.size() / count_types);
      types.resize(types.size() + count_types, {.most = of.most_unnamed});
    }
    const Gpus most = allowance_of(&quota, may_borrow, unnamed).most();
    types[of.row * count_types + type->value] = {most, quota.guaranteed};
    of.by_type = of.by_type || quota.guaranteed > 0;
    of.is_limited = of.is_limited || most != kNoLimit;
  }
}

const QuotaBook::Rules::OfType* QuotaBook::Rules::find(QueueIndex queue, TypeIndex type) const {
  const std::uint32_t row = queues[queue].row;
  return row == kNoRow ? nullptr : &types[row * count_types + type.value];
}

QuotaBook::QuotaBook(const Problem& problem)
    : rules_(std::make_shared<const Rules>(problem)),
      used_all_(problem.count_queues(), 0),
      rows_(problem.count_queues(), kNoRow) {}

void QuotaBook::take(QueueIndex queue, TypeIndex type, Gpus gpus) {
  const std::size_t types = rules_->count_types;
  version_ = ++rules_->last_version;
  for (const QueueIndex one : path_of(queue)) {
    std::uint32_t& row = rows_[one];
    if (row == kNoRow) {
      row = static_cast<std::uint32_t>(used_.size() / types);
      used_.resize(used_.size() + types, 0);
    }
    used_[row * types + type.value] += gpus;
    used_all_[one] += gpus;
  }
}

Gpus QuotaBook::most_of_type(QueueIndex queue, TypeIndex type) const {
  const Rules::OfType* of_type = rules_->find(queue, type);
  return of_type == nullptr ? rules_of(queue).most_unnamed : of_type->most;
}

Gpus QuotaBook::own_most(QueueIndex queue, TypeIndex type) const {
  return std::min(own_most(queue), most_of_type(queue, type));
}

Gpus QuotaBook::own_most(QueueIndex queue) const {
  return planted(Bug::kOverLimit) ? kNoLimit : rules_of(queue).most;
}

Gpus QuotaBook::most(QueueIndex queue, TypeIndex type) const {
  return least(queue, [&](QueueIndex one) { return own_most(one, type); });
}

Gpus QuotaBook::most(QueueIndex queue) const {
  return least(queue, [&](QueueIndex one) { return own_most(one); });
}

Gpus QuotaBook::own_room(QueueIndex queue, TypeIndex type) const {
  return std::min(own_room(queue), left_of(most_of_type(queue, type), used(queue, type)));
}

Gpus QuotaBook::own_room(QueueIndex queue) const { return left_of(own_most(queue), used(queue)); }

Gpus QuotaBook::room(QueueIndex queue, TypeIndex type) const {
  return least(queue, [&](QueueIndex one) { return own_room(one, type); });
}

Gpus QuotaBook::room(QueueIndex queue) const {
  return least(queue, [&](QueueIndex one) { return own_room(one); });
}

std::optional<QueueIndex> QuotaBook::over_limit(QueueIndex queue, TypeIndex type) const {
  for (const QueueIndex one : path_of(queue))
    if (used(one) > own_most(one) || used(one, type) > most_of_type(one, type)) return one;
  return std::nullopt;
}

QueueIndex QuotaBook::tightest(QueueIndex queue) const {
  QueueIndex tightest = queue;
  for (const QueueIndex one : path_of(queue).subspan(1))
    if (own_room(one) <= own_room(tightest)) tightest = one;
  return tightest;
}

std::optional<QueueIndex> QuotaBook::guarantor(QueueIndex queue, TypeIndex type, Gpus more,
                                               std::optional<QueueIndex> other) const {
  const auto holds = [&](Gpus guaranteed, Gpus in_use) {
    return guaranteed > 0 && in_use + more <= guaranteed;
  };
  const Rules& rules = *rules_;
  for (const QueueIndex one : path_of(queue)) {
    const Rules::OfQueue& of = rules.queues[one];
    const bool is_inside =
        holds(of.guaranteed, used(one)) ||
        (of.by_type && holds(rules.find(one, type)->guaranteed, used(one, type)));
    if (!is_inside) continue;
    // What the other one is a part of, it is a part of the parents of, too: none of these counts.
    return other && is_part_of(*other, one) ? std::nullopt : std::optional(one);
  }
  return std::nullopt;
}

bool QuotaBook::is_helped_by(QueueIndex queue, QueueIndex other, TypeIndex type,
                             Gpus wanted) const {
  return std::ranges::any_of(path_of(queue), [&](QueueIndex one) {
    return is_part_of(other, one) && own_room(one, type) < wanted;
  });
}

std::optional<TypeIndex> type_with_room(const QuotaBook& quota, const Problem& problem, JobIndex j,
                                        Gpus wanted) {
  const QueueIndex queue = problem.queue_of(j);
  for (const TypeIndex type : problem.group(j).types)
    if ((problem.job(j).mix ? quota.room(queue) : quota.room(queue, type)) >= wanted) return type;
  return std::nullopt;
}

std::vector<TypeIndex> types_guaranteed(const QuotaBook& lasting, const Problem& problem,
                                        JobIndex j, const std::vector<TypeIndex>& types) {
  const auto guarantees_part_of = [&](QueueIndex whole) {
    for (QueueIndex q; q.value < problem.count_queues(); ++q) {
      if (q == whole || !lasting.is_part_of(q, whole)) continue;
      const auto& quotas = problem.quotas_of(q);
      if (std::ranges::any_of(quotas, [](const auto& one) { return one.second.guaranteed > 0; }))
        return true;
    }
    return false;
  };
  const Gpus least = size_at_least(problem.job(j), 0).value_or(problem.job(j).min);
  std::vector<TypeIndex> guaranteed;
  for (const TypeIndex type : types) {
    const auto queue = lasting.guarantor(problem.queue_of(j), type, least);
    if (queue && !guarantees_part_of(*queue)) guaranteed.push_back(type);
  }
  return guaranteed;
}

}  // namespace rubato::sched
