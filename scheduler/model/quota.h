// QuotaBook: what the queues hold during one round, and what they may still take. Kept per GPU
// type, and of all types together (the entry "*" of a queue).
//
// A guarantee is what a queue can always get: its jobs come first while they stay inside it, no job
// of another queue takes it from them, and what others have borrowed of it is taken back. A limit
// is never exceeded. A queue that may not borrow is limited to its guarantees. A queue that does
// not exist has no quota. What holds of a queue's parents holds of it, too: queue_tree.h.
#pragma once

#include "scheduler/model/problem.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace rubato::sched {

constexpr Gpus kNoLimit = std::numeric_limits<Gpus>::max();

// What a queue may hold of one type, or of all together.
struct Allowance {
  Gpus limit = kNoLimit;
  Gpus guarantee = kNoLimit;  // where the queue may not borrow
  Gpus most() const { return std::min(limit, guarantee); }
};
// `unnamed`: the guarantee of a queue that may not borrow, where it says nothing (null).
Allowance allowance_of(const Quota* quota, bool may_borrow, Gpus unnamed);

// Whether there is anything that it may not hold, whatever its parents may.
bool is_bounded(const Queue& queue);

// A value: a copy is what would be, if.
class QuotaBook {
 public:
  explicit QuotaBook(const Problem& problem);  // nothing is held

  void take(QueueIndex queue, TypeIndex type, Gpus gpus);
  void give_back(QueueIndex queue, TypeIndex type, Gpus gpus) { take(queue, type, -gpus); }

  // By it and its parts.
  Gpus used(QueueIndex queue) const { return used_all_[queue]; }
  Gpus used(QueueIndex queue, TypeIndex type) const {
    const std::uint32_t row = rows_[queue];
    return row == kNoRow ? 0 : used_[row * rules_->count_types + type.value];
  }
  // How many it may hold of this type, whatever it holds now; kNoLimit.
  Gpus most(QueueIndex queue, TypeIndex type) const;
  // Of all types together.
  Gpus most(QueueIndex queue) const;
  // The same, whatever its parents may.
  Gpus own_most(QueueIndex queue, TypeIndex type) const;
  Gpus own_most(QueueIndex queue) const;
  // How many more it may take of this type; kNoLimit; never below zero.
  Gpus room(QueueIndex queue, TypeIndex type) const;
  // Of all types together.
  Gpus room(QueueIndex queue) const;
  // The same, whatever its parents have left.
  Gpus own_room(QueueIndex queue, TypeIndex type) const;
  Gpus own_room(QueueIndex queue) const;
  // It, or a parent, that holds more than it may of this type, or of all together; none: neither.
  std::optional<QueueIndex> over_limit(QueueIndex queue, TypeIndex type) const;
  // It, or the parent, that leaves it least of all types together; of equals the widest.
  QueueIndex tightest(QueueIndex queue) const;
  // The queue that is inside its guarantee with so many more (or, below zero, fewer) of this type:
  // it, or a parent; none: neither. Against `other` only what that is no part of.
  std::optional<QueueIndex> guarantor(QueueIndex queue, TypeIndex type, Gpus more,
                                      std::optional<QueueIndex> other = {}) const;
  bool is_guaranteed(QueueIndex queue, TypeIndex type, Gpus more) const {
    return guarantor(queue, type, more).has_value();
  }
  // 1: it is a part of none; its parts have 2 …
  std::size_t level_of(QueueIndex queue) const { return rules_of(queue).level; }
  std::size_t deepest_level() const { return rules_->deepest; }  // of all queues
  // … or that one itself.
  bool is_part_of(QueueIndex queue, QueueIndex whole) const {
    const Rules::OfQueue& of = rules_of(queue);
    const std::size_t of_whole = level_of(whole);
    return of.level >= of_whole && rules_->paths[of.first + of.level - of_whole] == whole;
  }
  // Whether there is anything that it may not hold.
  bool is_bounded(QueueIndex queue) const { return rules_of(queue).is_bounded; }
  // Whether it lacks room where `other` holds some, too: in the queue of both, or a parent of both.
  bool is_helped_by(QueueIndex queue, QueueIndex other, TypeIndex type, Gpus wanted) const;
  bool has_guarantees() const { return rules_->has_guarantees; }  // any queue
  // Of this book and its copies those of one version hold the same.
  std::uint64_t version() const { return version_; }

  static constexpr const char* kAllTypes = "*";

 private:
  // What the queues may hold: the same in every copy.
  struct Rules {
    struct OfType {
      Gpus most = kNoLimit;
      Gpus guaranteed = 0;
    };
    struct OfQueue {
      Gpus most = kNoLimit;          // of all types together
      Gpus most_unnamed = kNoLimit;  // of a type that it says nothing of
      Gpus guaranteed = 0;           // of all types together
      std::uint32_t row = kNoRow;    // of `types`; kNoRow: it says nothing of any one
      bool by_type = false;          // something is guaranteed of one type
      bool is_bounded = false;       // it, or a parent
      bool is_limited = false;       // … by a number
      std::size_t first = 0;         // of `paths`
      std::size_t level = 1;
    };
    explicit Rules(const Problem& problem);
    void add(const Problem& problem, QueueIndex queue);
    void add_types(const Problem& problem, QueueIndex queue, bool may_borrow, Gpus unnamed);
    const OfType* find(QueueIndex queue, TypeIndex type) const;  // null: it says nothing of it

    std::size_t count_types = 0;
    Table<QueueIndex, OfQueue> queues;
    std::vector<OfType> types;      // by row, and in it by type
    std::vector<QueueIndex> paths;  // each queue and what it is a part of, one path after the other
    std::size_t deepest = 0;
    bool has_guarantees = false;
    mutable std::uint64_t last_version = 1;  // of all copies
  };
  static constexpr std::uint32_t kNoRow = std::numeric_limits<std::uint32_t>::max();
  const Rules::OfQueue& rules_of(QueueIndex queue) const { return rules_->queues[queue]; }
  // It, and what it is a part of, the narrowest first.
  std::span<const QueueIndex> path_of(QueueIndex queue) const {
    const Rules::OfQueue& of = rules_of(queue);
    return std::span(rules_->paths).subspan(of.first, of.level);
  }
  // As far as the type alone says.
  Gpus most_of_type(QueueIndex queue, TypeIndex type) const;
  // The least of what `of` says of the queue and of its parents.
  template <class Of>
  Gpus least(QueueIndex queue, const Of& of) const {
    if (!rules_of(queue).is_limited) return kNoLimit;
    Gpus least = kNoLimit;
    for (const QueueIndex one : path_of(queue)) least = std::min(least, of(one));
    return least;
  }

  std::shared_ptr<const Rules> rules_;
  std::uint64_t version_ = 1;
  Table<QueueIndex, Gpus> used_all_;
  Table<QueueIndex, std::uint32_t> rows_;  // of used_; kNoRow: nothing was ever held
  std::vector<Gpus> used_;                 // by row, and in it by type
};

// The first of the types that the job may use of which its queue may take so many more, or, where
// it mixes types, of all together; none: the queue is full.
std::optional<TypeIndex> type_with_room(const QuotaBook& quota, const Problem& problem, JobIndex j,
                                        Gpus wanted);

// Of `types` those of which a job that is not preemptible may start: what its queue is guaranteed,
// or a parent, has room for its minimum, beside what the book has of others of its kind. A parent
// with a part that is guaranteed something of its own does not count: that is not to wait for jobs
// that have it of the whole.
std::vector<TypeIndex> types_guaranteed(const QuotaBook& lasting, const Problem& problem,
                                        JobIndex j, const std::vector<TypeIndex>& types);

}  // namespace rubato::sched
