// How fast a job is on GPU types on which it was not measured: guessed from those on which it was,
// by how much faster other jobs are on the one than on the other (geometric mean over those that
// were measured on both). Where no job was, it is taken for a bit faster than on its fastest, so
// that the type is tried. Gavel (OSDI'20, section 6) profiles jobs, or completes a matrix instead.
#pragma once

#include <cstddef>
#include <vector>

namespace rubato::sched {

class TypeRatios {
 public:
  using ByGpuType = std::vector<double>;

  explicit TypeRatios(std::size_t types);
  // Of one job, by type, each at the same size; 0: not measured. Cost: types squared.
  void add(const ByGpuType& measured);
  // Its speed on each type: where it was measured that, elsewhere the guess. A job that was
  // measured nowhere is as fast as the others, whatever that is: 1 on a type on which any was.
  ByGpuType speeds_of(ByGpuType measured) const;
  // The same, but a guess says the best that was seen of any job: who acts by it tries each type
  // once, and finds out.
  ByGpuType hopes_of(ByGpuType measured) const;
  // Jobs that were measured on both types.
  double count(std::size_t of, std::size_t to) const { return means_[of][to].many; }

 private:
  struct Mean {
    double logs = 0;
    double many = 0;
    double best = 0;
  };
  enum class Taking { kMean, kBest };
  double ratio(std::size_t of, std::size_t to, Taking taking) const;  // 0: nothing is known
  double guess(const ByGpuType& measured, std::size_t type, Taking taking) const;
  ByGpuType filled(ByGpuType measured, Taking taking) const;

  std::vector<std::vector<Mean>> means_;  // of speed[a] / speed[b]
};

}  // namespace rubato::sched
