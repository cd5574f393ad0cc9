"""What a change of workers costs on a real API server, with real processes: a worker crash (SIGKILL to the worker), a
node lost (SIGKILL to everything on it), a node that falls silent (SIGSTOP of everything on it: what a pulled cable or
lost power is to the others, too), and a planned join.

    make bench-recovery        or: RUBATO_BUILD=build/release scripts/with-tools python tests/bench/recovery.py
                                   [--runs 10] [--members 2 4 8] [--preset small|kjv|gpt2-124m|script]
                                   [--events crash kill silence]

The preset "script" is examples/pytorch/kjv.py under runtime pytorch (make bench-pytorch-recovery): the worker that dies
is an interpreter, and a newcomer imports torch before it joins.

Nodes of one worker each train one long job. A loss is timed from the signal to the first step that rank 0, which is
never hurt, commits in the next generation; no step is ever done twice. Its phases are in the leader's log:

    detect   the signal -> the leader decides on a generation      written  -> the record has it
    answered -> all survivors have stopped and said what they hold stands   -> all survivors are in it
    step     -> the open step is committed: it can be before the leader has heard that all are in

written is beside answered, both count from the decision. What has to be computed again, or had not been computed yet,
are the micro-batches that no survivor held, shared by the survivors; a micro-batch takes what a usual step takes,
divided by how many one worker computes in it. "Beyond" is the whole less that.

The preset "small" has steps of some 50 ms when eight workers share two cores; so little is to be computed again, and
what is timed is the recovery. With more workers than cores a micro-batch in hand takes as long as they all need.

A join is timed by rank 0's own rounds: the time between the last round of the old generation and the first of the new
one, less a usual round of the new one; and the longest round while the newcomer started and pulled its state. A round
is a step, or one that has to be redone because a gradient outgrew its exponents: that is training's doing and no
join's, so it does not count for the round beside it. Prints tables, writes build/bench/recovery.json.
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
from script_jobs import TorchJob  # noqa: E402
from table import markdown, spread  # noqa: E402

LINE = re.compile(r"^(\S+Z) step=(\d+) .* generation=(\d+)$")
REDONE = re.compile(r"^(\S+Z) .* INFO step: round \d+ of step \d+: redo$")
BEGUN = re.compile(r" INFO step: generation (\d+): ")
DECIDED = re.compile(r"^(\S+Z) INFO coordinator: \S+: generation (\d+) with ", re.M)
STANDS = re.compile(r"^(\S+Z) INFO coordinator: \S+: generation (\d+) stands after \S+ s "
                    r"\(answered (\S+), written (\S+); (\d+) of (\d+) micro-batch(?:es)? kept\)", re.M)
EVENT_LIMIT_S = 60
JOIN_LIMIT_S = 300
READ_BACK_BYTES = 1 << 20  # of the leader's log
PRESETS = {  # a small one, the demo's model and batch, and 1.5 GB of state
    "small": {"layers": 2, "hidden": 64, "length": 64, "batch": 16, "micro": 1, "settle": 25},
    "kjv": {"preset": "gpt2-demo", "length": 128, "batch": 16, "micro": 2, "settle": 25},
    "gpt2-124m": {"preset": "gpt2-124m", "length": 64, "batch": 16, "micro": 1, "settle": 3},
    "gpt2-124m-4096": {"preset": "gpt2-124m", "length": 256, "batch": 16, "micro": 2, "settle": 3},  # tokens a step
    "script": {"settle": 25},
}
SCRIPT_GOAL_S = 0.5  # of losses under runtime pytorch
CRASH, KILL, SILENCE, JOIN = "worker crash", "node loss, SIGKILL", "node loss, silence", "planned join"
PHASES = ["detect", "answered", "written", "stands", "step"]


def goal_of(event, members, preset):
    """(which figure, seconds)"""
    if preset == "script" and event != SILENCE:
        return "beyond", SCRIPT_GOAL_S
    if event == CRASH:
        return "beyond", 0.2 if members >= 8 else 0.1
    return ("beyond", 0.2) if event == KILL else ("total", 3.0)


class Script(TorchJob):
    """Its workers are its interpreters; they may die as often as they are killed."""

    def __init__(self, name, gpus):
        super().__init__(name, steps=1000000, gpus=gpus, every=1000000,
                         more={"faultTolerance": {"maxRestarts": 1000}})

    def workers(self):
        return self.interpreters()


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
    def __init__(self, cluster, job, members, settle):
        self.cluster, self.job, self.members, self.settle = cluster, job, members, settle
        self.losses, self.joins, self.steps = [], [], None

    def survivor(self):
        """The worker of rank 0 is never hurt; its log tells the time."""
        pod = self.job.pod_of_rank(0)
        uid = self.job.pods()[pod]["metadata"]["uid"]
        if self.steps is None or uid not in str(self.steps.path):
            self.steps = Steps(self.job.log_files()[uid])
        return self.steps

    def settled(self):
        """All train, and have done so for some steps. The pod that is to be hurt, and what a step takes."""
        steps = wait_quickly(self.all_train, JOIN_LIMIT_S, f"some steps with {self.members} workers")
        times = [row[0] for row in steps.rows[-self.settle:]]
        return self.job.pod_of_rank(self.members // 2), statistics.median(b - a for a, b in zip(times, times[1:]))

    def all_train(self):
        """The survivor's steps, once enough of them were made in the generation that the record names, which is whole."""
        membership = self.job.status().get("membership", {})
        if membership.get("phase") != "Training" or len(membership["members"]) != self.members:
            return None
        steps = self.survivor()
        recent = [row for row in steps.read()[-self.settle:] if row[2] == membership["generation"]]
        return steps if len(recent) == self.settle else None

    def hurt(self, event, step, action):
        steps = self.survivor()
        generation = steps.read()[-1][2]
        leader = self.cluster.operators[self.cluster.leader()]
        began = time.time()
        action()
        wait_quickly(lambda: steps.read()[-1][2] > generation, EVENT_LIMIT_S, event)
        first = next(row for row in steps.rows if row[2] > generation)
        assert [row[1] for row in steps.rows] == list(range(steps.rows[0][1], steps.rows[-1][1] + 1))
        stands = wait_quickly(lambda: told_since(STANDS, leader.log, began), EVENT_LIMIT_S, "the leader's word on it")
        self.note(event, step, began, first, told_since(DECIDED, leader.log, began), stands[-1])
        return first[2]

    def note(self, event, step, began, first, decided, stands):
        total = first[0] - began
        detect, stood = wall_seconds(decided[0][1]) - began, wall_seconds(stands[1]) - began
        answered, written, kept, whole = float(stands[3]), float(stands[4]), int(stands[5]), int(stands[6])
        of_one = -(-whole // self.members)
        again = -(-(whole - kept) // (self.members - 1)) * step / of_one
        self.losses.append({"event": event, "members": self.members, "total": total, "usual_step": step, "kept": kept,
                            "micro_batches": whole, "again": again, "beyond": total - again, "detect": detect,
                            "answered": answered, "written": written, "stands": stood - detect - max(answered, written),
                            "step": max(0.0, total - stood), "attempts": len(decided)})
        print(f"  {event} of {self.members}: {self.losses[-1]}", file=sys.stderr, flush=True)

    def joined(self, began, generation):
        """The cost of the join that followed, to those who trained meanwhile."""
        self.job.wait_members(self.members, JOIN_LIMIT_S)
        steps = self.survivor()
        wait_quickly(lambda: steps.read()[-1][2] > generation, JOIN_LIMIT_S, "the join")
        goal = steps.rows[-1][1] + self.settle
        wait_quickly(lambda: steps.read()[-1][1] >= goal, JOIN_LIMIT_S, "some steps after the join")
        at = next(i for i, (_, g) in enumerate(steps.rounds) if g > generation)
        gaps = [b[0] - a[0] for a, b in zip(steps.rounds, steps.rounds[1:])]
        alone = [gap for gap, (end, g) in zip(gaps, steps.rounds[1:at]) if g == generation and end > began]
        usual = statistics.median(gaps[at:])
        self.joins.append({"members": self.members, "stall": max(0.0, gaps[at - 1] - usual), "switch": gaps[at - 1],
                           "step_before": statistics.median(alone), "step_after": usual,
                           "longest": max(alone + [gaps[at - 1]])})
        print(f"  {JOIN} of {self.members}: {self.joins[-1]}", file=sys.stderr, flush=True)

    # ---- events ----

    def crash(self):
        pod, step = self.settled()
        pid = self.job.workers()[pod][0]
        self.hurt(CRASH, step, lambda: os.kill(pid, signal.SIGKILL))

    def kill(self):
        pod, step = self.settled()
        node = self.cluster.node_of(pod)
        self.replace(node, self.hurt(KILL, step, node.kill))

    def silence(self):
        pod, step = self.settled()
        node = self.cluster.node_of(pod)
        self.replace(node, self.hurt(SILENCE, step, node.freeze))

    def replace(self, node, generation):
        self.cluster.remove_node(node)
        began = time.time()
        self.cluster.add_node()
        self.joined(began, generation)


def told_since(line, path, began):
    """The lines of the log's end that match and are not older."""
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - READ_BACK_BYTES))
        text = file.read().decode(errors="replace")
    return [found for found in line.finditer(text) if wall_seconds(found[1]) >= began]


def measure(build, preset, sizes, runs, events):
    """The losses and the joins, of all sizes."""
    shape = dict(PRESETS[preset])
    settle = shape.pop("settle")
    losses, joins = [], []
    with ControlPlane(controller_manager=True) as plane, Cluster(plane, build) as cluster:
        for members in sizes:
            cluster.add_nodes(members - len(cluster.nodes))
            name, gpus = f"bench-{members}", (1, members)
            job = cluster.apply(Script(name, gpus) if preset == "script" else
                                Job(name, steps=1000000, gpus=gpus, every=1000000, ledger=False, **shape))
            bench = Bench(cluster, job, members, settle)
            try:
                for _ in range(runs):
                    for event in events:
                        getattr(bench, event)()
                bench.settled()
            except BaseException:
                print(cluster.explain(), file=sys.stderr)
                raise
            losses += bench.losses
            joins += bench.joins
            job.delete()
            job.wait_gone(60)
    return losses, joins


def milliseconds(rows, key):
    return spread([row[key] * 1e3 for row in rows]).text("{:.0f}")


def loss_tables(losses, preset):
    """What each loss cost, and where the time went."""
    costs, phases = [], []
    for event in (CRASH, KILL, SILENCE):
        for members in sorted({row["members"] for row in losses}):
            rows = [row for row in losses if row["event"] == event and row["members"] == members]
            if not rows:
                continue
            figure, limit = goal_of(event, members, preset)
            met = sum(row[figure] <= limit for row in rows)
            costs.append([event, members, milliseconds(rows, "usual_step"), milliseconds(rows, "total"),
                          milliseconds(rows, "again"), milliseconds(rows, "beyond"),
                          f"{'beyond' if figure == 'beyond' else 'to the next step'} ≤ {limit * 1e3:.0f}",
                          f"{met} of {len(rows)}"])
            phases.append([event, members, *(milliseconds(rows, phase) for phase in PHASES),
                           max(row["attempts"] for row in rows)])
    heads = ["event", "members", "usual step", "signal to the next committed step", "computed again, or not yet",
             "beyond that", "goal", "met"]
    return "\n\n".join([markdown(heads, costs), "Where the time goes:",
                        markdown(["event", "members", *PHASES, "generations, at most"], phases)])


def join_table(joins):
    rows = []
    for members in sorted({row["members"] for row in joins}):
        mine = [row for row in joins if row["members"] == members]
        rows.append([members, *(milliseconds(mine, key) for key in
                                ("stall", "step_before", "step_after", "longest")), len(mine)])
    return markdown(["members after it", "stall: the step of the switch, less a usual one after it (goal: ≤ a step)",
                     "a usual step before", "a usual step after",
                     "longest round, from the node's start to the switch", "n"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--members", type=int, nargs="+", default=[2])
    parser.add_argument("--preset", default="small", choices=PRESETS)
    parser.add_argument("--events", nargs="+", default=["crash", "kill", "silence"],
                        choices=["crash", "kill", "silence"])
    parser.add_argument("--out", default=str(ROOT / "build/bench/recovery.json"))
    args = parser.parse_args()
    losses, joins = measure(os.environ["RUBATO_BUILD"], args.preset, args.members, args.runs, args.events)
    out = pathlib.Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"preset": args.preset, "losses": losses, "joins": joins}, indent=1))
    shape = ", ".join(f"{key} {value}" for key, value in PRESETS[args.preset].items() if key != "settle")
    model = "examples/pytorch/kjv.py" if args.preset == "script" else f"{args.preset} ({shape})"
    print(f"Model {model}. Milliseconds: median (min–max).\n")
    print(loss_tables(losses, args.preset))
    if joins:
        print("\nPlanned joins:\n")
        print(join_table(joins))


if __name__ == "__main__":
    main()
