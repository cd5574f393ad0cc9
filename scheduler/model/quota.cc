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

QuotaBook::QuotaBook(const Problem& problem)
    : problem_(&problem),
      borrows_(problem.count_queues(), 1),
      bounded_(problem.count_queues(), 0),
      of_all_(problem.count_queues(), nullptr),
      used_all_(problem.count_queues(), 0),
      rows_(problem.count_queues(), kNoRow) {
  for (QueueIndex q; q < of_all_.end_key(); ++q) {
    const Queue* queue = problem.queue(q);
    if (queue == nullptr) continue;
    borrows_[q] = goes_beyond_guarantees(*queue) ? 1 : 0;
    bounded_[q] = sched::is_bounded(*queue) ? 1 : 0;
    for (const auto& [name, quota] : problem.quotas_of(q)) {
      has_guarantees_ = has_guarantees_ || quota.guaranteed > 0;
      if (name == kAllTypes)
        of_all_[q] = &quota;
      else if (const auto type = problem.find_type(name))
        made_cell(q, *type).quota = &quota;
    }
  }
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
  return allowance_of(of_type, may_borrow(queue), of_all_[queue] == nullptr ? 0 : kNoLimit).most();
}

Gpus QuotaBook::own_most(QueueIndex queue, TypeIndex type) const {
  return std::min(own_most(queue), most_of(queue, cell(queue, type).quota));
}

Gpus QuotaBook::own_most(QueueIndex queue) const {
  if (planted(Bug::kOverLimit)) return kNoLimit;
  return allowance_of(of_all_[queue], may_borrow(queue), kNoLimit).most();
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

std::size_t QuotaBook::level_of(QueueIndex queue) const {
  std::size_t level = 1;
  for (auto one = parent_of(queue); one; one = parent_of(*one)) ++level;
  return level;
}

bool QuotaBook::is_part_of(QueueIndex queue, QueueIndex whole) const {
  std::optional<QueueIndex> one = queue;
  while (one && *one != whole) one = parent_of(*one);
  return one.has_value();
}

std::optional<QueueIndex> QuotaBook::guarantor(QueueIndex queue, TypeIndex type, Gpus more,
                                               std::optional<QueueIndex> other) const {
  const auto holds = [&](const Quota* quota, Gpus in_use) {
    return quota != nullptr && quota->guaranteed > 0 && in_use + more <= quota->guaranteed;
  };
  std::optional<QueueIndex> one = queue;
  for (; one; one = parent_of(*one)) {
    const Cell& of_type = cell(*one, type);
    if (holds(of_type.quota, of_type.used) || holds(of_all_[*one], used(*one))) break;
  }
  // What the other one is a part of, it is a part of the parents of, too: none of these counts.
  return one && other && is_part_of(*other, *one) ? std::nullopt : one;
}

bool QuotaBook::is_borrowing(QueueIndex queue, TypeIndex type, QueueIndex other) const {
  return used(queue, type) > 0 && !guarantor(queue, type, 0, other);
}

bool QuotaBook::is_bounded(QueueIndex queue) const {
  std::optional<QueueIndex> one = queue;
  while (one && bounded_[*one] == 0) one = parent_of(*one);
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
