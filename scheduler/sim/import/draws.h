// What the makers of traces draw, as Gavel's generator does: generate.h. Private to this folder.
#pragma once

#include "common/rng.h"
#include "scheduler/model/cluster_state.h"

#include <cmath>

namespace rubato::sched::sim {

inline double draw_gap_s(Rng& rng, double jobs_per_hour) {
  return -std::log(1.0 - rng.unit()) * 3600.0 / jobs_per_hour;
}

inline Gpus draw_gpus(Rng& rng) {
  const double u = rng.unit();
  if (u < 0.70) return 1;
  if (u < 0.80) return 2;
  return u < 0.95 ? 4 : 8;
}

inline double draw_minutes(Rng& rng) {
  const bool is_short = rng.unit() < 0.8;
  const double u = rng.unit();
  return std::pow(10.0, is_short ? 1.5 + 1.5 * u : 3.0 + u);
}

}  // namespace rubato::sched::sim
