// What the models of speed (scheduler/perf) predict of measured data that they were not shown.
//
//   build/bench/bin/perf_bench [--data ../shared/data]
//
// Data that is not there is passed over, and the table says so. All of it is deterministic: what is
// held out is drawn by fixed seeds.
#include "tests/bench/perf/tables.h"

#include <CLI/CLI.hpp>
#include <fmt/core.h>

namespace rubato::sched {
namespace {

int report(const std::filesystem::path& data) {
  struct Table {
    const char* about;
    std::filesystem::path folder;
    Status (*print)(const std::filesystem::path& folder);
  };
  const Table tables[] = {
      {"Steps on placements that were not seen, by the Pollux model (a quarter of the placements "
       "held out, seeds 1 to 3)",
       data / "pollux/traces", report_pollux},
      {"Iterations under execution plans that were not seen, the global batch fixed (a quarter of "
       "the plans of a model held out, seeds 1 to 3)",
       data / "rubick/traces", report_plans},
      {"A pass (forward and backward, all layers) on a GPU type of which two times of one layer "
       "were "
       "seen at each tensor degree, and all layers on the other types",
       data / "sailor/profiles", report_types},
      {"Decisions to grow from n to 2n GPUs (Pollux' profiles, the batch fixed, packed placements "
       "of "
       "up to n GPUs seen); regret in the throughput before",
       data / "pollux/traces", report_growth},
  };
  for (const Table& table : tables) {
    fmt::print("{}:\n\n", table.about);
    if (!std::filesystem::exists(table.folder)) {
      fmt::print("skipped: the data is not there\n\n");
      continue;
    }
    if (const Status status = table.print(table.folder); !status.ok()) {
      fmt::print(stderr, "{}\n", status.error().to_string());
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace rubato::sched

int main(int argc, char** argv) {
  CLI::App app("What the models of speed predict of measured data that they were not shown");
  std::string data = "../shared/data";
  app.add_option("--data", data, "the folder of pollux/, rubick/ and sailor/");
  CLI11_PARSE(app, argc, argv);
  return rubato::sched::report(data);
}
