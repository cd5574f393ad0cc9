#include "scheduler/sim/application.h"

#include "common/check.h"
#include "scheduler/solver/lp.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace rubato::sched::sim {
namespace {

constexpr std::int64_t kNodesMeasured = 16;  // on more it is as on so many

double mix(double a, double b, double part) { return a + part * (b - a); }

// Of `rows`, which are in order of their local batch.
MeasuredStep between_batches(const std::vector<MeasuredStep>& rows, double local_batch) {
  const auto next = std::ranges::lower_bound(rows, local_batch, {}, &MeasuredStep::local_batch);
  if (next == rows.begin()) return rows.front();
  if (next == rows.end()) return rows.back();
  const MeasuredStep& before = *(next - 1);
  const double part = (local_batch - before.local_batch) / (next->local_batch - before.local_batch);
  return {local_batch, mix(before.step_s, next->step_s, part),
          mix(before.sync_s, next->sync_s, part)};
}

struct Offset {
  double nodes, gpus, batch;
  double square() const { return nodes * nodes + gpus * gpus + batch * batch; }
};

Offset offset_of(const SpreadStep& from, Spread to, double local_batch) {
  return {static_cast<double>(from.spread.nodes - to.nodes),
          static_cast<double>(from.spread.gpus - to.gpus), from.step.local_batch - local_batch};
}

}  // namespace

std::size_t Application::count_epochs() const {
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (const auto& [batch, rows] : epochs) least = std::min(least, rows.size());
  return epochs.empty() ? 0 : least;
}

double Application::progress_after(std::size_t count) const {
  if (count == 0) return 0;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [batch, rows] : epochs) least = std::min(least, rows[count - 1].progress);
  return least;
}

GradientNoise Application::noise(double batch, std::size_t epoch) const {
  auto above = epochs.lower_bound(std::llround(std::ceil(batch)));
  if (above == epochs.end()) return std::prev(above)->second[epoch].noise;
  const GradientNoise& upper = above->second[epoch].noise;
  if (above == epochs.begin() || static_cast<double>(above->first) == batch) return upper;
  const auto below = std::prev(above);
  const auto from = static_cast<double>(below->first);
  const double part = (batch - from) / (static_cast<double>(above->first) - from);
  const GradientNoise& lower = below->second[epoch].noise;
  return {mix(lower.square, upper.square, part), mix(lower.variance, upper.variance, part)};
}

Gpus Application::gpus_most() const {
  return std::max<Gpus>(static_cast<Gpus>(limits.max_batch / limits.min_local), 1);
}

GpusByNode normal_form(GpusByNode placement) {
  GpusByNode least = placement;
  for (std::size_t i = 1; i < placement.size(); ++i) {
    std::ranges::rotate(placement, placement.begin() + 1);
    least = std::min(least, placement);
  }
  return least;
}

MeasuredStep StepTimes::at(const GpusByNode& placement, double local_batch) {
  const auto measured = of_.placements.find(normal_form(placement));
  if (measured != of_.placements.end()) return between_batches(measured->second, local_batch);
  const Spread spread{std::min<std::int64_t>(std::ssize(placement), kNodesMeasured),
                      std::accumulate(placement.begin(), placement.end(), Gpus{0})};
  const auto key = std::tuple(spread.nodes, spread.gpus, local_batch);
  const auto known = known_.find(key);
  if (known != known_.end()) return known->second;
  return known_[key] = between_spreads(spread, local_batch);
}

// The Delaunay simplex around a point is the one whose corners, with weights that make up the
// point, are nearest to it in the weighted mean of squares (lifted to a paraboloid, it is the face
// of the lower hull below the point).
MeasuredStep StepTimes::between_spreads(Spread spread, double local_batch) const {
  lp::Program program;
  program.rows.resize(4);
  for (lp::Row& row : program.rows) row.bounds = {0, 0};
  program.rows[3].bounds = {1, 1};
  const SpreadStep* nearest = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const SpreadStep& one : of_.spreads) {
    const Offset offset = offset_of(one, spread, local_batch);
    if (offset.square() < least) {
      least = offset.square();
      nearest = &one;
    }
    const std::size_t column = program.columns.size();
    program.columns.push_back({.cost = offset.square()});
    program.rows[0].terms.push_back({column, offset.nodes});
    program.rows[1].terms.push_back({column, offset.gpus});
    program.rows[2].terms.push_back({column, offset.batch});
    program.rows[3].terms.push_back({column, 1});
  }
  CHECK(nearest != nullptr);
  const auto solved = lp::solve(program);
  if (!solved.ok() || solved->outcome != lp::Outcome::kOptimal) return nearest->step;
  MeasuredStep mean{.local_batch = local_batch};
  for (std::size_t i = 0; i < of_.spreads.size(); ++i) {
    mean.step_s += solved->values[i] * of_.spreads[i].step.step_s;
    mean.sync_s += solved->values[i] * of_.spreads[i].step.sync_s;
  }
  return mean;
}

BatchSplit split_of(double batch, Gpus gpus, const BatchLimits& limits) {
  constexpr double kSlack = 1e-8;
  const double each = std::ceil(batch / static_cast<double>(gpus) - kSlack);
  double passes = std::max(1.0, std::ceil(each / limits.max_local - kSlack));
  if (limits.needs_noise && gpus == 1 && batch > limits.first_batch) passes = std::max(passes, 2.0);
  const double count = static_cast<double>(gpus) * passes;
  const double local =
      std::min(std::ceil(each / passes - kSlack), std::floor(limits.max_batch / count));
  return {std::max(local, 1.0), static_cast<std::int64_t>(passes) - 1};
}

double goodput_of(StepTimes& steps, const GpusByNode& placement, BatchSplit split,
                  std::size_t epoch) {
  const Application& of = steps.application();
  const MeasuredStep step = steps.at(placement, split.local_batch);
  const Gpus gpus = std::accumulate(placement.begin(), placement.end(), Gpus{0});
  const auto passes = static_cast<double>(split.accumulated);
  const double batch = static_cast<double>(gpus) * split.local_batch * (passes + 1);
  const double seconds = step.step_s + passes * (step.step_s - step.sync_s);
  return gain(of.noise(batch, epoch), batch, of.limits.first_batch) / seconds;
}

GpusByNode packed(Gpus gpus, Gpus per_node) {
  GpusByNode nodes;
  for (; gpus > 0; gpus -= nodes.back()) nodes.push_back(std::min(gpus, per_node));
  return nodes;
}

double mean_goodput(StepTimes& steps, Gpus gpus, Gpus per_node, double batch) {
  const Application& of = steps.application();
  const GpusByNode placement = packed(gpus, per_node);
  std::vector<BatchSplit> splits;
  if (batch > 0) {
    splits.push_back(split_of(batch, gpus, of.limits));
  } else {
    const double least =
        std::max(of.limits.first_batch, of.limits.min_local * static_cast<double>(gpus));
    for (int i = 0; i < kBatchCandidates; ++i)
      splits.push_back(
          split_of(least * std::pow(of.limits.max_batch / least, i / (kBatchCandidates - 1.0)),
                   gpus, of.limits));
  }
  double seconds = 0;
  for (std::size_t epoch = 0; epoch < of.count_epochs(); ++epoch) {
    double best = 0;
    for (const BatchSplit& split : splits)
      best = std::max(best, goodput_of(steps, placement, split, epoch));
    seconds += (of.progress_after(epoch + 1) - of.progress_after(epoch)) / best;
  }
  return of.progress_after(of.count_epochs()) / seconds;
}

}  // namespace rubato::sched::sim
