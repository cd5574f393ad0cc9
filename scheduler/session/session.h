// Session: from the targets of a policy to a plan. Private to this folder; made, run once, thrown
// away.
//   1. write off what is lost, shrink what is above its new max; guests whose host changes, or whom
//      the policy wants to be none, stop
//   2. where the policy says places, leave all others; where it says sizes, shrink what others are
//      to have
//   3. minimums, in the policy's order: those inside the cells of their queue first, then those
//      inside its guarantee; on the GPUs of others, where there is no room and the policy says so;
//      then of those that get what is free only. Who has its minimum leaves nodes that are about
//      to go when its turn comes
//   4. where the policy says so, who is to have nothing stops, for the growth of others
//   5. growth to the policy's sizes; or by marginal throughput, where it says none, and of what is
//      left over where a gain below zero is enough
//   6. sizes that are not allowed any more, of those that did not grow, shrink to one that is
//   7. collect actions
// What is tried and does not help is undone: FreeNodes keeps a log, QuotaBook is copied.
#pragma once

#include "scheduler/perf/throughput.h"
#include "scheduler/placement/cells.h"
#include "scheduler/placement/place.h"
#include "scheduler/plan.h"
#include "scheduler/policy/policy.h"
#include "scheduler/policy/room.h"

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace rubato::sched {

class Session {
 public:
  // Jobs that are not to be stopped now (Job::runs_on) are: to see who would be, if they could.
  enum class Kept { kRunOn, kMayStop };
  // All must outlive it.
  Session(const Problem& problem, const Targets& targets, const PolicyConfig& config,
          Kept kept = Kept::kRunOn);
  Plan run();

 private:
  // To find jobs to stop for another: those that would be served before it are left out of the
  // next.
  static constexpr int kStopAttempts = 8;
  static constexpr int kUseChecksMost = 64;  // a round; each looks at all nodes

  struct Pod {
    std::int64_t ordinal = 0;
    Gpus gpus = 0;
    TypeIndex type;
    std::optional<NodeIndex> node;
    bool was_in_cell = false;  // Cells::is_inside
    bool in_cell = false;      // … and not lent in the trial under way
    bool lent = false;         // given back in the trial under way
  };
  struct Entry {
    JobIndex index;
    const Job* job = nullptr;
    Gpus now = 0;  // GPUs that count, this round's decisions included
    // Of the job: asked of many entries one after the other, whose jobs are far apart.
    Gpus min = 0;
    std::int64_t priority = 0;
    // Held before, that stay: in order of leaving, those on nodes that go first, then the youngest,
    // those in cells last.
    std::vector<Pod> pods;
    std::optional<TypeIndex> type;   // of the first pod held before that is not lost
    std::vector<TypeIndex> types;    // of all of those, as far as it is known
    std::vector<NodeIndex> add;      // one a pod
    std::vector<std::string> cells;  // of the first of `add`: Placement::cell
    bool is_guest = false;           // held pods on GPUs of another; they are not among `pods`
    Entry* host = nullptr;           // on whose GPUs it is after this round
    std::vector<const Entry*> guests;
    std::vector<std::int64_t> remove;
    std::size_t by_id = 0;  // position in the order of ids, where there are cells
    std::optional<Cause> cause;
    bool repaired = false;
    bool preempted = false;
    // For others, or to come back elsewhere; false: nobody takes its minimum, whatever their right.
    bool may_stop = true;
    // Where it must start inside a guarantee that is not of all its types.
    std::optional<TypeIndex> guaranteed;
    bool moving = false;              // to the type that the policy says
    bool relocates = false;           // leaves nodes that go: what it had there binds nothing
    std::optional<DomainIndex> only;  // the one that room is being made in
    bool of_any_type = false;         // though the policy says one: it found no room there
    bool blocked = false;             // has no verdict of "placed": takes no part in growth
    bool has_verdict = false;
    bool waits_to_grow = false;  // until others have left
  };
  using ByType = Table<TypeIndex, Gpus>;
  using ByNode = Table<NodeIndex, Resources>;
  using Victims = std::vector<std::pair<Entry*, std::int64_t>>;  // (entry, ordinal)
  // Jobs that are not stopped for another, for they would be served before it all the same.
  using ServedFirst = std::vector<const Entry*>;
  // What was given back in free_, to be undone, and here.
  struct Trial {
    QuotaBook quota;
    Bound bound;            // of the job that wants it
    std::size_t level = 0;  // of bound.domain
    bool reclaims = false;  // takes what others have borrowed
    Victims victims = {};
  };
  // What others of its queue would give it: given back in free_ and in quota_, for a trial.
  struct Lent {
    const Entry* from;
    Pod* pod;
  };
  struct Loan {
    std::vector<Lent> lent;
    QueueIndex among;              // the queue whose holders give
    Victims victims;               // those of them that are surplus
    const Trial* where = nullptr;  // only what is of use to it there; null: no matter where
  };
  // How room is made in a full queue.
  struct FromQueue {
    QueueIndex among;  // as of a Loan
    bool may_stop = false;
    const Trial* where = nullptr;  // as of a Loan
    ServedFirst first = {};
    bool lacks_places = false;  // there was room in the queue, and none on nodes
  };
  // Who gave some back to come to its size, or to another type.
  struct Giver {
    const Entry* entry;
    std::size_t removed = 0;  // pods, when `leaves` was made of these
    std::vector<std::pair<NodeIndex, Resources>> leaves = {};
  };
  // Of a job that is not where the policy says.
  struct Move {
    Entry* entry;
    std::vector<Pod> right = {};
    std::vector<Pod> leaving = {};
    std::vector<NodeIndex> open = {};  // its places without a pod of it
    bool stops = false;                // for those that are right are less than its minimum
  };
  // A size that a job could grow to.
  struct Step {
    double gain;
    std::size_t entry;
    Gpus to;
    bool operator<(const Step& other) const {
      return gain != other.gain ? gain < other.gain : entry > other.entry;
    }
  };

  // session.cc
  Entry entry_of(JobIndex j);
  std::optional<TypeIndex> only_type(const Entry& entry) const;
  void count_what_others_can_give();
  void count_held(const Entry& entry, std::size_t index);
  void count_from_anybody(const Entry& entry, std::span<const Pod> pods);
  void settle_losses(Entry& entry);
  void keep_limit(Entry& entry);
  void keep_shape(Entry& entry);
  bool has_queue(const Entry& entry) const { return problem_.queue(queue_of(entry)) != nullptr; }
  void give_minimum(Entry& entry);
  std::optional<Gpus> least_wanted(const Entry& entry) const;
  std::optional<Gpus> start_size(const Entry& entry) const;
  Gpus size_after_move(const Entry& entry) const;
  Verdict why_kept_out(const Entry& entry) const;
  bool waits_in_turn(Entry& entry, Gpus wanted);
  void tell_to_wait(Entry& entry, std::optional<Gpus> wanted);
  void shrink_to(Entry& entry, Gpus target);
  void grow();
  bool grow_to(Entry& entry, Gpus to);
  bool may_grow(const Entry& entry) const;
  Throughput speed_of(const Entry& entry) const;
  std::optional<Step> next_step(std::size_t index, Gpus most) const;
  Plan collect();
  static ActionKind kind_of(const Entry& entry);
  bool place_up_to(Entry& entry, Gpus size);
  bool put(Entry& entry, const std::vector<NodeIndex>& nodes);
  void verdict(Entry& entry, Verdict verdict);

  // session_cells.cc
  void give_cells();
  bool wants_cells(const Entry& entry) const;
  void find_what_may_leave();
  void note_inside(NodeIndex node, std::size_t job);
  ByNode room_for_cells() const;
  std::optional<std::vector<Cells::Place>> find_cells(const Entry& entry, std::int64_t pods,
                                                      const ByNode& room, Cells& cells) const;
  Table<NodeIndex, Gpus> costs_of_nodes() const;
  std::vector<std::optional<DomainIndex>> domains_in_cells(const Entry& entry,
                                                           const Bound& bound) const;
  Table<NodeIndex, std::int64_t> fits_in_cells(const Entry& entry, const Bound& bound,
                                               TypeIndex type, std::optional<DomainIndex> domain,
                                               const ByNode& room) const;
  std::vector<TypeIndex> types_in_cells(const Entry& entry, const Bound& bound,
                                        std::int64_t pods) const;
  void enter_cells(Entry& entry, const std::vector<Cells::Place>& places);
  void clear_for_cell(const Entry& wanting, NodeIndex node, std::vector<std::string>& names);
  bool leaves_for_cell(Entry& entry, const Entry& wanting, NodeIndex node);
  bool displace_in_cells(Entry& entry, std::int64_t pods);
  void keep_in_cells(Entry& entry);
  bool is_in_cells(const Entry& entry) const;
  bool note_inside_cells(const std::vector<Entry*>& stopped, const Entry& wanting, Gpus missing,
                         ServedFirst& first) const;
  bool would_be_inside(const Entry& entry, Gpus missing, const std::vector<Entry*>& stopped) const;
  bool is_confined_to_cells(const Entry& entry) const;
  Verdict why_not_in_cells(const Entry& entry, Gpus wanted) const;
  std::optional<std::vector<NodeIndex>> place_apart(const Entry& entry, std::int64_t pods);

  // session_places.cc
  const std::vector<NodeIndex>* places_of(const Entry& entry) const;
  void leave_other_places();
  static Move move_of(Entry& entry, const std::vector<NodeIndex>& places);
  void leave_out_who_stays(std::vector<Move>& moves);
  void leave_for_places(Move& move);
  bool waits_for_places(const Entry& entry) const;
  std::optional<std::vector<NodeIndex>> missing_places(const Entry& entry) const;

  // session_leaving.cc
  bool is_on_leaving_node(const Pod& pod) const;
  std::optional<NodeIndex> leave_nodes(Entry& entry);
  bool leave_pods(Entry& entry, const std::vector<Pod>& leaving);

  // session_sharing.cc
  void settle_guests();
  bool may_share() const;
  void stop_guest(Entry& entry, StopsSharing cause);
  std::vector<NodeIndex> room_on(const Entry& host) const;
  bool become_guest(Entry& entry, Gpus wanted);
  bool settle_on(Entry& host, Entry& guest, Gpus wanted);
  void leave_hosts_that_change();

  // session_targets.cc
  struct Wanting {
    const Entry* entry;
    Gpus missing;   // whoever gives it
    Gpus in_queue;  // what another job of its queue must give: that, or a parent, is full
  };
  bool is_left_out(const Entry& entry) const;
  bool start_at_target(Entry& entry, Gpus wanted);
  void shrink_to_targets();
  void grow_to_targets();
  std::vector<Wanting> below_targets() const;
  bool may_get_more(const Entry& entry) const;
  void shrink_for(std::vector<Wanting>& wanting, Entry& from);
  bool is_of_use_to(const std::vector<const Entry*>& wanting, std::span<const Pod> pods,
                    const Resources& per_pod);
  bool is_helped_in_queue(const Wanting& one, const Entry& from) const;
  Wanting* who_could_use(std::vector<Wanting>& wanting, const Entry& from, const Pod& pod) const;
  // The only type that it may have: it mixes none, and the policy says so.
  std::optional<TypeIndex> fixed_type(const Entry& entry) const {
    if (!targets_.types_hold || entry.job->mix || entry.of_any_type) return std::nullopt;
    return targets_.types[entry.index.value];
  }
  bool yields(const Entry& entry) const;
  bool is_to_start_larger(const Entry& entry) const;
  void start_with_what_fits();
  bool is_to_move(const Entry& entry) const;
  bool move_to_type(Entry& entry, Gpus wanted);

  // session_growth.cc
  bool may_give_way(const Entry& entry) const;
  bool may_stop_for_growth(const Entry& entry) const;
  void stop_for_growth();
  void stop_for(Entry& grower);
  void start_with_what_is_left();

  // session_room.cc
  void place_or_make_room(Entry& entry, Gpus wanted);
  std::int64_t count_fitting(const Entry& entry);
  Gpus gpus_that_fit(const Entry& entry);
  bool may_be_helped(const Entry& wanting, Gpus wanted) const;
  Gpus most_displaced(const Entry& wanting, TypeIndex type, std::optional<QueueIndex> guarantor,
                      Gpus enough) const;
  Gpus least_kept(const Entry& entry) const;
  Gpus least_kept(const Entry& entry, const Entry& wanting) const;
  std::optional<std::vector<std::string>> make_room(Entry& wanting, std::int64_t pods);
  std::optional<std::vector<std::string>> make_room_there(Entry& wanting, std::int64_t pods);
  std::vector<std::optional<DomainIndex>> domains_to_clear(const Entry& wanting, std::int64_t pods);
  Trial trial_for(const Entry& wanting) const;
  bool is_of_use(const Trial& trial, const Entry& wanting, NodeIndex node);
  bool shrink_until_it_fits(const Entry& wanting, std::int64_t pods, Entry& from, Trial& trial);
  std::optional<std::vector<Entry*>> who_gives(const Entry& wanting, std::int64_t pods,
                                               Trial& trial);
  void give_back(const Entry& from, const Pod& pod, Trial& trial);
  std::vector<Entry*> who_may_give(const Entry& wanting, const Trial& trial) const;
  std::optional<std::vector<Entry*>> preempt(const Entry& wanting, std::int64_t pods, Trial& trial,
                                             const std::vector<Entry*>& among);
  std::optional<std::vector<Entry*>> stop_until_it_fits(const Entry& wanting, std::int64_t pods,
                                                        Trial& trial,
                                                        const std::vector<Entry*>& among,
                                                        const ServedFirst& first);
  bool fits_without(const Entry& giver, bool is_lent, const Entry& wanting, std::int64_t pods);
  void spare_surplus(const Entry& wanting, std::int64_t pods, const std::vector<Entry*>& stopped,
                     Victims& victims);
  std::vector<std::string> stop_victims(const std::vector<Entry*>& stopped, Victims shrunk,
                                        const Entry& wanting);
  ByType types_of_use(const Entry& wanting, std::optional<TypeIndex> only) const;
  void give_back_what_leaves(const ByType& of_use);
  static bool gives(const Entry& giver);
  void note_what_leaves(Giver& giver) const;
  template <class Take>
  void for_each_that_leaves(const Take& take);
  void promise_what_leaves(const std::set<NodeIndex>& nodes);
  std::vector<std::string> shrink_victims(const Victims& victims, const std::string& for_whom);
  bool fits(const Entry& wanting, std::int64_t pods);
  bool reserve_if_fits(const Entry& wanting, std::int64_t pods, std::size_t mark);

  // session_rights.cc
  bool is_protected(const Entry& held, const Entry& wanting, const QuotaBook& quota) const;
  bool is_protected(const Entry& held, TypeIndex type, const Entry& wanting,
                    const QuotaBook& quota) const;
  // Of the types that it holds pods of; one that does not mix types holds one.
  template <class Predicate>
  static bool any_type_held(const Entry& entry, const Predicate& predicate) {
    const auto end =
        entry.job->mix || entry.pods.empty() ? entry.pods.end() : std::next(entry.pods.begin());
    return std::any_of(entry.pods.begin(), end,
                       [&](const Pod& pod) { return predicate(pod.type); });
  }
  bool is_guaranteed(QueueIndex queue, TypeIndex type, QueueIndex against,
                     const QuotaBook& quota) const;
  std::optional<QueueIndex> guarantor_of(QueueIndex queue, TypeIndex type,
                                         const QuotaBook& quota) const;
  bool may_preempt(const Entry& wanting, const Entry& victim, const Trial& trial) const;
  bool may_reclaim(const Entry& wanting, const Entry& victim, const QuotaBook& quota) const;
  bool may_displace(const Entry& wanting, const Entry& victim) const;
  bool is_displaced_by(const Entry& wanting, const Entry& victim) const;  // by the policy
  bool has_leave_to_preempt(const Entry& wanting, QueueIndex of_victim) const;
  Displaced why_preempted(const Entry& by, const Entry& victim) const;

  // session_guarantees.cc
  bool note_served_before(const std::vector<Entry*>& stopped, const Entry& wanting,
                          const QuotaBook& after, ServedFirst& first) const;
  // `rank`: of the one that wants GPUs.
  bool note_served_first(const std::vector<Entry*>& stopped, const Entry& wanting, std::size_t rank,
                         const QuotaBook& quota, ServedFirst& first) const;
  bool note_letting_in(const std::vector<Entry*>& stopped, const Entry& wanting, std::size_t rank,
                       const QuotaBook& after, ServedFirst& first) const;
  void list_waiting();
  QueueIndex widest_queue_of(const Entry& entry) const;
  std::size_t guarantee_rank(const Entry& entry, Gpus more, const QuotaBook& quota) const;
  bool may_borrow(const Entry& entry) const;
  std::vector<TypeIndex> types_guaranteed(const Entry& entry) const;
  bool keep_to_guarantee(Entry& entry);
  void count_lasting_held(const Entry& entry);
  void count_lasting_promised(const Entry& entry);
  void count_lasting_started(const Entry& entry, TypeIndex type);

  // session_queue.cc
  std::optional<std::vector<std::string>> make_room_in_queue(Entry& wanting, Gpus wanted);
  std::optional<std::vector<std::string>> try_rooms_in_queue(Entry& wanting, Gpus missing,
                                                             FromQueue& from);
  std::optional<std::vector<std::string>> try_room_in_queue(Entry& wanting, Gpus missing,
                                                            FromQueue& from);
  bool is_placed_after(const Entry& wanting, Gpus missing, const std::vector<Entry*>& stopped,
                       std::size_t mark);
  void keep_quota(const Entry& wanting, Gpus gpus);
  void keep_quota(const Entry& wanting, Gpus gpus, TypeIndex type);
  static bool may_lend(const Entry& from, const Entry& wanting);
  bool may_stop_in_queue(const Entry& wanting, const Entry& victim) const;
  bool is_helped(const Entry& wanting, Gpus missing, const Entry& from) const;
  Gpus most_lent(const Entry& wanting, QueueIndex among) const;
  bool is_lent_where_it_helps(const Pod& pod, const Entry& wanting, const Loan& loan);
  void lend(Entry& from, Pod& pod, Loan& loan);
  Gpus room_within(const Entry& wanting, QueueIndex widest) const;
  template <class Lend>
  void for_levels(const Entry& wanting, const Loan& loan, const Lend& lend_in) const;
  void lend_surplus(const Entry& wanting, Gpus missing, Loan& loan);
  void lend_surplus_of(Entry& from, const Entry& wanting, Gpus missing, QueueIndex level,
                       Loan& loan);
  QueueIndex where_room_lacks(const Entry& wanting, Gpus missing) const;
  bool may_stop_anybody(const Entry& wanting, QueueIndex among) const;
  std::vector<Entry*> lend_jobs(const Entry& wanting, Gpus missing, Loan& loan,
                                const ServedFirst& first);
  bool keeps_its_pods(const Entry& victim, const Entry& wanting, Gpus missing, Loan& loan);

  // session_limits.cc
  Gpus room_for(const Entry& entry) const;
  Verdict why_too_large(const Entry& entry, Gpus wanted) const;
  template <class Of>
  QueueIndex with_least(QueueIndex queue, const Of& of) const;
  std::string name_of_parent(QueueIndex queue, const Entry& entry) const;
  Gpus most_of(const Entry& entry, const Capacity& capacity) const;
  Gpus most_in_cells(const Entry& entry) const;
  Gpus most_without_others(const Entry& entry) const;
  Table<NodeIndex, Resources> room_without_jobs() const;
  void count_bound_to_types();
  std::optional<TypeIndex> least_needed_type(const Entry& entry) const;
  const std::vector<TypeIndex>& types_for(const Entry& entry) const;
  // The narrowest queue inside whose guarantee it is, with its least size; against jobs of another.
  std::optional<QueueIndex> guarantor_of(const Entry& entry,
                                         std::optional<QueueIndex> against = {}) const;
  bool is_inside_guarantee(const Entry& entry) const { return guarantor_of(entry).has_value(); }
  Capacity capacity_where(const Entry& entry, bool (*is_open)(const Job&, const Node&)) const;
  bool avoids_all(const Job& job) const;
  std::optional<TypeIndex> type_of(const Entry& entry) const;
  static NodeIndex node_of(const Pod& pod);
  Bound bound_of(const Entry& entry) const;
  Bound bound_by_rest(const Entry& entry) const;
  QueueIndex queue_of(const Entry& entry) const { return problem_.queue_of(entry.index); }

  const Problem& problem_;
  const Targets& targets_;
  const PolicyConfig& config_;
  FreeNodes free_;
  QuotaBook quota_;
  // The minimums of jobs that are never preemptible alone: what nobody gets back of them.
  QuotaBook lasting_;
  Placer placer_;
  Cells cells_;
  std::vector<Entry> entries_;   // in order
  std::vector<Entry*> holders_;  // in order: who held pods that stay
  // Those of them that are settled, in order, by the type of all their pods and of their nodes.
  struct Settled {
    Entry* entry;
    QueueIndex queue;
  };
  Table<TypeIndex, std::vector<Settled>> settled_;
  std::vector<Settled> settled_mixed_;  // of several types
  struct Waiting {
    const Entry* entry = nullptr;
    Gpus size = 0;         // its minimum
    std::size_t kind = 0;  // equal: of one queue, one size, for the same nodes
  };
  std::vector<Waiting> waiting_;  // in order; where queues have guarantees
  std::size_t kinds_of_waiting_ = 0;
  Table<QueueIndex, std::vector<Entry*>> holders_of_queue_;  // with those of its parts
  // … counted when the round began: what these can give at most and go on, their lowest priority.
  Table<QueueIndex, Gpus> surplus_of_queue_;
  Table<QueueIndex, std::int64_t> lowest_of_queue_;
  Table<QueueIndex, Gpus> kept_;  // of its quota, for jobs that wait until pods have left
  // Answers that were worked out already, as long as the book is of that version.
  struct Guarantor {
    std::uint64_t version = 0;
    std::optional<QueueIndex> queue;
  };
  mutable Table<TypeIndex, std::vector<Guarantor>> guarantors_;  // … of what a queue holds
  mutable Guarantor last_guarantor_;                             // … of this job at this size
  mutable std::pair<const Entry*, Gpus> last_guaranteed_;
  int use_checks_ = 0;
  std::vector<Giver> givers_;
  std::vector<std::pair<NodeIndex, const Resources*>> leaving_;  // pods that do already
  std::map<NodeIndex, Resources> promised_;  // of what leaves, to those who wait for it
  std::vector<Verdict> verdicts_;
  Table<JobIndex, Entry*> by_job_;  // where jobs share
  // What others can give at most, counted when the round began.
  ByType from_anybody_;  // pods that leave, surplus of elastic jobs
  // … of jobs that hold one type, the last in order first; of those that mix some.
  struct HeldBehind {
    std::size_t entry = 0;
    Gpus gpus = 0;  // of it and those before it in the list
  };
  Table<TypeIndex, std::map<QueueIndex, std::vector<HeldBehind>>> held_by_queue_;
  ByType held_mixed_;
  bool is_by_order_ = true;                       // whom a job may displace comes after it
  const Entry* head_ = nullptr;                   // the first that waits for GPUs
  Table<TypeIndex, std::int64_t> bound_to_type_;  // jobs that waited when the round began
  // What nodes have for a job if no other is there; made when it is first asked for.
  mutable std::optional<RoomByType> without_others_;
  // What fits into the cells of a queue; found when it is first asked for.
  mutable std::map<std::tuple<QueueIndex, GroupIndex, TypeIndex>, Gpus> most_in_cells_;
  bool has_leavers_ = false;  // jobs that are not in the state still hold some
  bool has_leaving_nodes_ = false;
  std::int64_t grown_ = 0;
  // By node, where there are cells: held by pods that may leave for them; not free yet, but leaving
  // or kept back; what of it jobs that wait for cells are to have.
  ByNode may_leave_;
  ByNode coming_;
  ByNode owed_;
  Table<NodeIndex, std::vector<std::size_t>> inside_;  // by_id of those in cells there
  std::vector<NodeIndex> set_aside_;                   // queues will need these first
  std::vector<bool> is_emptied_;  // by node: pods leave there, whose places others are to have
};

}  // namespace rubato::sched
