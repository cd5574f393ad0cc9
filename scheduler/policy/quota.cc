#include "scheduler/policy/quota.h"

#include "common/planted.h"

#include <algorithm>

namespace rubato::sched {

void QuotaBook::take(const std::string& queue, const std::string& gpu_type, Gpus gpus) {
  used_[queue][gpu_type] += gpus;
  used_[queue][kAllTypes] += gpus;
}

void QuotaBook::give_back(const std::string& queue, const std::string& gpu_type, Gpus gpus) {
  take(queue, gpu_type, -gpus);
}

Gpus QuotaBook::used(const std::string& queue, const std::string& gpu_type) const {
  const auto of_queue = used_.find(queue);
  if (of_queue == used_.end()) return 0;
  const auto of_type = of_queue->second.find(gpu_type);
  return of_type == of_queue->second.end() ? 0 : of_type->second;
}

Gpus QuotaBook::room(const std::string& queue, const std::string& gpu_type) const {
  Gpus room = this->room(queue);
  const Quota* of_type = quota(queue, gpu_type);
  const Gpus in_use = used(queue, gpu_type);
  if (of_type != nullptr && of_type->limit) room = std::min(room, *of_type->limit - in_use);
  if (!may_borrow(queue)) {
    if (of_type != nullptr)
      room = std::min(room, of_type->guaranteed - in_use);
    else if (quota(queue, kAllTypes) == nullptr)
      room = 0;
  }
  return std::max<Gpus>(room, 0);
}

Gpus QuotaBook::room(const std::string& queue) const {
  if (planted(Bug::kOverLimit)) return kNoLimit;
  const Quota* all = quota(queue, kAllTypes);
  Gpus room = kNoLimit;
  if (all != nullptr && all->limit) room = *all->limit - used(queue);
  if (all != nullptr && !may_borrow(queue)) room = std::min(room, all->guaranteed - used(queue));
  return std::max<Gpus>(room, 0);
}

bool QuotaBook::is_guaranteed(const std::string& queue, const std::string& gpu_type,
                              Gpus more) const {
  const Quota* of_type = quota(queue, gpu_type);
  if (of_type != nullptr && of_type->guaranteed > 0 &&
      used(queue, gpu_type) + more <= of_type->guaranteed) {
    return true;
  }
  const Quota* all = quota(queue, kAllTypes);
  return all != nullptr && all->guaranteed > 0 && used(queue) + more <= all->guaranteed;
}

bool QuotaBook::is_borrowing(const std::string& queue, const std::string& gpu_type) const {
  return used(queue, gpu_type) > 0 && !is_guaranteed(queue, gpu_type, 0);
}

const Quota* QuotaBook::quota(const std::string& queue, const std::string& gpu_type) const {
  const auto found = queues_.find(queue);
  if (found == queues_.end()) return nullptr;
  const auto of_type = found->second.quotas.find(gpu_type);
  return of_type == found->second.quotas.end() ? nullptr : &of_type->second;
}

bool QuotaBook::may_borrow(const std::string& queue) const {
  const auto found = queues_.find(queue);
  return found == queues_.end() || found->second.borrowing;
}

}  // namespace rubato::sched
