// The stories that worker_alone tells: more workers, kills at named phases, a join, a leave,
// freezes, stops, and chaos by seed. Each throws (std::runtime_error) when it cannot be told to its
// end.
#pragma once

#include "tests/integration/worker/stage.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace rubato::worker {

using Story = std::function<void(Stage&)>;

// `size` workers from the seed to the end; the second has the plan `fault`.
void run_with(Stage& stage, int size, const std::string& fault = "");
// Two workers, one told to be killed in its second step: neither is, nor is a ledger written.
void heeds_no_fault(Stage& stage);
std::vector<std::pair<std::string, Story>> all_stories(const Options& options);

}  // namespace rubato::worker
