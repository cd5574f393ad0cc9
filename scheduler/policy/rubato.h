// Rubato's own policy. In each round it asks anew how many GPUs of which type each job should have.
//
// What a job costs if it has n GPUs from now on: its own time until it is done, and that of those
// whom its GPUs keep waiting,
//
//   C_j(n) = T_j(n) * (1 + d * n),    d = jobs / GPUs
//
// T_j(n) holds what the way there costs: a start prepares, newcomers prepare beside those that
// train, all stall when the set of GPUs changes, and another type is a stop and a start. d is how
// many jobs one GPU keeps waiting, were they shared out evenly; a GPU of a faster type keeps more
// of them waiting, by as much as jobs are faster there on average (scheduler/perf/type_ratios.h).
// So in an empty cluster the cheapest size is the fastest one, in a crowded one the most efficient.
//
// Sizes maximise the sum of w_j / C_j(n_j), the rate at which these costs are paid off: Smith's
// rule (1956), and the c-mu rule of queues with interruption, for jobs whose speed is a matter of
// choice. What a job holds counts switchingMargin more than it is, so that equals do not take
// turns. GPUs that nobody has a use for at these costs go where they save the most time within
// kHorizonMs, less a stall now and one when they are given back; that counts so little that it
// never competes.
//
// The maximum is looked for by steps: always the one that is worth most a GPU. That is exact for
// one type where values are concave in the size, but for the last job that does not fit. How far
// from the best plan it is, a certificate says (scheduler/certificate). Higher priorities, and then
// who has waited too long, choose first. Sizes beyond kExplore times what was measured, or
// kBeyondTable times the largest of a goodput table, are not tried yet.
//
// Work left is known from the steps left and the throughput that was measured. Where it is not
// known it is guessed from what the job has had: kFirstGuess, and kGuessFactor times as much each
// time it has outlived the guess (coarse, as the queues of Tiresias, NSDI'19, are).
//
// What the jobs of a queue with a limit have first is the best that fits into it: a knapsack.
//
// GPUs are counted by type: which nodes have room is the session's business, but a size or type
// that has none, whichever of our jobs leave, is no choice for a job, and who has room nowhere
// claims nothing. Which type a job looks at first is found by prices of the types
// (scheduler/solver). On a type on which it was not measured it is hoped to be as fast as any other
// job was, and to gain by GPUs as on the best type of those where it was; one on which all others
// are slower it tries once where GPUs of it are free and it has long to go. Whether it holds a type
// changes nothing in that.
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
  void hope_to_try(const Problem& problem, const TypeRatios& ratios, View& view) const;
  static double price_of(const Cluster& cluster, TypeIndex type);
  static std::optional<TypeIndex> best_known(const Problem& problem, const Cluster& cluster,
                                             const Claim& claim);
  std::optional<TypeIndex> type_to_try(const Problem& problem, const TypeRatios& ratios, Free& free,
                                       const Claim& claim) const;
  static double typical(const Problem& problem, std::optional<TimeMs> Job::* measured,
                        double unless_known);
  ValueTable table_of(const Problem& problem, const View& view, RoomByType& room) const;
  static std::vector<TypeIndex> types_of(const Problem& problem, const Claim& claim,
                                         RoomByType& room);
  JobValues values_of(const Problem& problem, const Cluster& cluster, const Claim& claim,
                      RoomByType& room) const;
  static Gpus most_listed(const Claim& claim, TypeIndex type, RoomByType& room);
  JobValues::List list_of(const Claim& claim, const Way& way, Gpus most) const;
  double time_ms(const Claim& claim, Gpus held, double as_it_is, Gpus gpus, double speed) const;
  double saved_ms(const Claim& claim, double from, double to, bool is_change) const;

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
