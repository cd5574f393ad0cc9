// Gavel's shares against all vertices of the same programs, written down anew, on random instances.
#include "scheduler/policy/gavel_shares.h"

#include "common/rng.h"
#include "tests/unit/scheduler/vertices.h"

#include <gtest/gtest.h>

namespace rubato::sched {
namespace {

constexpr std::uint64_t kDrawnInstances = 200;
constexpr double kNear = 1e-6;

struct Instance {
  std::vector<ShareJob> jobs;
  ByGpuType gpus;
};

// Up to three jobs and two types: some thousand vertices.
Instance drawn_shares_instance(std::uint64_t seed) {
  Rng rng(seed);
  const auto whole = [&](std::uint64_t from, std::uint64_t to) {
    return static_cast<double>(from + rng.below(to - from + 1));
  };
  Instance instance;
  const std::uint64_t types = 1 + rng.below(2);
  for (std::uint64_t j = 0; j < types; ++j) instance.gpus.push_back(whole(1, 4));
  const std::uint64_t jobs = 1 + rng.below(3);
  for (std::uint64_t m = 0; m < jobs; ++m) {
    ShareJob job{.weight = whole(1, 3),
                 .gpus = whole(1, 3),
                 .done = whole(0, 5000),
                 .left = whole(1, 20'000),
                 .age_s = whole(0, 900)};
    for (std::uint64_t j = 0; j < types; ++j)
      job.speed.push_back(rng.chance(0.85) ? whole(1, 40) : 0);
    if (std::ranges::max(job.speed) == 0) job.speed[0] = 1;
    instance.jobs.push_back(std::move(job));
  }
  return instance;
}

// Columns: the shares, job by job, then the level, at most `kMost`.
constexpr double kMost = 1e4;
lp::Program polytope(const Instance& in) {
  lp::Program program{.maximise = true};
  const std::size_t types = in.gpus.size();
  for (const ShareJob& job : in.jobs)
    for (const double speed : job.speed)
      program.columns.push_back({.bounds = {0, speed > 0 ? 1.0 : 0.0}});
  program.columns.push_back({.bounds = {0, kMost}});
  for (std::size_t m = 0; m < in.jobs.size(); ++m) {
    lp::Row time{.bounds = {.most = 1}};
    for (std::size_t j = 0; j < types; ++j) time.terms.push_back({m * types + j, 1});
    program.rows.push_back(time);
  }
  for (std::size_t j = 0; j < types; ++j) {
    lp::Row capacity{.bounds = {.most = in.gpus[j]}};
    for (std::size_t m = 0; m < in.jobs.size(); ++m)
      capacity.terms.push_back({m * types + j, in.jobs[m].gpus});
    program.rows.push_back(capacity);
  }
  return program;
}

lp::Row level_of(const Instance& in, std::size_t m, double scale) {
  lp::Row row;
  const std::size_t types = in.gpus.size();
  for (std::size_t j = 0; j < types; ++j)
    row.terms.push_back({m * types + j, scale * in.jobs[m].speed[j]});
  return row;
}

// The highest level that all jobs can reach together, each counted by its scale.
double highest_level(const Instance& in, const std::vector<double>& scales) {
  lp::Program program = polytope(in);
  program.columns.back().cost = 1;
  for (std::size_t m = 0; m < in.jobs.size(); ++m) {
    lp::Row row = level_of(in, m, scales[m]);
    row.terms.push_back({program.columns.size() - 1, -1});
    row.bounds.least = 0;
    program.rows.push_back(std::move(row));
  }
  return lp::best_vertex(program).value();
}

// The highest level of one job while each of the others has at least what is given.
double highest_of_one(const Instance& in, std::size_t one, const std::vector<double>& scales,
                      const std::vector<double>& least) {
  lp::Program program = polytope(in);
  program.columns.pop_back();
  for (std::size_t m = 0; m < in.jobs.size(); ++m) {
    lp::Row row = level_of(in, m, scales[m]);
    if (m == one)
      for (const lp::Term& term : row.terms) program.columns[term.column].cost = term.factor;
    row.bounds.least = m == one ? 0 : least[m] - 1e-9;
    program.rows.push_back(std::move(row));
  }
  return lp::best_vertex(program).value();
}

double equal_throughput(const Instance& in, const ShareJob& job) {
  double all = 0, sum = 0;
  for (const double of_type : in.gpus) all += of_type;
  for (std::size_t j = 0; j < in.gpus.size(); ++j) sum += job.speed[j] * in.gpus[j];
  return sum / std::max(all, static_cast<double>(in.jobs.size()));
}

std::vector<double> fair_scales(const Instance& in) {
  std::vector<double> scales;
  for (const ShareJob& job : in.jobs)
    scales.push_back(job.gpus / job.weight / equal_throughput(in, job));
  return scales;
}

double throughput(const ShareJob& job, const ByGpuType& x) {
  double sum = 0;
  for (std::size_t j = 0; j < x.size(); ++j) sum += job.speed[j] * x[j];
  return sum;
}

std::vector<double> levels(const Instance& in, const std::vector<double>& scales,
                           const Shares& shares) {
  std::vector<double> all;
  for (std::size_t m = 0; m < in.jobs.size(); ++m)
    all.push_back(scales[m] * throughput(in.jobs[m], shares.x[m]));
  return all;
}

void expect_feasible(const Instance& in, const Shares& shares) {
  ASSERT_EQ(shares.x.size(), in.jobs.size());
  ByGpuType used(in.gpus.size(), 0);
  for (std::size_t m = 0; m < in.jobs.size(); ++m) {
    double time = 0;
    for (std::size_t j = 0; j < used.size(); ++j) {
      const double x = shares.x[m][j];
      EXPECT_GE(x, 0);
      EXPECT_TRUE(x == 0 || in.jobs[m].speed[j] > 0);
      time += x;
      used[j] += x * in.jobs[m].gpus;
    }
    EXPECT_LE(time, 1 + kNear);
  }
  for (std::size_t j = 0; j < used.size(); ++j) EXPECT_LE(used[j], in.gpus[j] + kNear);
}

template <class Check>
void on_drawn_instances(ShareGoal goal, const Check& check) {
  for (std::uint64_t seed = 1; seed <= kDrawnInstances; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Instance in = drawn_shares_instance(seed);
    const Shares shares = shares_of(in.jobs, in.gpus, goal);
    EXPECT_TRUE(shares.is_best);
    expect_feasible(in, shares);
    check(in, shares);
  }
}

void expect_near(double value, double wanted) {
  EXPECT_NEAR(value, wanted, kNear * std::max(1.0, std::abs(wanted)));
}

TEST(GavelShares, MaxMinIsTheBestOfAllVertices) {
  on_drawn_instances(ShareGoal::kMaxMin, [](const Instance& in, const Shares& shares) {
    const std::vector<double> scales = fair_scales(in);
    expect_near(std::ranges::min(levels(in, scales, shares)), highest_level(in, scales));
  });
}

TEST(GavelShares, MaxMinNeverLeavesAnybodyBelowTheEqualSplit) {
  on_drawn_instances(ShareGoal::kMaxMin, [](const Instance& in, const Shares& shares) {
    const std::vector<double> scales = fair_scales(in);
    const Shares equal = shares_of(in.jobs, in.gpus, ShareGoal::kEqual);
    EXPECT_GE(std::ranges::min(levels(in, scales, shares)) + kNear,
              std::ranges::min(levels(in, scales, equal)));
  });
}

// Nobody can rise but by taking from somebody who has no more.
TEST(GavelShares, FilledUpNobodyCanRiseAtNobodysCost) {
  on_drawn_instances(ShareGoal::kMaxMinFilled, [](const Instance& in, const Shares& shares) {
    const std::vector<double> scales = fair_scales(in);
    const std::vector<double> had = levels(in, scales, shares);
    expect_near(std::ranges::min(had), highest_level(in, scales));
    for (std::size_t m = 0; m < had.size(); ++m) {
      std::vector<double> least;
      for (const double level : had) least.push_back(std::min(level, had[m]) * (1 - kNear));
      const double more = highest_of_one(in, m, scales, least);
      EXPECT_LE(more, had[m] * (1 + 1e-4) + 1e-4);
    }
  });
}

TEST(GavelShares, ThroughputIsTheBestOfAllVertices) {
  on_drawn_instances(ShareGoal::kThroughput, [](const Instance& in, const Shares& shares) {
    lp::Program program = polytope(in);
    program.columns.pop_back();
    double sum = 0;
    for (std::size_t m = 0; m < in.jobs.size(); ++m) {
      const ShareJob& job = in.jobs[m];
      const double worth = job.weight * job.gpus / equal_throughput(in, job);
      for (const lp::Term& term : level_of(in, m, worth).terms)
        program.columns[term.column].cost = term.factor;
      sum += worth * throughput(job, shares.x[m]);
    }
    expect_near(sum, lp::best_vertex(program).value());
  });
}

TEST(GavelShares, MakespanIsTheBestOfAllVertices) {
  on_drawn_instances(ShareGoal::kMakespan, [](const Instance& in, const Shares& shares) {
    std::vector<double> scales;
    for (const ShareJob& job : in.jobs) scales.push_back(1000 / job.left);
    expect_near(std::ranges::min(levels(in, scales, shares)), highest_level(in, scales));
  });
}

// The largest ratio of the shares is reached by a vertex, and a smaller one by none.
TEST(GavelShares, FinishTimeRatioIsTheLeastThatAnyVertexReaches) {
  on_drawn_instances(ShareGoal::kFinishTime, [](const Instance& in, const Shares& shares) {
    std::vector<double> alone_s;
    double ratio = 0;
    for (std::size_t m = 0; m < in.jobs.size(); ++m) {
      const ShareJob& job = in.jobs[m];
      double gpus = 0, speed = 0;
      for (const double of_type : in.gpus) gpus += of_type;
      for (std::size_t j = 0; j < in.gpus.size(); ++j) speed += job.speed[j] * in.gpus[j];
      speed /= std::max(gpus, static_cast<double>(in.jobs.size()) * job.gpus);
      alone_s.push_back((job.done + job.left) / speed);
      const double takes_s = job.age_s + job.left / throughput(job, shares.x[m]);
      ratio = std::max(ratio, takes_s / alone_s.back());
    }
    const auto level_at = [&](double wanted) {
      std::vector<double> scales;
      for (std::size_t m = 0; m < in.jobs.size(); ++m)
        scales.push_back(std::max(wanted * alone_s[m] - in.jobs[m].age_s, 0.0) / in.jobs[m].left);
      return highest_level(in, scales);
    };
    EXPECT_GE(level_at(ratio * (1 + kNear)), 1 - kNear);
    EXPECT_LT(level_at(ratio * (1 - 1e-5)), 1);
  });
}

}  // namespace
}  // namespace rubato::sched
