"""What policies make of the Pollux workloads as Pollux' own simulator plays them (16 nodes of 4 T4, rounds of 60 s, 30 s
a change, batches that adapt under policies that ask for goodput), beside the figures of its artifact.

    tests/bench/pollux.py --data ../shared/data/pollux     traces/, workloads*/, results/ of the OSDI'21 artifact

Each simulation is kept in build/bench/pollux, so that a run that was stopped goes on where it was.
"""

import argparse
import csv
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from table import markdown

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build/bench/bin/rubatoctl"
KEPT = ROOT / "build/bench/pollux"
LOADS = {"0.5": "workloads-0.5", "1.0": "workloads", "1.5": "workloads-1.5", "2.0": "workloads-2.0"}
# Two queues, as the artifact has them.
TIRESIAS = "tiresias:firstLimitGpuSeconds=57600:secondLimitGpuSeconds=1000000000"
# Name in the table, policy, further words, whether a seed changes it.
ROWS = [("pollux", "pollux", [], True),
        ("sia", "sia", [], False),
        ("tiresias, tuned sizes and batches", TIRESIAS, [], False),
        ("optimus, tuned batches, speeds and work known", "optimus", ["--profiled"], False),
        ("rubato, work left unknown", "rubato", ["--no-oracle"], False),
        ("rubato, work left known", "rubato", [], False)]
KEYS = ["jctMeanSeconds", "jctP99Seconds", "rhoWorst", "restarts", "rescales"]


def simulated(data, workload, policy, words, seed):
    """What the summary says by KEYS, and the completion time of each job."""
    if seed is not None:
        policy = f"{policy}:seed={seed}"
    program = PROGRAM.stat()
    name = "-".join([workload.parent.name, workload.stem, policy, *words]).replace("/", "_")
    kept = KEPT / f"{name}-{program.st_size}-{program.st_mtime_ns}.json"
    if not kept.exists():
        with tempfile.TemporaryDirectory() as out:
            subprocess.run([PROGRAM, "simulate", "--mode", "pollux-osdi21", "--trace", workload, "--profiles", data / "traces",
                            "--nodes", "16x4:T4", "--policy", policy, *words, "--out", out],
                           check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            run = json.loads((pathlib.Path(out) / "summary.json").read_text())["runs"][0]
            jobs = list(csv.DictReader((pathlib.Path(out) / f"jobs-{policy}-restart.csv").open()))
        KEPT.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps({**{key: run[key] for key in KEYS}, "jcts": [float(job["jct_s"]) for job in jobs]}))
    return json.loads(kept.read_text())


def published(data):
    """Mean completion time by policy and load, means over the workloads."""
    seen = {}
    for row in csv.DictReader((data / "results/jobload.csv").open()):
        seen.setdefault((row["policy"], row["load"]), []).append(float(row["mean_jct_seconds"]))
    return {key: statistics.mean(values) for key, values in seen.items()}


def cell(runs_by_seed, reference):
    """Of each seed its mean over the workloads; p99 pooled over workloads and seeds."""
    means = [statistics.mean(run["jctMeanSeconds"] for run in runs) for runs in runs_by_seed]
    pooled = sorted(jct for runs in runs_by_seed for run in runs for jct in run["jcts"])
    worst = max(run["rhoWorst"] for runs in runs_by_seed for run in runs)
    text = f"{statistics.mean(means):.0f}"
    if len(means) > 1:
        text += f" ({min(means):.0f}–{max(means):.0f})"
    if reference:
        text += f", {statistics.mean(means) / reference - 1:+.1%}"
    return f"{text} / {pooled[int(0.99 * len(pooled))] / 3600:.1f} / {worst:.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=ROOT.parent / "shared/data/pollux", type=pathlib.Path)
    parser.add_argument("--loads", nargs="+", default=list(LOADS), choices=list(LOADS))
    parser.add_argument("--seeds", default=5, type=int, help="of Pollux' search")
    parser.add_argument("--policies", nargs="+", default=sorted({row[1].split(":")[0] for row in ROWS}))
    args = parser.parse_args()
    reference = published(args.data)
    rows = []
    for name, policy, words, has_seeds in (row for row in ROWS if row[1].split(":")[0] in args.policies):
        cells = []
        for load in args.loads:
            workloads = sorted((args.data / LOADS[load]).glob("*.csv"))
            seeds = range(args.seeds) if has_seeds else [None]
            runs = [[simulated(args.data, workload, policy, words, seed) for workload in workloads] for seed in seeds]
            cells.append(cell(runs, reference.get((policy.split(":")[0], load))))
            print(f"{name}, load {load}: {cells[-1]}", file=sys.stderr)
        rows.append([name, *cells])
    rows += [[f"published: {policy}", *(f"{reference[policy, load]:.1f}" for load in args.loads)]
             for policy in ("pollux", "tiresias", "optimus")]
    print(f"Means over the workloads of mean JCT, s (least and most of {args.seeds} seeds), and by how much it is above the "
          "published one / p99 JCT of all jobs, h / worst rho of all:\n")
    print(markdown(["policy", *(f"load {load}" for load in args.loads)], rows) + "\n")


if __name__ == "__main__":
    main()
