"""What the policies make of jobs of Gavel's generator on 36 V100, 36 P100 and 36 K80, by load: mean completion time
with its 95 % confidence interval over seeds, and the ratio of rubato's to the best of Gavel's, seed by seed.

    tests/bench/heterogeneous.py --data ../shared/data/gavel     simulation_throughputs.json of the OSDI'20 artifact

Each simulation is kept in build/bench/heterogeneous, so that a run that was stopped goes on where it was.
"""

import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile

from table import markdown

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build/bench/bin/rubatoctl"
KEPT = ROOT / "build/bench/heterogeneous"
NODES = "9x4:v100,9x4:p100,9x4:k80"
GAVEL = ["gavel", "gavel:objective=1", "gavel:objective=2", "gavelFinish", "gavelFinish:objective=1"]
OTHERS = ["sia", "srtf", "srsf", "allox", "tiresias", "las", "fifoBackfill", "marginalThroughput"]
STUDENT = {3: 4.303, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262}  # 97.5 % by the number of seeds


def simulated(args, policy, cost, load, seed):
    """Mean completion time in seconds; none: it did not end within --limit."""
    words = [f"--throughputs={args.data / 'simulation_throughputs.json'}", "--nodes", NODES, "--round", "360", "--policy", policy,
             "--cost", cost, "--per-hour", str(load), "--jobs", str(args.jobs), "--seed", str(seed)]
    program = PROGRAM.stat()
    kept = KEPT / f"{policy}-{cost}-{load}-{args.jobs}-{seed}-{program.st_size}-{program.st_mtime_ns}.json"
    if not kept.exists():
        with tempfile.TemporaryDirectory() as out:
            try:
                subprocess.run([PROGRAM, "simulate", *words, "--out", out], check=True, timeout=args.limit,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            except subprocess.TimeoutExpired:
                return None
            run = json.loads((pathlib.Path(out) / "summary.json").read_text())["runs"][0]
        if run["unfinished"]:
            return None
        KEPT.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(run["jctMeanSeconds"]))
    return json.loads(kept.read_text())


def with_interval(values, digits):
    if None in values:
        return f"not ended for {values.count(None)} of {len(values)} seeds"
    half = STUDENT[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.mean(values):.{digits}f} ± {half:.{digits}f}"


def ratio(seen, load):
    """Of rubato to that policy of Gavel's whose mean over the seeds is the least."""
    complete = [seen[policy, load] for policy in GAVEL if None not in seen[policy, load]]
    if not complete or None in seen["rubato", load]:
        return "none"
    best = min(complete, key=statistics.mean)
    return with_interval([own / other for own, other in zip(seen["rubato", load], best)], 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=ROOT.parent / "shared/data/gavel", type=pathlib.Path)
    parser.add_argument("--costs", nargs="+", default=["in-place", "restart"])
    parser.add_argument("--loads", nargs="+", default=[2, 4, 6], type=float, help="jobs an hour")
    parser.add_argument("--jobs", default=300, type=int)
    parser.add_argument("--seeds", default=5, type=int, choices=sorted(STUDENT))
    parser.add_argument("--limit", default=120, type=float, help="seconds for one simulation")
    parser.add_argument("--gavel-only", action="store_true", help="rubato and Gavel's policies alone")
    args = parser.parse_args()
    policies = ["rubato", *GAVEL, *([] if args.gavel_only else OTHERS)]
    for cost in args.costs:
        seen = {}
        for load in args.loads:
            for policy in policies:
                seen[policy, load] = [simulated(args, policy, cost, load, seed) for seed in range(1, args.seeds + 1)]
                print(f"{cost}: {load:g} an hour, {policy}", file=sys.stderr)
        print(f"Cost model {cost}; {args.jobs} jobs, seeds 1 to {args.seeds}: mean JCT, s, with its 95 % confidence interval:\n")
        print(markdown(["policy", *(f"{load:g} jobs/h" for load in args.loads)],
                       [[policy, *(with_interval(seen[policy, load], 0) for load in args.loads)] for policy in policies]
                       + [["rubato / best of Gavel's", *(ratio(seen, load) for load in args.loads)]]) + "\n")


if __name__ == "__main__":
    main()
