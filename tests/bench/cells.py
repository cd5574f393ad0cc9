#!/usr/bin/env python3
"""The sharing anomaly (HiveD, OSDI 2020) on a trace: jobs that start later than they would in a cluster of their
queue's own, with quotas and with cells of the same size.

    tests/bench/cells.py TRACE [--loads 0.7,0.9,1.1] [--seeds 3] [--policy fifoBackfill] [--first N]

Three queues get a sixth, a third and half of the nodes, and jobs by the same odds, drawn by seed. Nodes have 8 GPUs and
are as many as give the offered load over the time in which jobs come; a job that fits on one node must be on one. Each
queue is played alone on its share, then all together: with quotas that guarantee the share, with cells, and both where
queues may borrow. A start counts as late if it is more than a round (10 s) later than alone. Jobs that are larger than
their queue's share never run alone, and are left out of the count.

"Alone, without cells" is the same share as a cluster that knows no cells, where the other of two equal nodes may be
taken: what is late there is the noise of this count.
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


def of_one(listed, only, cells):
    """The queue as it is alone on its nodes; the others are there for the draw and have nothing."""
    return [{"name": queue["name"], "weight": queue["weight"]}
            | (dict(borrowing=False, cells=queue["cells"]) if cells and queue["name"] == only else {})
            for queue in listed]


def played_alone(player, nodes, seed, cells):
    alone = {}
    for name, own in shares(nodes).items():
        alone |= player.starts(own, of_one(queues(nodes, "cells", False), name, cells), seed, name)
    return alone


def compared(alone, shared):
    """Jobs that start late, the worst of them and the mean wait, in hours."""
    later = [shared[job][1] - at for job, (_, at) in alone.items() if shared[job][1] > at + ROUND_S]
    waits = [shared[job][1] - submit for job, (submit, _) in alone.items()]
    return len(later), max(later, default=0) / 3600, sum(waits) / len(waits) / 3600


def spread(values, digits):
    ordered = sorted(values)
    return (f"{ordered[len(ordered) // 2]:.{digits}f} ({ordered[0]:.{digits}f}–{ordered[-1]:.{digits}f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--rubatoctl", default="build/bench/bin/rubatoctl")
    parser.add_argument("--loads", default="0.7,0.9,1.1")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--policy", default="fifoBackfill")
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    jobs = jobs_of(args.trace)
    if args.first:
        jobs = sorted(jobs)[:args.first]
    player = Player(args)
    print(f"{len(jobs)} jobs, policy {args.policy}, {args.seeds} draws of queues: median (least–most).\n")
    print("| load | nodes | guarantee | late jobs | the worst, h | mean wait, h |")
    print("| --- | --- | --- | --- | --- | --- |")
    for load in (float(word) for word in args.loads.split(",")):
        nodes = nodes_for(jobs, load)
        results = {}
        for seed in range(1, args.seeds + 1):
            alone = played_alone(player, nodes, seed, True)
            results.setdefault("alone", []).append(compared(alone, alone))
            others = compared(alone, played_alone(player, nodes, seed, False))
            results.setdefault("alone, without cells", []).append(others)
            for kind in ("quotas", "cells"):
                for borrowing in (False, True):
                    shared = player.starts(nodes, queues(nodes, kind, borrowing), seed)
                    results.setdefault(kind + (", borrowing" if borrowing else ""), []).append(compared(alone, shared))
        for kind, found in results.items():
            late, worst, wait = zip(*found)
            print(f"| {load} | {nodes} | {kind} | {spread(late, 0)} | {max(worst):.0f} | {spread(wait, 1)} |",
                  flush=True)


if __name__ == "__main__":
    main()
