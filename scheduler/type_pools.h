// What jobs want of the GPUs that they may use, by set of GPU types. A job counts in each set that
// has all of its types: whichever it gets, fewer are left of these.
#pragma once

#include "scheduler/model/problem.h"

#include <map>
#include <vector>

namespace rubato::sched {

class TypePools {
 public:
  using Types = std::vector<TypeIndex>;  // in order
  struct Pool {
    Gpus most = 0;    // `times` the healthy GPUs of its types
    Gpus wanted = 0;  // set by the caller
  };
  TypePools(const Problem& problem, double times) : problem_(problem), times_(times) {}

  void add(const Types& types);  // a set that counts
  // Those that have all of these types. O(sets).
  std::vector<Pool*> with_all(const Types& types);

 private:
  const Problem& problem_;
  double times_;
  std::map<Types, Pool> pools_;
};

}  // namespace rubato::sched
