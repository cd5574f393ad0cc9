// What Shockwave (NSDI'23) plans for a window of time: which part of it each job should run. A
// linear program: its utility, the logarithm of a job's progress, is taken between knots, where it
// is concave; parts stand for its whole rounds.
//
//   maximise  sum of w_j · u_j(progress at the window's end) / J  -  k · longest
//   subject to  sum of gpus_j · part_j <= GPUs,   longest >= left_j - part_j · window
//               part_j · window >= left_j - share · (rho · fair_j - age_j - window)
// share: min(1, GPUs / GPUs that all ask for); fair_j: its whole work over that share. The last row
// says that a job which runs on its share after the window is done within rho times its fair time.
// Where no plan keeps it for all, it is dropped, and a job counts as much more (w_j) as its
// projected (age + left / share) / fair to the power of lambda, where that is above rho; 1 else.
#pragma once

#include <vector>

namespace rubato::sched {

struct WindowJob {
  double weight = 1;
  double gpus = 1;
  double done_s = 0;  // of training at its size
  double left_s = 0;
  double age_s = 0;
};

struct WindowGoal {
  double window_s = 0;
  double longest_weight = 0;  // k, for a second
  double rho = 1;
  double lambda = 0;
};

struct WindowPlan {
  std::vector<double> part;  // by job, from 0 to 1
  std::vector<char> late;    // by job: not 0, it counted more
  bool is_fair = true;       // everybody is within rho
};

// `jobs` have work left, and none asks for more than `gpus`. Where the solver gives up, everybody
// has the same part.
WindowPlan plan_window(const std::vector<WindowJob>& jobs, double gpus, const WindowGoal& goal);

// By job, as the utility sees it: the logarithm of progress (0 to 1) between the knots.
double log_of_progress(double progress);

}  // namespace rubato::sched
