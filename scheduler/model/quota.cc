#include "scheduler/model/quota.h"

#include "common/planted.h"

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

QuotaBook::Rules::Rules(std::size_t queues)
    : borrows(queues, 1),
      bounded(queues, 0),
      of_all(queues, nullptr),
      guaranteed(queues, 0),
      by_type(queues, 0),
      level(queues, 1) {}

QuotaBook::QuotaBook(const Problem& problem)
    : problem_(&problem),
      used_all_(problem.count_queues(), 0),
      rows_(problem.count_queues(), kNoRow) {
  Rules rules(problem.count_queues());
  for (QueueIndex q; q < used_all_.end_key(); ++q) {
    for (auto one = parent_of(q); one; one = parent_of(*one)) ++rules.level[q];
    rules.deepest = std::max(rules.deepest, rules.level[q]);
    const Queue* queue = problem.queue(q);
    if (queue == nullptr) continue;
    rules.borrows[q] = goes_beyond_guarantees(*queue) ? 1 : 0;
    rules.bounded[q] = sched::is_bounded(*queue) ? 1 : 0;
    for (const auto& [name, quota] : problem.quotas_of(q)) {
      rules.has_guarantees = rules.has_guarantees || quota.guaranteed > 0;
      if (name == kAllTypes) {
        rules.of_all[q] = &quota;
        rules.guaranteed[q] = quota.guaranteed;
      } else if (const auto type = problem.find_type(name)) {
        made_cell(q, *type).quota = &quota;
        if (quota.guaranteed > 0) rules.by_type[q] = 1;
      }
    }
  }
  rules_ = std::make_shared<const Rules>(std::move(rules));
}

const QuotaBook::Cell& QuotaBook::cell(QueueIndex queue, TypeIndex type) const {
  static constexpr Cell kNothing{};
  const std::uint32_t row = rows_[queue];
  return row == kNoRow ? kNothing : cells_[row * problem_->count_types() + type.value];
}

QuotaBook::Cell& QuotaBook::made_cell(QueueIndex queue, TypeIndex type) {
  const std::size_t types = problem_->count_types();
  std::uint32_t& row = rows_[queue];
  if (row == kNoRow) {
    row = static_cast<std::uint32_t>(cells_.size() / types);
    cells_.resize(cells_.size() + types);
  }
  return cells_[row * types + type.value];
}

void QuotaBook::take(QueueIndex queue, TypeIndex type, Gpus gpus) {
  for (std::optional<QueueIndex> one = queue; one; one = parent_of(*one)) {
    made_cell(*one, type).used += gpus;
    used_all_[*one] += gpus;
  }
}

Gpus QuotaBook::most_of(QueueIndex queue, const Quota* of_type) const {
  return allowance_of(of_type, may_borrow(queue), rules_->of_all[queue] == nullptr ? 0 : kNoLimit)
      .most();
}

Gpus QuotaBook::own_most(QueueIndex queue, TypeIndex type) const {
  return std::min(own_most(queue), most_of(queue, cell(queue, type).quota));
}

Gpus QuotaBook::own_most(QueueIndex queue) const {
  if (planted(Bug::kOverLimit)) return kNoLimit;
  return allowance_of(rules_->of_all[queue], may_borrow(queue), kNoLimit).most();
}

Gpus QuotaBook::most(QueueIndex queue, TypeIndex type) const {
  return least(queue, [&](QueueIndex one) { return own_most(one, type); });
}

Gpus QuotaBook::most(QueueIndex queue) const {
  return least(queue, [&](QueueIndex one) { return own_most(one); });
}

Gpus QuotaBook::own_room(QueueIndex queue, TypeIndex type) const {
  const Cell& of_type = cell(queue, type);
  return std::min(own_room(queue), left_of(most_of(queue, of_type.quota), of_type.used));
}

Gpus QuotaBook::own_room(QueueIndex queue) const { return left_of(own_most(queue), used(queue)); }

Gpus QuotaBook::room(QueueIndex queue, TypeIndex type) const {
  return least(queue, [&](QueueIndex one) { return own_room(one, type); });
}

Gpus QuotaBook::room(QueueIndex queue) const {
  return least(queue, [&](QueueIndex one) { return own_room(one); });
}

std::optional<QueueIndex> QuotaBook::over_limit(QueueIndex queue, TypeIndex type) const {
  for (std::optional<QueueIndex> one = queue; one; one = parent_of(*one)) {
    const Cell& of_type = cell(*one, type);
    if (used(*one) > own_most(*one) || of_type.used > most_of(*one, of_type.quota)) return one;
  }
  return std::nullopt;
}

QueueIndex QuotaBook::tightest(QueueIndex queue) const {
  QueueIndex tightest = queue;
  for (auto one = parent_of(queue); one; one = parent_of(*one))
    if (own_room(*one) <= own_room(tightest)) tightest = *one;
  return tightest;
}

bool QuotaBook::is_part_of(QueueIndex queue, QueueIndex whole) const {
  std::optional<QueueIndex> one = queue;
  while (one && *one != whole) one = parent_of(*one);
  return one.has_value();
}

std::optional<QueueIndex> QuotaBook::guarantor(QueueIndex queue, TypeIndex type, Gpus more,
                                               std::optional<QueueIndex> other) const {
  const auto holds = [&](Gpus guaranteed, Gpus in_use) {
    return guaranteed > 0 && in_use + more <= guaranteed;
  };
  std::optional<QueueIndex> one = queue;
  for (; one; one = parent_of(*one)) {
    if (holds(rules_->guaranteed[*one], used(*one))) break;
    if (rules_->by_type[*one] == 0) continue;
    const Cell& of_type = cell(*one, type);
    if (of_type.quota != nullptr && holds(of_type.quota->guaranteed, of_type.used)) break;
  }
  // What the other one is a part of, it is a part of the parents of, too: none of these counts.
  return one && other && is_part_of(*other, *one) ? std::nullopt : one;
}

bool QuotaBook::is_borrowing(QueueIndex queue, TypeIndex type, QueueIndex other) const {
  return used(queue, type) > 0 && !guarantor(queue, type, 0, other);
}

bool QuotaBook::is_bounded(QueueIndex queue) const {
  std::optional<QueueIndex> one = queue;
  while (one && rules_->bounded[*one] == 0) one = parent_of(*one);
  return one.has_value();
}

bool QuotaBook::is_helped_by(QueueIndex queue, QueueIndex other, TypeIndex type,
                             Gpus wanted) const {
  for (std::optional<QueueIndex> one = queue; one; one = parent_of(*one))
    if (is_part_of(other, *one) && own_room(*one, type) < wanted) return true;
  return false;
}

std::optional<TypeIndex> type_with_room(const QuotaBook& quota, const Problem& problem, JobIndex j,
                                        Gpus wanted) {
  const QueueIndex queue = problem.queue_of(j);
  for (const TypeIndex type : problem.group(j).types)
    if ((problem.job(j).mix ? quota.room(queue) : quota.room(queue, type)) >= wanted) return type;
  return std::nullopt;
}

}  // namespace rubato::sched
