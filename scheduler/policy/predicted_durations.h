// How long jobs take, for policies that predict it: as known, else as like jobs that are there take
// on average: those of its queue with the same name up to the last "-", else those of its queue
// with as many GPUs, else all with as many GPUs, else all.
#pragma once

#include "scheduler/model/problem.h"

#include <map>
#include <string_view>
#include <utility>

namespace rubato::sched {

class PredictedDurations {
 public:
  explicit PredictedDurations(const Problem& problem);  // which must outlive it
  double of(const Job& job) const;                      // ms; 0 where nothing is known at all

 private:
  class Mean {
   public:
    void add(TimeMs value) {
      sum_ += static_cast<double>(value);
      ++many_;
    }
    double value() const { return many_ > 0 ? sum_ / many_ : 0; }

   private:
    double sum_ = 0;
    double many_ = 0;
  };

  std::map<std::pair<std::string_view, std::string_view>, Mean> by_name_;
  std::map<std::pair<std::string_view, Gpus>, Mean> by_queue_;
  std::map<Gpus, Mean> by_gpus_;
  Mean all_;
};

}  // namespace rubato::sched
