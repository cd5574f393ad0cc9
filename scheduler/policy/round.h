// Round: one decision of the first policy (plan.h says what it does). Private to this folder; made,
// run once, thrown away.
//   1. order the jobs          2. write off what is lost, shrink what is above its new max
//   3. minimums, in order, those inside a queue's guarantee first
//   4. growth by marginal throughput      5. collect actions
#pragma once

#include "scheduler/placement/place.h"
#include "scheduler/plan.h"
#include "scheduler/policy/quota.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace rubato::sched {

class Round {
 public:
  Round(const ClusterState& state, const PolicyConfig& config)
      : state_(state), config_(config), free_(state), quota_(state) {}

  Plan run();

 private:
  struct Entry {
    const Job* job;
    Gpus now = 0;  // effective GPUs, this round's decisions included
    std::vector<Placement> add;
    std::vector<std::int64_t> remove;
    std::string reason;
    bool repaired = false;
    bool preempted = false;
    bool blocked = false;  // has no verdict of "placed": takes no part in growth
  };
  using Victims = std::vector<std::pair<Entry*, std::int64_t>>;  // (entry, ordinal)
  // What would be free, and in use, if the victims gave their pods back.
  struct Trial {
    FreeMap free;
    QuotaBook quota;
    Victims victims;
  };
  // A size that a job could grow to.
  struct Step {
    double gain;
    std::size_t index;
    Gpus to;
    bool operator<(const Step& other) const {
      return gain != other.gain ? gain < other.gain : index > other.index;
    }
  };

  // priority_age.cc
  void order_jobs();
  void settle_losses(Entry& entry);
  void give_minimum(Entry& entry);
  void shrink_to(Entry& entry, Gpus target, const std::string& reason);
  void grow();
  std::optional<Step> next_step(std::size_t index) const;
  Plan collect();
  void take(Entry& entry, const std::vector<Placement>& placed);
  void verdict(Entry& entry, Outcome outcome, std::string reason, std::string message);

  // round_room.cc
  void place_or_make_room(Entry& entry, Gpus wanted);
  std::optional<std::string> make_room(Entry& wanting, std::int64_t pods);
  bool shrink_until_it_fits(const Entry& wanting, std::int64_t pods, Entry& from, Trial& trial);
  std::optional<std::string> preempt(Entry& wanting, std::int64_t pods, Trial& trial);
  std::string stop_victims(const std::vector<Entry*>& stopped, Victims shrunk,
                           const Entry& wanting);
  static std::vector<const Held*> releasable(const Entry& entry);
  std::string shrink_victims(const Victims& victims, const std::string& for_whom);
  bool reserve_if_fits(const Job& job, std::int64_t pods, const FreeMap& trial);
  static bool is_protected(const Entry& held, const Entry& wanting, const QuotaBook& quota);
  bool may_preempt(const Entry& wanting, const Entry& victim, const QuotaBook& quota) const;
  bool has_leave_to_preempt(const Entry& wanting, const Entry& victim) const;  // by its priority
  static std::string why_preempted(const Job& by, const Job& victim);

  // round_limits.cc
  TypeRoom room_of(const Job& job) const;
  Gpus room_for(const Job& job) const;
  std::set<std::string> types_for(const Job& job) const;
  bool is_inside_guarantee(const Entry& entry) const;
  Gpus capacity_for(const Job& job) const;
  Gpus capacity_not_avoided(const Job& job) const;
  bool avoids_all(const Job& job) const;
  static std::string type_of(const Entry& entry);
  static PlacedSoFar placed_so_far(const Entry& entry);

  const ClusterState& state_;
  const PolicyConfig& config_;
  FreeMap free_;
  std::vector<Entry> entries_;
  QuotaBook quota_;
  std::int64_t grown_ = 0;
  std::map<JobId, Verdict> verdicts_;
};

}  // namespace rubato::sched
