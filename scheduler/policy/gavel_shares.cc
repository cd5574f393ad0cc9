#include "scheduler/policy/gavel_shares.h"

#include "scheduler/solver/lp.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

namespace rubato::sched {
namespace {

constexpr double kPriceLeast = 1e-7;  // a row with a higher one holds its level down
constexpr int kFillsMost = 100;
constexpr int kRatiosMost = 60;
constexpr double kRatioTolerance = 1e-7;  // relative
constexpr double kSlack = 1e-9;           // relative, so that what was reached stays feasible

// Everybody's share of everything, as far as the row's sum allows.
ByGpuType split(const ByGpuType& gpus, double by) {
  const double all = std::accumulate(gpus.begin(), gpus.end(), 0.0);
  ByGpuType x;
  for (const double of_type : gpus) x.push_back(of_type / std::max(by, all));
  return x;
}

ByGpuType equal_split(const ShareJob& job, std::size_t jobs, const ByGpuType& gpus) {
  ByGpuType x = split(gpus, static_cast<double>(jobs) * job.gpus);
  for (std::size_t j = 0; j < x.size(); ++j)
    if (job.speed[j] <= 0) x[j] = 0;
  return x;
}

// The program that all goals share: columns for what a job can use, rows for its time and for the
// GPUs of each type.
class ShareProgram {
 public:
  ShareProgram(const std::vector<ShareJob>& jobs, const ByGpuType& gpus)
      : jobs_(jobs), first_row_of_level_(jobs.size() + gpus.size()), types_(gpus.size()) {
    program_.maximise = true;
    for (const ShareJob& job : jobs) {
      std::vector<std::size_t>& columns = columns_.emplace_back(types_, kNone);
      lp::Row time{.bounds = {.most = 1}};
      for (std::size_t j = 0; j < types_; ++j) {
        if (job.speed[j] <= 0) continue;
        columns[j] = program_.columns.size();
        program_.columns.push_back({});
        time.terms.push_back({columns[j], 1});
      }
      program_.rows.push_back(std::move(time));
    }
    for (std::size_t j = 0; j < types_; ++j) {
      lp::Row capacity{.bounds = {.most = gpus[j]}};
      for (std::size_t m = 0; m < jobs.size(); ++m)
        if (columns_[m][j] != kNone) capacity.terms.push_back({columns_[m][j], jobs[m].gpus});
      program_.rows.push_back(std::move(capacity));
    }
  }

  void set_cost(std::size_t m, std::size_t j, double cost) {
    if (columns_[m][j] != kNone) program_.columns[columns_[m][j]].cost = cost;
  }

  // A job's throughput times `scale` is at least `least`, and as far above it as all of them are
  // that rise.
  struct Level {
    double scale = 1;
    double least = 0;
    bool rises = true;
  };
  struct Answer {
    std::vector<ByGpuType> x;
    double level = 0;
    std::vector<double> prices;  // of the jobs' levels
  };

  std::optional<Answer> raise(const std::vector<Level>& levels) const {
    lp::Program program = program_;
    const std::size_t least = program.columns.size();
    program.columns.push_back({.cost = 1});
    for (std::size_t m = 0; m < levels.size(); ++m) {
      lp::Row row{.bounds = {.least = levels[m].least}};
      for (std::size_t j = 0; j < types_; ++j)
        if (columns_[m][j] != kNone)
          row.terms.push_back({columns_[m][j], levels[m].scale * jobs_[m].speed[j]});
      if (levels[m].rises) row.terms.push_back({least, -1});
      program.rows.push_back(std::move(row));
    }
    const auto solution = lp::solve(program);
    if (!solution.ok() || solution->outcome != lp::Outcome::kOptimal) return std::nullopt;
    const auto first = solution->prices.begin() + static_cast<std::ptrdiff_t>(first_row_of_level_);
    return Answer{.x = matrix_of(*solution),
                  .level = solution->objective,
                  .prices = {first, solution->prices.end()}};
  }

  std::optional<Answer> best_sum() const {
    const auto solution = lp::solve(program_);
    if (!solution.ok() || solution->outcome != lp::Outcome::kOptimal) return std::nullopt;
    return Answer{.x = matrix_of(*solution), .level = solution->objective};
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  std::vector<ByGpuType> matrix_of(const lp::Solution& solution) const {
    std::vector<ByGpuType> x;
    for (const std::vector<std::size_t>& columns : columns_) {
      ByGpuType& row = x.emplace_back(types_, 0.0);
      for (std::size_t j = 0; j < types_; ++j)
        if (columns[j] != kNone) row[j] = solution.values[columns[j]];
    }
    return x;
  }

  const std::vector<ShareJob>& jobs_;
  const std::size_t first_row_of_level_;
  const std::size_t types_;
  std::vector<std::vector<std::size_t>> columns_;  // by job and type
  lp::Program program_;
};

using Answer = std::optional<ShareProgram::Answer>;
using Levels = std::vector<ShareProgram::Level>;

Levels fair_levels(const std::vector<ShareJob>& jobs, const ByGpuType& gpus) {
  Levels levels;
  for (const ShareJob& job : jobs)
    levels.push_back(
        {.scale = job.gpus / (job.weight * throughput_of_equal_share(job, jobs.size(), gpus))});
  return levels;
}

// Those whose rows have a price cannot rise unless another one falls: they are held where they are,
// and the others go on.
Answer fill_up(const ShareProgram& program, Levels levels) {
  Answer answer = program.raise(levels);
  for (int i = 0; i < kFillsMost && answer; ++i) {
    const double reached = answer->level * (1 - kSlack);
    bool is_any_free = false;
    for (std::size_t m = 0; m < levels.size(); ++m) {
      if (!levels[m].rises) continue;
      if (std::abs(answer->prices[m]) > kPriceLeast)
        levels[m] = {.scale = levels[m].scale, .least = reached, .rises = false};
      else
        is_any_free = true;
    }
    if (!is_any_free) break;
    Answer next = program.raise(levels);
    if (!next) break;
    answer = std::move(next);
  }
  return answer;
}

Answer best_sum(ShareProgram program, const std::vector<ShareJob>& jobs, const ByGpuType& gpus) {
  for (std::size_t m = 0; m < jobs.size(); ++m) {
    const double worth =
        jobs[m].weight * jobs[m].gpus / throughput_of_equal_share(jobs[m], jobs.size(), gpus);
    for (std::size_t j = 0; j < gpus.size(); ++j) program.set_cost(m, j, worth * jobs[m].speed[j]);
  }
  return program.best_sum();
}

// The largest ratio of a job's time in the cluster, if it goes on like this, to its time alone.
double worst_ratio(const std::vector<ShareJob>& jobs, const std::vector<double>& alone_s,
                   const std::vector<ByGpuType>& x) {
  double worst = 0;
  for (std::size_t m = 0; m < jobs.size(); ++m) {
    const double takes_s = jobs[m].age_s + jobs[m].left / effective_throughput(jobs[m], x[m]);
    worst = std::max(worst, takes_s / alone_s[m]);
  }
  return worst;
}

// Dinkelbach's method, with every job's row divided by what it is at the last point (Crouzeix,
// Ferland and Schaible, 1986): at the ratio that was reached, how far can all end before that?
Answer fair_finish(const ShareProgram& program, const std::vector<ShareJob>& jobs,
                   const ByGpuType& gpus) {
  std::vector<double> alone_s;
  ShareProgram::Answer best;
  for (const ShareJob& job : jobs) {
    best.x.push_back(equal_split(job, jobs.size(), gpus));
    alone_s.push_back((job.done + job.left) / effective_throughput(job, best.x.back()));
  }
  double ratio = worst_ratio(jobs, alone_s, best.x);
  for (int i = 0; i < kRatiosMost; ++i) {
    Levels levels;
    for (std::size_t m = 0; m < jobs.size(); ++m) {
      const double by = alone_s[m] * effective_throughput(jobs[m], best.x[m]);
      levels.push_back(
          {.scale = (ratio * alone_s[m] - jobs[m].age_s) / by, .least = jobs[m].left / by});
    }
    Answer answer = program.raise(levels);
    if (!answer) return std::nullopt;
    const double reached = worst_ratio(jobs, alone_s, answer->x);
    if (reached > ratio * (1 - kRatioTolerance)) break;
    best = std::move(*answer);
    ratio = reached;
  }
  return best;
}

// Relative to the job that would end last under equal shares, so that numbers stay near 1.
Levels makespan_levels(const std::vector<ShareJob>& jobs, const ByGpuType& gpus) {
  double last_s = 0;
  for (const ShareJob& job : jobs)
    last_s = std::max(last_s, job.left / throughput_of_equal_share(job, jobs.size(), gpus));
  Levels levels;
  for (const ShareJob& job : jobs) levels.push_back({.scale = last_s / job.left});
  return levels;
}

Answer answer_of(const std::vector<ShareJob>& jobs, const ByGpuType& gpus, ShareGoal goal) {
  const ShareProgram program(jobs, gpus);
  switch (goal) {
    case ShareGoal::kMaxMin:
      return program.raise(fair_levels(jobs, gpus));
    case ShareGoal::kMaxMinFilled:
      return fill_up(program, fair_levels(jobs, gpus));
    case ShareGoal::kThroughput:
      return best_sum(program, jobs, gpus);
    case ShareGoal::kMakespan:
      return program.raise(makespan_levels(jobs, gpus));
    case ShareGoal::kFinishTime:
      return fair_finish(program, jobs, gpus);
    case ShareGoal::kEqual:
      break;
  }
  return std::nullopt;
}

}  // namespace

double effective_throughput(const ShareJob& job, const ByGpuType& x) {
  return std::inner_product(x.begin(), x.end(), job.speed.begin(), 0.0);
}

double throughput_of_equal_share(const ShareJob& job, std::size_t jobs, const ByGpuType& gpus) {
  return effective_throughput(job, split(gpus, static_cast<double>(jobs)));
}

Shares shares_of(const std::vector<ShareJob>& jobs, const ByGpuType& gpus, ShareGoal goal) {
  if (auto answer = answer_of(jobs, gpus, goal)) return {.x = std::move(answer->x)};
  Shares shares{.is_best = goal == ShareGoal::kEqual};
  for (const ShareJob& job : jobs) shares.x.push_back(equal_split(job, jobs.size(), gpus));
  return shares;
}

}  // namespace rubato::sched
