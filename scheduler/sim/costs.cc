#include "scheduler/sim/costs.h"

namespace rubato::sched::sim {

CostModel restart_costs() {
  return {.name = "restart",
          .source = "30 s for each start and each change (Pollux, OSDI'21)",
          .start_ms = 30'000,
          .restart_ms = 30'000,
          .release_ms = 0,
          .rescale_ms = 30'000,
          .join_ms = 0};
}

CostModel in_place_costs() {
  return {.name = "in-place",
          .source =
              "30 s for each start; a change stalls 0.6 s (measured), newcomers prepare for "
              "30 s beside it, leavers free their GPUs after 1 s (assumed); a lost node stalls "
              "2.6 s (measured)",
          .start_ms = 30'000,
          .restart_ms = 30'000,
          .release_ms = 1'000,
          .rescale_ms = 600,
          .join_ms = 30'000,
          .in_place = true,
          .loss_ms = 2'600,
          .park_ms = 300'000};
}

CostModel rubick_costs() {
  return {.name = "rubick",
          .source = "260 s for each start and each change (Rubick, MLSys'25)",
          .start_ms = 260'000,
          .restart_ms = 260'000,
          .release_ms = 0,
          .rescale_ms = 260'000,
          .join_ms = 0};
}

std::optional<CostModel> costs_named(std::string_view name) {
  for (CostModel model : {restart_costs(), in_place_costs(), rubick_costs()})
    if (model.name == name) return model;
  return std::nullopt;
}

}  // namespace rubato::sched::sim
