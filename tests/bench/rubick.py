"""What the policies make of Rubick's trace (406 jobs on 8 nodes of 8 A800, 260 s charged for each start and change):
mean and p99 completion time, makespan. Every policy knows the speeds on all sizes, as Rubick does from its profiles.
The trace is one, and nothing is drawn; the spread is over the interval between rounds.

    tests/bench/rubick.py --data ../shared/data/rubick     traces/, workloads/ of the MLSys'25 artifact
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from table import markdown, spread

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build/bench/bin/rubatoctl"
ROUNDS_S = [10, 30, 60, 120]
PUBLISHED = {"mean": 3638, "makespan": 58680}
GOAL_MEAN_S, GOAL_BELOW, GOAL_MAKESPAN_S = 1575, 0.85, 65000
# What a change costs is a parameter of rubato, which an operator sets to what it measures.
RUBATO = ["rubato", "rubato:prepareSeconds=260"]
# Policies that are given the size and plan of the trace, then elastic ones.
POLICIES = ["fifoBackfill", "sjf", "srtf", "srsf", "tiresias", "qssf",
            "marginalThroughput", "afs", "optimus", "lyra", "themis", "rubick", *RUBATO]


def simulate(data, policies, round_s):
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([PROGRAM, "simulate", "--trace", data / "workloads/workload-base.csv",
                        "--profiles", data / "traces", "--nodes", "8x8:A800", "--cost", "rubick", "--profiled",
                        "--round", str(round_s), "--out", out, "--policy", policies[0], "--compare", ",".join(policies[1:])],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return {run["policy"]: run for run in json.loads((pathlib.Path(out) / "summary.json").read_text())["runs"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=ROOT.parent / "shared/data/rubick", type=pathlib.Path)
    data = parser.parse_args().data
    seen = {name: [] for name in POLICIES}
    for round_s in ROUNDS_S:
        for name, run in simulate(data, POLICIES, round_s).items():
            seen[name].append(run)
        print(f"rounds of {round_s} s", file=sys.stderr)

    def column(runs, key):
        return spread([run[key] for run in runs]).text("{:.0f}")

    print(f"Rounds of {', '.join(map(str, ROUNDS_S))} s: median (min–max). Seconds.\n")
    print(markdown(["policy", "knows", "mean JCT", "p99 JCT", "makespan", "restarts", "changes"], [
        [name, runs[0]["knows"], column(runs, "jctMeanSeconds"), column(runs, "jctP99Seconds"),
         column(runs, "makespanSeconds"), column(runs, "restarts"), column(runs, "rescales")]
        for name, runs in seen.items()]) + "\n")
    median = {name: spread([run["jctMeanSeconds"] for run in runs]).median for name, runs in seen.items()}
    best = min(median[name] for name in ("sjf", "srsf", "rubick"))
    print(f"rubick: {median['rubick'] / PUBLISHED['mean']:.2f} times the published mean of {PUBLISHED['mean']} s "
          f"(goal 0.95–1.05); published makespan {PUBLISHED['makespan']} s.")
    for name in RUBATO:
        makespan = spread([run["makespanSeconds"] for run in seen[name]]).median
        print(f"{name}: {median[name]:.0f} s (goal ≤ {GOAL_MEAN_S}), {median[name] / best:.2f} of the best of sjf, srsf "
              f"and rubick (goal ≤ {GOAL_BELOW}), makespan {makespan:.0f} s (goal ≤ {GOAL_MAKESPAN_S}).")


if __name__ == "__main__":
    main()
