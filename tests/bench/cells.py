#!/usr/bin/env python3
"""The sharing anomaly (HiveD, OSDI 2020) on a trace: jobs that start later than they would in a cluster of their
queue's own, with quotas and with cells of the same size.

    tests/bench/cells.py TRACE [--loads 0.7,0.9,1.1] [--seeds 3] [--policy fifoBackfill] [--first N]

Three queues get a sixth, a third and half of the nodes, and jobs by the same odds, drawn by seed. Nodes have 8 GPUs and
are as many as give the offered load over the time in which jobs come; a job that fits on one node must be on one. Each
queue is played alone on its share, then all together: with quotas that guarantee the share, with cells, and both where
queues may borrow. A start counts as late if it is more than a round (10 s) later than alone. Jobs that are larger than
their queue's share never run alone, and are left out of the count.
"""

import argparse
import csv
import json
import pathlib
import subprocess
import tempfile

GPUS_OF_NODE = 8
ROUND_S = 10
SHARES = {"a": 1, "b": 2, "c": 3}  # sixths


def jobs_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return [(float(row["submission_time"]), float(row["duration"]), int(row["num_gpu"]))
                for row in csv.DictReader(file)]


def nodes_for(jobs, load):
    span = max(at for at, _, _ in jobs) - min(at for at, _, _ in jobs)
    wanted = sum(seconds * gpus for _, seconds, gpus in jobs)
    return max(6, round(wanted / span / GPUS_OF_NODE / load))


def shares(nodes):
    """Nodes of each queue; the last has what rounding leaves."""
    own = {name: nodes * sixths // 6 for name, sixths in SHARES.items()}
    own["c"] = nodes - own["a"] - own["b"]
    return own


def queues(nodes, kind, borrowing):
    """As in a snapshot."""
    made = []
    for name, sixths in SHARES.items():
        own = shares(nodes)[name]
        queue = {"name": name, "weight": sixths, "borrowing": borrowing}
        if kind == "cells":
            queue["cells"] = [{"gpuType": "G", "level": "node", "count": own}]
        else:
            queue["quotas"] = [{"gpuType": "G", "guaranteed": own * GPUS_OF_NODE}]
        made.append(queue)
    return made


class Player:
    def __init__(self, args):
        self.args = args

    def starts(self, nodes, listed, seed, only=None):
        """By job: submission and start."""
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "queues.json"
            file.write_text(json.dumps(listed), encoding="utf-8")
            command = [self.args.rubatoctl, "simulate", "--trace", self.args.trace, "--queues", str(file),
                       "--nodes", f"{nodes}x{GPUS_OF_NODE}:G", "--compare", self.args.policy, "--cost", "restart",
                       "--round", str(ROUND_S),
                       "--draw-queues", str(seed), "--one-node", "--first", str(self.args.first), "--out", folder]
            if only:
                command += ["--only-queue", only]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            made = pathlib.Path(folder) / f"jobs-{self.args.policy}-restart.csv"
            with open(made, newline="", encoding="utf-8") as rows:
                return {row["id"]: (float(row["submit_s"]), float(row["start_s"] or "inf"))
                        for row in csv.DictReader(rows)}


def without_cells_of_others(listed, only, nodes):
    """The queue as it is alone; the others are there for the draw and have nothing."""
    alone = []
    for queue in listed:
        own = queue["name"] == only
        alone.append({"name": queue["name"], "weight": queue["weight"], "borrowing": False,
                      "cells": [{"gpuType": "G", "level": "node", "count": nodes}] if own else []})
    return alone


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--rubatoctl", default="build/dev/bin/rubatoctl")
    parser.add_argument("--loads", default="0.7,0.9,1.1")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--policy", default="fifoBackfill")
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    jobs = jobs_of(args.trace)
    if args.first:
        jobs = sorted(jobs)[:args.first]
    player = Player(args)
    print("| load | nodes | seed | guarantee | jobs | late | worst, min | mean wait, min (alone) |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for load in (float(word) for word in args.loads.split(",")):
        nodes = nodes_for(jobs, load)
        for seed in range(1, args.seeds + 1):
            alone = {}
            for name, own in shares(nodes).items():
                listed = without_cells_of_others(queues(nodes, "cells", False), name, own)
                alone |= player.starts(own, listed, seed, name)
            for kind in ("quotas", "cells"):
                for borrowing in (False, True):
                    shared = player.starts(nodes, queues(nodes, kind, borrowing), seed)
                    later = [shared[job][1] - at for job, (_, at) in alone.items() if shared[job][1] > at + ROUND_S]
                    waits = [shared[job][1] - submit for job, (submit, _) in alone.items()]
                    own_waits = [at - submit for submit, at in alone.values()]
                    print(f"| {load} | {nodes} | {seed} | {kind}{', borrowing' if borrowing else ''} | {len(alone)} | "
                          f"{len(later)} | {max(later, default=0) / 60:.0f} | {sum(waits) / len(waits) / 60:.1f} "
                          f"({sum(own_waits) / len(own_waits) / 60:.1f}) |", flush=True)


if __name__ == "__main__":
    main()
