// Decisions to grow from n to 2n GPUs, on Pollux' profiles: the batch stays, and the model knows
// the packed placements up to n only. A decision grows if the predicted gain is at least x; what it
// is worth is the measured gain less x, in the present throughput; the regret is what it loses
// against the decision that knows the measured gain.
#include "scheduler/perf/throughput.h"
#include "tests/bench/perf/held_out.h"
#include "tests/bench/perf/pollux.h"
#include "tests/bench/perf/tables.h"

#include <fmt/core.h>

namespace rubato::sched {
namespace {

constexpr double kThresholds[] = {1.2, 1.5, 1.8};
// By GPUs, each twice the one before.
constexpr const char* kPacked[] = {"1", "2", "4", "44", "4444", "8x32", "16x64"};

double step_at(const std::vector<StepObservation>& steps, double local_batch) {
  std::size_t after = 1;
  while (after + 1 < steps.size() && steps[after].local_batch < local_batch) ++after;
  const StepObservation& a = steps[after - 1];
  const StepObservation& b = steps[after];
  const double part = (local_batch - a.local_batch) / (b.local_batch - a.local_batch);
  return a.step_s + part * (b.step_s - a.step_s);
}

bool spans(const std::vector<StepObservation>& steps, double local_batch) {
  return steps.front().local_batch <= local_batch && local_batch <= steps.back().local_batch;
}

struct Chooser {
  const char* name;
  double wrong = 0;
  double regret = 0;
  double worst = 0;
  void decide(double predicted, double gain, double threshold) {
    if ((predicted >= threshold) == (gain >= threshold)) return;
    const double lost = std::abs(gain - threshold);
    ++wrong;
    regret += lost;
    worst = std::max(worst, lost);
  }
};

struct Choosers {
  Chooser fit{.name = "fit"};
  Chooser cautious{.name = "fit, slow end of its band"};
  Chooser amdahl{.name = "Throughput (Amdahl, the batch's own points)"};
  Chooser never{.name = "never grow"};
  Chooser always{.name = "always grow"};
  double decisions = 0;
};

// Of one size: every batch that was measured there and, split in two, on twice the GPUs.
Status decide_at(const std::vector<const std::vector<StepObservation>*>& packed, std::size_t size,
                 double threshold, Choosers& to) {
  std::vector<StepObservation> seen;
  for (std::size_t i = 0; i <= size; ++i)
    seen.insert(seen.end(), packed[i]->begin(), packed[i]->end());
  TRY(const StepFit fit, fit_step(seen));
  const std::vector<StepObservation>& larger = *packed[size + 1];
  for (const StepObservation& now : *packed[size]) {
    const double half = now.local_batch / 2;
    if (!spans(larger, half)) continue;
    const double gain = now.step_s / step_at(larger, half);
    const StepPrediction predicted = fit.predict(larger.front().spread, half);
    const double batch = now.local_batch * static_cast<double>(now.spread.gpus);
    std::vector<ThroughputPoint> points;
    for (std::size_t i = 0; i <= size; ++i) {
      const Gpus gpus = packed[i]->front().spread.gpus;
      const double local = batch / static_cast<double>(gpus);
      if (spans(*packed[i], local))
        points.push_back({"", gpus, batch / step_at(*packed[i], local)});
    }
    const Throughput amdahl(points, "");
    ++to.decisions;
    to.fit.decide(now.step_s / predicted.seconds, gain, threshold);
    to.cautious.decide(now.step_s / predicted.most_s, gain, threshold);
    to.amdahl.decide(amdahl.at(2 * now.spread.gpus) / amdahl.at(now.spread.gpus), gain, threshold);
    to.never.decide(0, gain, threshold);
    to.always.decide(threshold, gain, threshold);
  }
  return ok();
}

}  // namespace

Status report_growth(const std::filesystem::path& traces) {
  fmt::print(
      "| grows if the gain is at least | by | decisions | wrong | mean regret | worst |\n"
      "| --- | --- | --- | --- | --- | --- |\n");
  std::map<std::string, PolluxProfile> profiles;
  for (const std::string application : kPolluxApplications) {
    TRY(profiles[application], read_pollux_profile(traces / application));
  }
  for (const double threshold : kThresholds) {
    Choosers all;
    for (const auto& [application, profile] : profiles) {
      std::vector<const std::vector<StepObservation>*> packed;
      for (const char* placement : kPacked) packed.push_back(&profile.at(placement));
      for (std::size_t size = 0; size + 1 < packed.size(); ++size) {
        TRY_OK(decide_at(packed, size, threshold, all));
      }
    }
    for (const Chooser& one : {all.fit, all.cautious, all.amdahl, all.never, all.always})
      fmt::print("| {} | {} | {} | {:.1f} % | {:.3f} | {:.2f} |\n", threshold, one.name,
                 all.decisions, 100 * one.wrong / all.decisions, one.regret / all.decisions,
                 one.worst);
  }
  fmt::print("\n");
  return ok();
}

}  // namespace rubato::sched
