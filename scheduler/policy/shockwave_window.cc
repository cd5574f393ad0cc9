#include "scheduler/policy/shockwave_window.h"

#include "scheduler/solver/lp.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

namespace rubato::sched {
namespace {

constexpr std::array kKnots = {0.0, 0.2, 0.4, 0.6, 0.8, 1.0};
constexpr double kLeastProgress = 1e-6;  // whose logarithm is that of none
constexpr double kLateWeightMost = 1e6;  // so that the program's numbers are not too far apart

double log_at_knot(std::size_t knot) { return std::log(std::max(kKnots[knot], kLeastProgress)); }
double slope_after(std::size_t knot) {
  return (log_at_knot(knot + 1) - log_at_knot(knot)) / (kKnots[knot + 1] - kKnots[knot]);
}

// A job's part of the window, and its progress in it between each two knots: the steeper come
// first by themselves. Its columns and rows go to the end of the program's; column 0 is the longest
// time left, row 0 the GPUs.
void add_job(const WindowJob& job, double weight, double least_part, std::size_t jobs,
             const WindowGoal& goal, lp::Program& to) {
  const double total_s = job.done_s + job.left_s;
  const std::size_t part = to.columns.size();
  to.columns.push_back({.bounds = {least_part, std::min(1.0, job.left_s / goal.window_s)}});
  to.rows[0].terms.push_back({part, job.gpus});
  to.rows.push_back({.terms = {{0, 1}, {part, goal.window_s}}, .bounds = {.least = job.left_s}});
  lp::Row progress{.terms = {{part, -goal.window_s / total_s}}, .bounds = {0, 0}};
  const double now = job.done_s / total_s;
  for (std::size_t knot = 0; knot + 1 < kKnots.size(); ++knot) {
    const double width = kKnots[knot + 1] - std::max(kKnots[knot], now);
    if (width <= 0) continue;
    progress.terms.push_back({to.columns.size(), 1});
    to.columns.push_back(
        {.cost = weight * slope_after(knot) / static_cast<double>(jobs), .bounds = {0, width}});
  }
  to.rows.push_back(std::move(progress));
}

std::optional<std::vector<double>> planned_parts(const std::vector<WindowJob>& jobs, double gpus,
                                                 const WindowGoal& goal,
                                                 const std::vector<double>& weights,
                                                 const std::vector<double>& least) {
  lp::Program program{.maximise = true};
  program.columns.push_back({.cost = -goal.longest_weight});
  program.rows.push_back({.bounds = {.most = gpus}});
  std::vector<std::size_t> part;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    part.push_back(program.columns.size());
    add_job(jobs[i], weights[i], least[i], jobs.size(), goal, program);
  }
  const auto solved = lp::solve(program);
  if (!solved.ok() || solved->outcome != lp::Outcome::kOptimal) return std::nullopt;
  std::vector<double> parts;
  parts.reserve(jobs.size());
  for (const std::size_t column : part) parts.push_back(solved->values[column]);
  return parts;
}

}  // namespace

double log_of_progress(double progress) {
  std::size_t knot = 0;
  while (knot + 2 < kKnots.size() && kKnots[knot + 1] <= progress) ++knot;
  return log_at_knot(knot) + slope_after(knot) * (progress - kKnots[knot]);
}

WindowPlan plan_window(const std::vector<WindowJob>& jobs, double gpus, const WindowGoal& goal) {
  double asked = 0;
  for (const WindowJob& job : jobs) asked += job.gpus;
  const double share = std::min(1.0, gpus / asked);
  std::vector<double> weights, least, late_weights;
  WindowPlan plan{.late = std::vector<char>(jobs.size(), 0)};
  for (const WindowJob& job : jobs) {
    const double fair_s = (job.done_s + job.left_s) / share;
    const double needed_s = job.left_s - share * (goal.rho * fair_s - job.age_s - goal.window_s);
    const double most = std::min(1.0, job.left_s / goal.window_s);
    least.push_back(std::max(needed_s / goal.window_s, 0.0));
    plan.is_fair = plan.is_fair && least.back() <= most;
    const double rho = (job.age_s + job.left_s / share) / fair_s;
    const bool is_late = rho > goal.rho;
    plan.late[weights.size()] = is_late ? 1 : 0;
    weights.push_back(job.weight);
    late_weights.push_back(job.weight *
                           (is_late ? std::min(std::pow(rho, goal.lambda), kLateWeightMost) : 1));
  }
  if (plan.is_fair) {
    if (auto parts = planned_parts(jobs, gpus, goal, weights, least)) {
      plan.part = std::move(*parts);
      plan.late.assign(jobs.size(), 0);
      return plan;
    }
  }
  plan.is_fair = false;
  auto parts = planned_parts(jobs, gpus, goal, late_weights, std::vector<double>(jobs.size(), 0));
  plan.part = parts ? std::move(*parts) : std::vector<double>(jobs.size(), share);
  return plan;
}

}  // namespace rubato::sched
