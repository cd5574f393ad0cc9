"""What the policies make of the Pollux workloads (16 nodes of 4 T4), by load: mean and p99 completion time, and the
worst finish-time fairness. Elastic policies choose sizes; the others give each job the size that its trace asks for.

    tests/bench/policies.py --data ../shared/data/pollux     traces/, workloads*/ of the OSDI'21 artifact
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from table import markdown

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build/bench/bin/rubatoctl"
LOADS = {"0.5": "workloads-0.5", "1": "workloads", "1.5": "workloads-1.5", "2": "workloads-2.0"}
# Policy, what it is told, how it is named in the table.
ROWS = [("rubato", True, "rubato, work left known"), ("srtf", True, "srtf, work left known"),
        ("rubato", False, "rubato, nothing known"), ("tiresias", False, "tiresias, nothing known"),
        ("marginalThroughput", False, "marginalThroughput, nothing known"), ("fifoBackfill", False, "fifoBackfill, nothing known")]


def simulate(workload, profiles, policies, cost, is_told):
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([PROGRAM, "simulate", "--trace", workload, "--profiles", profiles, "--nodes", "16x4:T4",
                        "--policy", policies[0], *(["--compare", ",".join(policies[1:])] if policies[1:] else []),
                        "--cost", cost, "--out", out, *([] if is_told else ["--no-oracle"])],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return {run["policy"]: run for run in json.loads((pathlib.Path(out) / "summary.json").read_text())["runs"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=ROOT.parent / "shared/data/pollux", type=pathlib.Path)
    parser.add_argument("--costs", nargs="+", default=["in-place", "restart"])
    args = parser.parse_args()
    for cost in args.costs:
        seen = {row: {} for row in ROWS}
        for load, folder in LOADS.items():
            for workload in sorted((args.data / folder).glob("*.csv")):
                for is_told in (True, False):
                    rows = [row for row in ROWS if row[1] == is_told]
                    runs = simulate(workload, args.data / "traces", [row[0] for row in rows], cost, is_told)
                    for row in rows:
                        seen[row].setdefault(load, []).append(runs[row[0]])
            print(f"{cost}: load {load}", file=sys.stderr)
        count = len(next(iter(seen.values()))["1"])
        print(f"Cost model {cost}; means over {count} workloads of mean JCT, s / p99 JCT, h / worst rho of all. What is not "
              "elastic gives a job the size that its trace asks for, which the authors of the trace have tuned:\n")
        print(markdown(["policy", *(f"load {load}" for load in LOADS)], [
            [row[2], *(f"{statistics.mean(r['jctMeanSeconds'] for r in seen[row][load]):.0f} / "
                       f"{statistics.mean(r['jctP99Seconds'] for r in seen[row][load]) / 3600:.1f} / "
                       f"{max(r['rhoWorst'] for r in seen[row][load]):.2f}" for load in LOADS)] for row in ROWS]) + "\n")


if __name__ == "__main__":
    main()
