"""A leading operator that stands still for some seconds, on a real cluster with the chart's leases: three pods train,
SIGSTOP to the leader's process, SIGCONT. What it costs the job: nothing, is the promise.

    make bench-stall           or: RUBATO_BUILD=$PWD/build/bench scripts/with-tools python tests/bench/stall.py
                                   [--runs 10] [--seconds 1 3 6 10]

Prints a table, writes build/bench/stall.json; ends with 1 when a stall cost the job anything.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
for folder in ("tests/e2e", "tests/cluster", "tests/integration"):
    sys.path.insert(0, str(ROOT / folder))
import yaml  # noqa: E402
from stage import CHANGE_S, PodJob, Stage, StallCost, stall_leader, staged  # noqa: E402
from table import markdown, spread  # noqa: E402

PODS = 3
CPU = "120m"  # of a worker: a step takes a tenth of a second
LEASE = "leaderElection.leaseSeconds"


def chart_lease() -> int:
    return yaml.safe_load((ROOT / "helm/rubato/values.yaml").read_text())["leaderElection"]["leaseSeconds"]


def measure(stage: Stage, seconds: list[float], runs: int) -> list[StallCost]:
    job = stage.apply(PodJob("stalled", steps=1000000, gpus=(1, PODS), cpu=CPU, every=1000000))
    costs = []
    for run in range(runs):
        for each in seconds:
            job.wait_members(PODS, CHANGE_S)
            job.wait_step(job.steps_done() + 5)
            costs.append(stall_leader(stage, job, each))
            print(f"  run {run + 1}: {costs[-1]}", file=sys.stderr, flush=True)
            stage.check()
    return costs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seconds", type=float, nargs="+", default=[1, 3, 6, 10])
    parser.add_argument("--out", default=str(ROOT / "build/bench/stall.json"))
    args = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr), \
            contextlib.contextmanager(staged)(None, "stall", PODS, {LEASE: chart_lease()}) as stage:
        costs = measure(stage, args.seconds, args.runs)
    out = pathlib.Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps([dataclasses.asdict(cost) for cost in costs], indent=1))
    rows = []
    for seconds in args.seconds:
        mine = [cost for cost in costs if cost.seconds == seconds]
        rows.append([f"{seconds:g}", len(mine), sum(cost.is_nothing() for cost in mine),
                     sum(len(cost.workers_lost) for cost in mine), sum(len(cost.pods_deleted) for cost in mine),
                     min(cost.fewest_members for cost in mine), sum(cost.generations for cost in mine),
                     sum(cost.is_led_by_other for cost in mine),
                     spread([cost.longest_step for cost in mine]).text("{:.2f}")])
    print(f"Chart's lease of {chart_lease()} s, {PODS} pods of one worker. Goal: nothing lost, nothing deleted, ever.\n")
    print(markdown(["leader stalled, s", "n", "cost nothing", "workers lost", "pods deleted", "fewest members",
                    "generations", "another led after it", "longest step, s: median (min–max)"], rows))
    return 0 if all(cost.is_nothing() for cost in costs) else 1


if __name__ == "__main__":
    sys.exit(main())
