// The best of all vertices of a small linear program, by trying them: what a solver is held to. All
// columns must have finite bounds, so that what is feasible has a vertex.
#pragma once

#include "scheduler/solver/lp.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace rubato::sched::lp {

constexpr double kNear = 1e-6;

using Point = std::vector<double>;
struct Plane {
  Point normal;
  double at = 0;
};

inline bool is_within(double value, const Bounds& bounds) {
  return value >= bounds.least - kNear && value <= bounds.most + kNear;
}

inline double sum_of(const Row& row, const Point& point) {
  double sum = 0;
  for (const Term& term : row.terms) sum += term.factor * point[term.column];
  return sum;
}

inline bool is_feasible(const Program& program, const Point& point) {
  for (std::size_t c = 0; c < point.size(); ++c)
    if (!is_within(point[c], program.columns[c].bounds)) return false;
  return std::ranges::all_of(
      program.rows, [&](const Row& row) { return is_within(sum_of(row, point), row.bounds); });
}

inline double objective_of(const Program& program, const Point& point) {
  double sum = 0;
  for (std::size_t c = 0; c < point.size(); ++c) sum += program.columns[c].cost * point[c];
  return sum;
}

inline std::vector<Plane> planes_of(const Program& program) {
  std::vector<Plane> planes;
  const auto add = [&](const Point& normal, const Bounds& bounds) {
    if (std::isfinite(bounds.least)) planes.push_back({normal, bounds.least});
    if (std::isfinite(bounds.most) && bounds.most != bounds.least)
      planes.push_back({normal, bounds.most});
  };
  for (std::size_t c = 0; c < program.columns.size(); ++c) {
    Point normal(program.columns.size(), 0);
    normal[c] = 1;
    add(normal, program.columns[c].bounds);
  }
  for (const Row& row : program.rows) {
    Point normal(program.columns.size(), 0);
    for (const Term& term : row.terms) normal[term.column] = term.factor;
    add(normal, row.bounds);
  }
  return planes;
}

// All points where as many planes meet as there are columns, by Gauss's elimination of one plane
// after the other.
class Vertices {
 public:
  explicit Vertices(const Program& program) : program_(program), planes_(planes_of(program)) {}

  // None: nothing is feasible.
  std::optional<double> best() {
    add_from(0);
    return best_;
  }

 private:
  struct Pivot {
    Plane plane;  // 1 in its column, 0 in those of the pivots before it
    std::size_t column = 0;
  };

  void add_from(std::size_t first) {
    const std::size_t missing = program_.columns.size() - pivots_.size();
    if (missing == 0) return look_at(meeting_point());
    for (std::size_t i = first; i + missing <= planes_.size(); ++i) {
      auto pivot = reduced(planes_[i]);
      if (!pivot) continue;
      pivots_.push_back(std::move(*pivot));
      add_from(i + 1);
      pivots_.pop_back();
    }
  }

  // None: it meets those before it in no single line.
  std::optional<Pivot> reduced(Plane plane) const {
    for (const Pivot& pivot : pivots_) {
      const double by = plane.normal[pivot.column];
      if (by == 0) continue;
      for (std::size_t c = 0; c < plane.normal.size(); ++c)
        plane.normal[c] -= by * pivot.plane.normal[c];
      plane.at -= by * pivot.plane.at;
    }
    const auto most =
        std::ranges::max_element(plane.normal, {}, [](double x) { return std::abs(x); });
    if (std::abs(*most) < 1e-9) return std::nullopt;
    const double scale = 1 / *most;
    const auto column = static_cast<std::size_t>(most - plane.normal.begin());
    for (double& x : plane.normal) x *= scale;
    plane.at *= scale;
    return Pivot{std::move(plane), column};
  }

  Point meeting_point() const {
    Point point(program_.columns.size(), 0);
    for (std::size_t i = pivots_.size(); i-- > 0;) {
      double at = pivots_[i].plane.at;
      for (std::size_t k = i + 1; k < pivots_.size(); ++k)
        at -= pivots_[i].plane.normal[pivots_[k].column] * point[pivots_[k].column];
      point[pivots_[i].column] = at;
    }
    return point;
  }

  void look_at(const Point& point) {
    if (!is_feasible(program_, point)) return;
    const double objective = objective_of(program_, point);
    if (!best_ || (program_.maximise ? objective > *best_ : objective < *best_)) best_ = objective;
  }

  const Program& program_;
  const std::vector<Plane> planes_;
  std::vector<Pivot> pivots_;
  std::optional<double> best_;
};

inline std::optional<double> best_vertex(const Program& program) {
  return Vertices(program).best();
}

}  // namespace rubato::sched::lp
