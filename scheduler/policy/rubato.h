// Rubato's own policy. Two questions, asked anew in each round:
//
// Who goes first? The job with the least work left, in GPU time at its minimum, by its weight
// (Smith's rule, 1956, for jobs that can be interrupted). Work left is known from the steps left
// and the throughput that was measured. Where it is not known it is guessed from what the job has
// had: kFirstGuess, and kGuessFactor times as much each time it has outlived the guess. Guesses are
// coarse so that equals do not take turns (Tiresias, NSDI'19, has queues for that).
//
// How many GPUs? With n GPUs the job ends after T(n), and meanwhile each GPU keeps those behind it
// waiting. So n minimises T(n) · (1 + p · n), with the price p = kPrice · (jobs behind it) / (GPUs
// of the cluster): an empty cluster gives a job all that make it faster, a crowded one the size at
// which it is most efficient. T(n) counts what the change costs: newcomers prepare while the others
// go on, then all stall for a moment. Sizes beyond kExplore times what was measured are not tried
// yet. What is left over goes out in the same order at price 0.
//
// GPUs are counted by type: which nodes have room is the session's business. A job gets the type it
// holds, else the one that has most left when its turn comes.
#pragma once

#include "scheduler/policy/policy.h"

namespace rubato::sched {

class RubatoPolicy : public Policy {
 public:
  static Descriptor describe();
  explicit RubatoPolicy(const std::vector<double>& parameters);
  Targets decide(const Problem& problem) const override;

 private:
  struct Claim;
  std::vector<Claim> claims_of(const Problem& problem) const;
  double cost(const Claim& claim, Gpus gpus, double price) const;
  Gpus best_size(const Claim& claim, Gpus from, Gpus most, double price) const;

  double switching_margin_;
  double max_wait_ms_;
  double prepare_ms_;
};

}  // namespace rubato::sched
