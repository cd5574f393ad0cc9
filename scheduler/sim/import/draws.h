// What the makers of traces draw, as Gavel's generator does: generate.h. Private to this folder.
#pragma once

#include "common/rng.h"
#include "scheduler/sim/import/generate.h"

#include <cmath>

#include <fmt/format.h>

namespace rubato::sched::sim {

// Jobs in order of arrival, one at a time.
class Draws {
 public:
  struct Drawn {
    TraceJob job;  // its id, arrival and request
    double seconds = 0;
  };

  explicit Draws(const PoissonOptions& options)
      : rng_(options.seed), jobs_per_hour_(options.jobs_per_hour) {}

  Drawn next() {
    at_s_ += -std::log(1.0 - rng_.unit()) * 3600.0 / jobs_per_hour_;
    Drawn drawn;
    drawn.job.id = fmt::format("job-{:06}", drawn_++);
    drawn.job.submit_ms = std::llround(at_s_ * 1000.0);
    drawn.job.request = gpus();
    drawn.seconds = std::round(minutes() * 60.0);
    return drawn;
  }
  Rng& rng() { return rng_; }

 private:
  Gpus gpus() {
    const double u = rng_.unit();
    if (u < 0.70) return 1;
    if (u < 0.80) return 2;
    return u < 0.95 ? 4 : 8;
  }

  double minutes() {
    const bool is_short = rng_.unit() < 0.8;
    const double u = rng_.unit();
    return std::pow(10.0, is_short ? 1.5 + 1.5 * u : 3.0 + u);
  }

  Rng rng_;
  double jobs_per_hour_;
  double at_s_ = 0;
  std::int64_t drawn_ = 0;
};

}  // namespace rubato::sched::sim
