// Who may take what of whom: guarantees, priorities, the order of the policy, what is borrowed.
#include "scheduler/session/session.h"

namespace rubato::sched {

// Held inside the guarantee of its queue, which another queue's job wants to borrow; of several
// types: all of them.
bool Session::is_protected(const Entry& held, const Entry& wanting, const QuotaBook& quota) const {
  return !held.pods.empty() && !any_type_held(held, [&](TypeIndex type) {
    return !is_protected(held, type, wanting, quota);
  });
}

// What it holds of a type.
bool Session::is_protected(const Entry& held, TypeIndex type, const Entry& wanting,
                           const QuotaBook& quota) const {
  return is_guaranteed(queue_of(held), type, queue_of(wanting), quota) ||
         (cells_.exist() && queue_of(held) != queue_of(wanting) && is_in_cells(held));
}

// What a queue holds of a type, against another one.
bool Session::is_guaranteed(QueueIndex queue, TypeIndex type, QueueIndex against,
                            const QuotaBook& quota) const {
  if (queue == against || !quota.has_guarantees()) return false;
  const auto guarantor = guarantor_of(queue, type, quota);
  return guarantor && !quota.is_part_of(against, *guarantor);
}

// The narrowest queue inside whose guarantee is what it holds of a type.
std::optional<QueueIndex> Session::guarantor_of(QueueIndex queue, TypeIndex type,
                                                const QuotaBook& quota) const {
  std::vector<Guarantor>& of_type = guarantors_[type];
  if (of_type.empty()) of_type.resize(problem_.count_queues());
  Guarantor& known = of_type[queue.value];
  if (known.version != quota.version()) known = {quota.version(), quota.guarantor(queue, type, 0)};
  return known.queue;
}

bool Session::is_displaced_by(const Entry& wanting, const Entry& victim) const {
  switch (targets_.displaces) {
    case Displaces::kNobody:
      return false;
    case Displaces::kLowerPriority:
      return victim.priority < wanting.priority;
    case Displaces::kLaterInOrder:
      return &victim > &wanting && victim.priority <= wanting.priority;
  }
  return false;
}

// Jobs of that queue, as far as its own queue and itself say.
bool Session::has_leave_to_preempt(const Entry& wanting, QueueIndex of_victim) const {
  const QueueIndex own = problem_.home_of(queue_of(wanting));
  const Queue* queue = problem_.queue(own);
  if (!wanting.job->may_preempt || queue == nullptr) return false;
  switch (queue->preempts) {
    case Preempts::kNobody:
      return false;
    case Preempts::kOwnQueue:
      return problem_.home_of(of_victim) == own;
    case Preempts::kAnyQueue:
      return true;
  }
  return false;
}

bool Session::may_displace(const Entry& wanting, const Entry& victim) const {
  return is_displaced_by(wanting, victim) && has_leave_to_preempt(wanting, queue_of(victim));
}

bool Session::may_preempt(const Entry& wanting, const Entry& victim, const Trial& trial) const {
  if (!victim.may_stop) return false;
  const bool displaces = may_displace(wanting, victim);  // the cheap questions first
  if (!displaces && !trial.reclaims) return false;
  if (is_protected(victim, wanting, trial.quota)) return false;
  return displaces || may_reclaim(wanting, victim, trial.quota);
}

// What the queue of the one, or a parent of it, is guaranteed and that of the other has borrowed.
bool Session::may_reclaim(const Entry& wanting, const Entry& victim, const QuotaBook& quota) const {
  if (!quota.has_guarantees() || queue_of(victim) == queue_of(wanting)) return false;
  const auto is_borrowed = [&](TypeIndex type) {
    return quota.used(queue_of(victim), type) > 0 &&
           !is_guaranteed(queue_of(victim), type, queue_of(wanting), quota);
  };
  return any_type_held(victim, is_borrowed) && guarantor_of(wanting, queue_of(victim)).has_value();
}

Displaced Session::why_preempted(const Entry& by, const Entry& victim) const {
  Displaced why{.job = by.job->name};
  if (!may_displace(by, victim)) {
    const auto queue = guarantor_of(by, queue_of(victim));
    why.by = Displaced::By::kGuarantee;
    why.of = queue ? problem_.queue(*queue)->name : by.job->queue;
  } else if (victim.job->priority < by.job->priority) {
    why.its_priority = by.job->priority;
    why.own_priority = victim.job->priority;
  } else {
    why.by = Displaced::By::kOrder;
    why.of = config_.policy;
  }
  return why;
}

}  // namespace rubato::sched
