// sim: the coordinator and the agents through seeded trouble in virtual time.
//   sim --seed 7 --verbose      one run, told line by line
//   sim --seeds 100 [--seed N]  N … N+99; prints the seed and the command of each that fails
#include "tests/sim/sim_cluster.h"

#include <chrono>
#include <cstdlib>
#include <string>

#include <fmt/core.h>

int main(int argc, char** argv) {
  rubato::sim::SimOptions options;
  std::uint64_t seeds = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto value = [&]() -> std::uint64_t {
      return i + 1 < argc ? std::strtoull(argv[++i], nullptr, 10) : 0;
    };
    if (argument == "--seed")
      options.seed = value();
    else if (argument == "--seeds")
      seeds = value();
    else if (argument == "--verbose")
      options.verbose = true;
    else if (argument == "--faults")
      options.faults = static_cast<int>(value());
    else {
      fmt::print(stderr, "usage: sim [--seed N] [--seeds COUNT] [--faults COUNT] [--verbose]\n");
      return 2;
    }
  }
  const std::uint64_t first = options.seed;
  int failed = 0;
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    options.seed = seed;
    // The shape of the job follows from the seed too.
    rubato::Rng rng(seed);
    options.pods = 2 + static_cast<int>(rng.below(4));
    options.slots = 1 + static_cast<std::uint32_t>(rng.below(2));
    options.min_workers = 1 + static_cast<std::uint32_t>(rng.below(2));
    const auto begin = std::chrono::steady_clock::now();
    const auto result = rubato::sim::SimCluster(options).run();
    const double real =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    fmt::print(
        "seed {}: {} ({:.0f} s virtual in {:.1f} s, {} generations, {} decisions, {:016x})\n", seed,
        result.ok ? "ok" : result.what, result.virtual_seconds, real, result.generations,
        result.decisions, result.digest);
    if (result.ok) continue;
    ++failed;
    fmt::print("  replay: sim --seed {} --faults {} --verbose\n", seed, options.faults);
  }
  return failed == 0 ? 0 : 1;
}
