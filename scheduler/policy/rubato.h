// Rubato's own policy. Two questions, asked anew in each round:
//
// Who goes first? The job with the least work left, in GPU time at its minimum, by its weight
// (Smith's rule, 1956, for jobs that can be interrupted). Work left is known from the steps left
// and the throughput that was measured. Where it is not known it is guessed from what the job has
// had: kFirstGuess, and kGuessFactor times as much each time it has outlived the guess. Guesses are
// coarse so that equals do not take turns (Tiresias, NSDI'19, has queues for that).
//
// How many GPUs? Sizes n_j maximise the sum over jobs of w_j * g_j(n_j), the weighted goodput of
// this round. g_j(n) = min_j * speed_j(n) / speed_j(min_j): how many GPUs' worth of training n GPUs
// do, at the efficiency of the minimum. w_j = sqrt(2 r - 1) for the job at place r from the end of
// that order, scaled to at most 1: for jobs whose speed is the square root of their GPUs, and no
// bounds, the optimum is then the share that heSRPT gives to each (Berg, Vesilo and
// Harchol-Balter, 2020), which is the best for the mean completion time. What a change costs is
// subtracted over the time that the job is expected to stay as it is, kResidenceMs at most:
// newcomers prepare while the others go on, then all stall for a moment.
//
// The maximum is looked for by steps: always the one that is worth most a GPU. That is exact for
// one type where speeds are concave, but for the last job that does not fit. How far from the best
// plan it is, a certificate says (scheduler/certificate). Sizes beyond kExplore times what was
// measured are not tried yet.
//
// GPUs are counted by type: which nodes have room is the session's business. A job gets the type it
// holds, else that of its best step, which was measured to be faster or has most left.
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class Room;  // scheduler/policy/room.h

class RubatoPolicy : public Policy {
 public:
  static Descriptor describe();
  explicit RubatoPolicy(const std::vector<double>& parameters);
  Targets decide(const Problem& problem) const override;
  std::optional<ValueTable> values(const Problem& problem) const override;

 private:
  struct Claim;
  struct Move;
  class Speed;
  std::vector<Claim> claims_of(const Problem& problem) const;
  std::vector<JobIndex> order_of(const Problem& problem, std::vector<Claim>& claims) const;
  JobValues values_of(const Problem& problem, const Table<TypeIndex, Gpus>& largest,
                      const Claim& claim) const;
  JobValues::List list_of(const Claim& claim, const Speed& speed, double at_least) const;

  ValueTable table_of(const Problem& problem, const std::vector<Claim>& claims) const;
  static std::optional<Move> best_move(const Claim& claim, std::size_t place, const Room& room);
  static void choose_types(std::vector<Claim>& claims, const ValueTable& table,
                           const Table<TypeIndex, Gpus>& capacity);
  static void share_out(const std::vector<JobIndex>& order, std::vector<Claim>& claims, Room& room);

  double switching_margin_;
  double max_wait_ms_;
  double prepare_ms_;
  double stall_ms_;
};

}  // namespace rubato::sched
