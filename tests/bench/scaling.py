"""Speed of two workers against one: the same job, on the same machine, told in turn to use one worker and two.

    make bench-scaling         or: RUBATO_BUILD=build/release scripts/with-tools python tests/bench/scaling.py
                                   [--runs 5] [--presets kjv gpt2-124m gpt2-124m-4096]

Two nodes of one worker each on a real API server; a worker computes with one thread. `kubectl scale` moves the job
between one GPU and two; steps of a phase are timed by the log of the worker that stays. The median step of each
phase counts (of the largest batch one step is timed), and none of a switch. Ideal is the number of cores, as long as
it is at least two.
"""

import argparse
import os
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))
from cluster import Cluster, wait_quickly  # noqa: E402
from control_plane import ControlPlane  # noqa: E402
from jobs import Job  # noqa: E402
from recovery import JOIN_LIMIT_S, PRESETS, Steps  # noqa: E402
from table import markdown, spread  # noqa: E402

STEPS = {"kjv": 40, "gpt2-124m": 3, "gpt2-124m-4096": 1}  # timed in each phase
GOAL = 1.6


class Bench:
    def __init__(self, job, count):
        self.job, self.count, self.steps = job, count, None

    def phase(self, workers):
        """The median step with so many workers, in seconds."""
        self.job.patch({"gpus": {"max": workers}})
        self.job.wait_members(workers, JOIN_LIMIT_S)
        if self.steps is None:
            pod = self.job.pod_of_rank(0)
            self.steps = Steps(self.job.log_files()[self.job.pods()[pod]["metadata"]["uid"]])
        generation = self.job.status()["membership"]["generation"]

        def mine():
            return [row for row in self.steps.read() if row[2] == generation]

        wait_quickly(lambda: len(mine()) > self.count, JOIN_LIMIT_S, f"{self.count} steps with {workers}")
        rows = mine()
        return statistics.median(b[0] - a[0] for a, b in zip(rows, rows[1:]))


def measure(build, preset, runs):
    shape = dict(PRESETS[preset])
    shape.pop("settle")
    with ControlPlane(controller_manager=True) as plane, Cluster(plane, build) as cluster:
        cluster.add_nodes(2)
        job = cluster.apply(Job("bench", steps=1000000, gpus=(1, 1), every=1000000, ledger=False, **shape))
        bench = Bench(job, STEPS[preset])
        one, two = [], []
        for _ in range(runs):
            one.append(bench.phase(1))
            two.append(bench.phase(2))
            print(f"  {preset}: one {one[-1]:.3f} s, two {two[-1]:.3f} s a step", file=sys.stderr)
        job.delete()
        job.wait_gone(60)
    return one, two, shape["batch"] * shape["length"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--presets", nargs="+", default=list(STEPS), choices=list(STEPS))
    args = parser.parse_args()
    rows = []
    for preset in args.presets:
        one, two, tokens = measure(os.environ["RUBATO_BUILD"], preset, args.runs)
        rows.append([preset, f"{tokens}", spread([tokens / s for s in one]).text("{:.0f}"),
                     spread([tokens / s for s in two]).text("{:.0f}"),
                     spread([a / b for a, b in zip(one, two)]).text("{:.2f}"), f"≥ {GOAL}", len(one)])
    print(markdown(["model", "tokens a step", "tokens/s, one worker: median (min–max)", "two workers", "ratio", "goal", "n"],
                   rows))


if __name__ == "__main__":
    main()
