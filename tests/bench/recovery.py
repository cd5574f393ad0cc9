"""What a change of workers costs on a real API server, with real processes: a worker crash, a node lost by
SIGKILL, a node that falls silent (SIGSTOP of everything on it), and a planned join.

    make bench-recovery        or: RUBATO_BUILD=build/release scripts/with-tools python tests/bench/recovery.py
                                   [--runs 5] [--preset kjv|gpt2-124m] [--events crash kill silence]

Two nodes of one worker each train one long job. A loss is timed from the signal to the first step that the
survivor commits in the next generation; no step is ever done twice. A join is timed by the survivor's own
rounds: the time between the last round of the old generation and the first of the new one, less a usual round
of the new one; and the longest round while the newcomer started and pulled its state. A round is a step, or one
that has to be redone because a gradient outgrew its exponents: that is training's doing and no join's, so it
does not count for the round beside it.
Prints a table, writes build/bench/recovery.json.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))
from cluster import Cluster, wait_quickly  # noqa: E402
from control_plane import ControlPlane  # noqa: E402
from jobs import Job, wall_seconds  # noqa: E402
from table import markdown, spread  # noqa: E402

LINE = re.compile(r"^(\S+Z) step=(\d+) .* generation=(\d+)$")
REDONE = re.compile(r"^(\S+Z) .* INFO step: round \d+ of step \d+: redo$")
BEGUN = re.compile(r" INFO step: generation (\d+): ")
EVENT_LIMIT_S = 60
JOIN_LIMIT_S = 300
PRESETS = {  # the demo's model and batch; and 1.5 GB of state
    "kjv": {"preset": "gpt2-demo", "length": 128, "batch": 16, "micro": 2, "settle": 25},
    "gpt2-124m": {"preset": "gpt2-124m", "length": 64, "batch": 16, "micro": 1, "settle": 3},
    "gpt2-124m-4096": {"preset": "gpt2-124m", "length": 256, "batch": 16, "micro": 2, "settle": 3},  # tokens a step
}
GOALS = {"worker crash": 0.5, "node loss, SIGKILL": 1.0, "node loss, silence": 4.0}


class Steps:
    """One worker's log, read as it grows: its steps as rows (wall seconds, step, generation), and its rounds,
    which are the steps and what was redone, as (wall seconds, generation)."""

    def __init__(self, path):
        self.path, self.offset, self.rows, self.rounds, self.generation = path, 0, [], [], 0

    def read(self):
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            data = file.read()
        whole = data[:data.rfind(b"\n") + 1]
        self.offset += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            if (found := LINE.match(line)) and "replay=1" not in line:
                self.rows.append((wall_seconds(found[1]), int(found[2]), int(found[3])))
                self.rounds.append((self.rows[-1][0], self.rows[-1][2]))
            elif found := REDONE.match(line):
                self.rounds.append((wall_seconds(found[1]), self.generation))
            elif found := BEGUN.search(line):
                self.generation = int(found[1])
        return self.rows


class Bench:
    def __init__(self, cluster, job, settle):
        self.cluster, self.job, self.settle = cluster, job, settle
        self.found = {name: [] for name in [*GOALS, "planned join"]}
        self.joins, self.steps = [], None

    def survivor(self):
        """The worker of rank 0 is never hurt; its log tells the time."""
        pod = self.job.pod_of_rank(0)
        uid = self.job.pods()[pod]["metadata"]["uid"]
        if self.steps is None or uid not in str(self.steps.path):
            self.steps = Steps(self.job.log_files()[uid])
        return self.steps

    def settled(self):
        """Two workers train, and have done so for some steps. The pod that is to be hurt."""
        self.job.wait_members(2, JOIN_LIMIT_S)
        steps = self.survivor()
        wait_quickly(steps.read, JOIN_LIMIT_S, "a first step")
        goal = steps.read()[-1][1] + self.settle
        wait_quickly(lambda: steps.read()[-1][1] >= goal, JOIN_LIMIT_S, "some steps with two workers")
        return self.job.pod_of_rank(1)

    def hurt(self, event, action):
        steps = self.survivor()
        generation = steps.read()[-1][2]
        began = time.time()
        action()
        wait_quickly(lambda: steps.read()[-1][2] > generation, EVENT_LIMIT_S, event)
        first = next(row for row in steps.rows if row[2] > generation)
        assert [row[1] for row in steps.rows] == list(range(steps.rows[0][1], steps.rows[-1][1] + 1))
        self.note(event, first[0] - began)
        return first[2]

    def joined(self, began, generation):
        """The cost of the join that followed, to those who trained meanwhile."""
        self.job.wait_members(2, JOIN_LIMIT_S)
        steps = self.survivor()
        wait_quickly(lambda: steps.read()[-1][2] > generation, JOIN_LIMIT_S, "the join")
        goal = steps.rows[-1][1] + self.settle
        wait_quickly(lambda: steps.read()[-1][1] >= goal, JOIN_LIMIT_S, "some steps after the join")
        at = next(i for i, (_, g) in enumerate(steps.rounds) if g > generation)
        gaps = [b[0] - a[0] for a, b in zip(steps.rounds, steps.rounds[1:])]
        alone = [gap for gap, (end, g) in zip(gaps, steps.rounds[1:at]) if g == generation and end > began]
        usual = statistics.median(gaps[at:])
        self.joins.append({"switch": gaps[at - 1], "step_before": statistics.median(alone), "step_after": usual,
                           "longest": max(alone + [gaps[at - 1]])})
        self.note("planned join", max(0.0, gaps[at - 1] - usual))

    def note(self, event, seconds):
        self.found[event].append(seconds)
        print(f"  {event}: {seconds:.3f} s", file=sys.stderr)

    # ---- events ----

    def crash(self):
        pod = self.settled()
        pid = self.job.workers()[pod][0]
        self.hurt("worker crash", lambda: os.kill(pid, signal.SIGKILL))

    def kill(self):
        node = self.cluster.node_of(self.settled())
        generation = self.hurt("node loss, SIGKILL", node.kill)
        self.replace(node, generation)

    def silence(self):
        node = self.cluster.node_of(self.settled())
        generation = self.hurt("node loss, silence", node.freeze)
        self.replace(node, generation)

    def replace(self, node, generation):
        self.cluster.remove_node(node)
        began = time.time()
        self.cluster.add_node()
        self.joined(began, generation)


def measure(build, preset, runs, events):
    shape = dict(PRESETS[preset])
    settle = shape.pop("settle")
    with ControlPlane(controller_manager=True) as plane, Cluster(plane, build) as cluster:
        cluster.add_nodes(2)
        job = cluster.apply(Job("bench", steps=1000000, gpus=(1, 2), every=1000000, ledger=False, **shape))
        bench = Bench(cluster, job, settle)
        try:
            for _ in range(runs):
                for event in events:
                    getattr(bench, event)()
        except BaseException:
            print(cluster.explain(), file=sys.stderr)
            raise
        bench.settled()
        rows = bench.steps.rows
        gaps = [b[0] - a[0] for a, b in zip(rows, rows[1:])]
        job.delete()
        job.wait_gone(60)
        return bench, statistics.median(gaps)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--preset", default="kjv", choices=PRESETS)
    parser.add_argument("--events", nargs="+", default=["crash", "kill", "silence"])
    parser.add_argument("--out", default=str(ROOT / "build/bench/recovery.json"))
    args = parser.parse_args()
    bench, step = measure(os.environ["RUBATO_BUILD"], args.preset, args.runs, args.events)

    out = pathlib.Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"preset": args.preset, "step_seconds": step, "seconds": bench.found,
                               "joins": bench.joins}, indent=1))
    rows = []
    for event, values in bench.found.items():
        if not values:
            continue
        if event in GOALS:
            rows.append([event, "signal to the next committed step", spread(values).text("{:.2f}"),
                         f"≤ {GOALS[event]} s", len(values)])
        else:
            rows.append([event, "stall: the step of the switch, less a usual one after it",
                         spread(values).text("{:.3f}"), f"≤ a step ({step:.3f} s)", len(values)])
    if bench.joins:
        for what, key in {"a usual step of the two, after it": "step_after",
                          "a usual step of the one, before it": "step_before",
                          "longest round, from the node's start to the switch": "longest"}.items():
            rows.append(["planned join", what, spread([j[key] for j in bench.joins]).text("{:.3f}"), "",
                         len(bench.joins)])
    print(f"Model {args.preset}; a step takes {step * 1e3:.0f} ms (median over the run)\n")
    print(markdown(["event", "what is timed", "seconds: median (min–max)", "goal", "n"], rows))


if __name__ == "__main__":
    main()
