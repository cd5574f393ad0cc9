// The words of `rubatoctl simulate`. Apart from main.cc, which has the commands that need a
// cluster.
#pragma once

#include "tools/rubatoctl/simulate/simulate.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 calls it so
class App;
}

namespace rubato::ctl {

struct SimulateChoice {
  SimulateOptions options;
  std::string policy;                // --policy: the first line of the table
  std::vector<std::string> compare;  // --compare: the others
};

// `choice` is filled in when the command line is parsed.
CLI::App* add_simulate_command(CLI::App& app, SimulateChoice& choice);

// Progress on standard error, the table on standard output.
Status run_simulate(FileSystem& files, const SimulateChoice& choice);

}  // namespace rubato::ctl
