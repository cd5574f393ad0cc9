// How far the predictions of a fitted model can be trusted: the interval in which an observation
// lies with a probability of 90 %. Pure.
//
// Errors are differences of logarithms: predicted less observed. An interval has two parts:
// - what the model does not describe, with the noise: the mean square of the errors that it left,
// by
//   class of observations (such as: on one node), each weighed against that of all classes
//   together, and that against kPriorError;
// - what is not known of the parameters: J C J^T, with J the slopes of the prediction by the
//   parameters and C the inverse of the information in the observations. Where observations of one
//   group (such as: of one placement) err together, they tell less: the information is divided by
//   their design effect, which is 1 where they do not and the size of a group where all are alike.
//   It is estimated from the errors, as far as there are more groups than parameters.
// The two are added as squares.
#pragma once

#include "scheduler/perf/least_squares.h"

#include <cstddef>
#include <vector>

namespace rubato::sched {

constexpr double kPriorError = 0.1;  // counts as kPriorCount errors
constexpr double kPriorCount = 1;
constexpr std::size_t kErrorsForRank = 20;
constexpr double kUnseenError = 0.5;  // of a class of which nothing was observed
constexpr double kPriorSlack = 3;  // deviation of a parameter's logarithm before all observations

struct Witness {
  double error = 0;
  Slopes slopes{};
  std::size_t of_class = 0;
  std::size_t of_group = 0;
};

class Band {
 public:
  // `fitted`: how many parameters the fit was free to choose of `parameters`.
  Band(const std::vector<Witness>& witnesses, std::size_t parameters, std::size_t fitted,
       std::size_t classes);
  // Half of the interval of a logarithm, finite, at least 0.
  double half_width(const Slopes& slopes, std::size_t of_class) const;

 private:
  NormalMatrix information_;
  std::vector<double> left_over_;  // half widths of the first part, by class
  double quantile_ = 0;
};

// The 95 % point of Student's distribution.
double student_quantile(double freedom);

}  // namespace rubato::sched
