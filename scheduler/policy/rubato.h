// Rubato's own policy. In each round it asks anew how many GPUs of which type each job should have.
//
// While a job is not done it waits itself, and so do those that are served later, for its GPUs. So
// the end of job j is worth
//
//   P_j = (sum of w_i over i = j and all who are served later) / (sum of all w_i) * G_j
//
// w is a weight, and G_j the GPU time that it needs yet: the time until it is done were it to start
// now with its least GPUs, times these. Who has more G_i / w_i is served later, and so is any lower
// priority. Sizes maximise the sum of P_j / T_j(n_j), the rate at which that is paid off, where
// T_j(n) is the time until its end if it has n GPUs from now on. It holds what the way there costs:
// a start prepares, newcomers prepare beside those that train, all stall when the set of GPUs
// changes, and another type is a stop and a start.
//
// So a waiting job at its least GPUs counts as many GPUs as these, times the part of all that waits
// for it: who is done soonest goes first, as in Smith's rule (1956), and has, beyond its least, the
// more GPUs the faster they make it, as in heSRPT (Berg et al., Performance Evaluation 2020), which
// this is where speed is nearly linear in GPUs and nothing costs. Who is preempted has its start
// ahead of it again: P_j / T_j(n) is the larger where a job is, the more so the nearer its end.
// What a job holds counts switchingMargin more than it is, and what it has left so much less than
// that of others, so that equals do not take turns. GPUs that nobody has a use for at these values
// go where they save the most time within kHorizonMs, less a stall now and one when they are given
// back; that counts so little that it never competes.
//
// The maximum is looked for by steps: always the one that is worth most a GPU. That is exact for
// one type where values are concave in the size, but for the last job that does not fit. How far
// from the best plan it is, a certificate says (scheduler/certificate). Higher priorities, and then
// who has waited too long, choose first. Sizes beyond kExplore times what was measured, or
// kBeyondTable times the largest of a goodput table, are not tried yet.
//
// Work left is known from the steps left and the throughput that was measured. Where it is not
// known it is guessed from what the job has had: kFirstGuess, and kGuessFactor times as much each
// time it has outlived the guess (coarse, as the queues of Tiresias, NSDI'19, are). Of those with
// the same guess who has yet to start goes first, by age; then who started last, as of the others
// most of their like are done by now.
//
// A job that has just started, and of which nothing was measured yet, counts as nearly done for
// kFirstLookMs at most: to stop it would lose its start for what nobody knows.
//
// What the jobs of a queue with a limit have first is the best that fits into it: a knapsack.
//
// Where goodput tables are known, in a cluster of one type, it says too on which nodes jobs are: on
// as few as hold them (Targets::places). Who is on more is moved where that pays for the way there.
// There who is to have nothing, and runs, also stops so that others come to their size
// (Targets::stops_for_growth).
//
// GPUs are counted by type: which nodes have room is the session's business, but a size or type
// that has none, whichever of our jobs leave, is no choice for a job, and who has room nowhere
// claims nothing. Which type a job looks at first is found by prices of the types
// (scheduler/solver). On a type on which it was not measured it is hoped to be as fast as any other
// job was, and to gain by GPUs as on the best type of those where it was; one on which all others
// are slower it tries once where GPUs of it are free and it has long to go. Whether it holds a type
// changes nothing in that. On another type than its own a job that runs counts as it would once it
// was stopped, but for one that it tries, so that it still wants to be there when it waits for it;
// and it goes there where that is worth more to itself, not to make room for the growth of others.
// Where not all can keep what they hold, as a node is about to go, that does not matter.
#pragma once

#include "scheduler/policy/policy.h"
#include "scheduler/solver/prices.h"

namespace rubato::sched {

class Room;        // scheduler/policy/room.h
class RoomByType;  // scheduler/policy/room.h
class TypeRatios;  // scheduler/perf/type_ratios.h

class RubatoPolicy : public Policy {
 public:
  static Descriptor describe();
  explicit RubatoPolicy(const std::vector<double>& parameters);
  Targets decide(const Problem& problem) const override;
  std::optional<ValueTable> values(const Problem& problem) const override;

 private:
  class Speed;
  struct Claim;
  struct Cluster;
  struct Free;
  struct Move;
  struct Way;
  struct View;  // of a round: the cluster, and what each job is

  View look_at(const Problem& problem) const;
  Claim claim_of(const Problem& problem, const Cluster& cluster, JobIndex index) const;
  void guess_speeds(const Problem& problem, View& view) const;
  struct Turn;
  Turn turn_of(const Claim& claim, bool waits) const;
  void price_work(const Problem& problem, std::vector<Claim>& claims) const;
  void hope_to_try(const Problem& problem, const TypeRatios& ratios, View& view) const;
  static std::optional<TypeIndex> best_known(const Problem& problem, const Claim& claim);
  std::optional<TypeIndex> type_to_try(const Problem& problem, const TypeRatios& ratios, Free& free,
                                       const Claim& claim) const;
  static double typical(const Problem& problem, std::optional<TimeMs> Job::* measured,
                        double unless_known);
  ValueTable table_of(const Problem& problem, const View& view, RoomByType& room) const;
  static std::vector<TypeIndex> types_of(const Problem& problem, const Claim& claim,
                                         RoomByType& room);
  JobValues values_of(const Problem& problem, const Claim& claim, RoomByType& room) const;
  static Gpus most_listed(const Claim& claim, TypeIndex type, RoomByType& room);
  JobValues::List list_of(const Claim& claim, const Way& way, Gpus most) const;
  double time_ms(const Claim& claim, Gpus held, double as_it_is, Gpus gpus, double speed) const;
  double saved_ms(const Claim& claim, double from, double to, bool is_change) const;

  bool stays(const Claim& claim, std::int64_t nodes) const;
  void choose_places(const Problem& problem, const View& view, Targets& targets) const;

  static std::int64_t value_now(const Claim& claim);
  static bool gains(const Claim& claim, TypeIndex type, const SizeValue& to);
  static std::int64_t density(const Claim& claim);
  static std::optional<Move> best_move(const Claim& claim, std::size_t place, const Room& room);
  static void choose_types(std::vector<Claim>& claims, const Room& room, const PriceTable& prices);
  static void fit_into_limits(const Problem& problem, const std::vector<JobIndex>& jobs,
                              std::vector<Claim>& claims, const Room& room,
                              const PriceTable& prices);
  static void share_out(const Problem& problem, std::vector<Claim>& claims, Room& room,
                        const PriceTable& prices);
  static void share_out(const std::vector<JobIndex>& order, std::vector<Claim>& claims, Room& room);

  double switching_margin_;
  double max_wait_ms_;
  double prepare_ms_;
  double stall_ms_;
  double exploration_;
};

}  // namespace rubato::sched
