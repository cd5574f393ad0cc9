// QuotaBook: what the queues hold during one round, and what they may still take. Kept per GPU
// type; the entry "*" of a queue speaks of all its types together.
//
// A guarantee is what a queue can always get: its jobs come first while they stay inside it, no job
// of another queue takes it from them, and what others have borrowed of it is taken back. A limit
// is never exceeded. A queue that may not borrow is limited to its guarantees.
#pragma once

#include "scheduler/model/cluster_state.h"

#include <limits>
#include <map>
#include <string>

namespace rubato::sched {

constexpr Gpus kNoLimit = std::numeric_limits<Gpus>::max();

class QuotaBook {
 public:
  explicit QuotaBook(const ClusterState& state) : queues_(state.queues) {}

  void take(const std::string& queue, const std::string& gpu_type, Gpus gpus);
  void give_back(const std::string& queue, const std::string& gpu_type, Gpus gpus);

  Gpus used(const std::string& queue) const { return used(queue, kAllTypes); }
  Gpus used(const std::string& queue, const std::string& gpu_type) const;
  // How many more it may take of this type; kNoLimit; never below zero.
  Gpus room(const std::string& queue, const std::string& gpu_type) const;
  // Of all types together.
  Gpus room(const std::string& queue) const;
  // Is the queue inside its guarantee with so many more (or, below zero, fewer) of this type?
  bool is_guaranteed(const std::string& queue, const std::string& gpu_type, Gpus more) const;
  // Does it hold more of this type than it is guaranteed (anything, when nothing is)?
  bool is_borrowing(const std::string& queue, const std::string& gpu_type) const;

  static constexpr const char* kAllTypes = "*";

 private:
  const Quota* quota(const std::string& queue, const std::string& gpu_type) const;
  bool may_borrow(const std::string& queue) const;

  const std::map<std::string, Queue>& queues_;
  std::map<std::string, std::map<std::string, Gpus>> used_;
};

}  // namespace rubato::sched
