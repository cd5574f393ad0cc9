"""What the death of a process costs a PyTorch script: from SIGKILL to the first step of the processes that take over,
under runtime torchrun with spare interpreters and without, and under torchrun itself.

    make bench-pytorch         or: RUBATO_BUILD=build/release scripts/with-tools python tests/bench/pytorch.py [--runs 5]

Two processes with DistributedDataParallel over gloo (tests/integration/scripts/elastic.py; its model and checkpoint are
tiny, so what is timed is the restart). Under Rubato each runs in a pod on a node of its own, of a local cluster with a
real API server; under torchrun both are on one node, so that no rendezvous between nodes is needed. The three ways take
turns, run by run, so that a noisy machine is noisy to all of them; the scripts that wait sleep between steps. Prints a
table, writes build/bench/pytorch.json. "inf": nothing came within RESTART_LIMIT_S.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))
import processes  # noqa: E402
from cluster import Cluster, wait_quickly  # noqa: E402
from control_plane import ControlPlane, ControlPlaneError, Process  # noqa: E402
from script_jobs import SCRIPT, START_S, ScriptJob, lines_of  # noqa: E402
from table import markdown, spread  # noqa: E402

PROCESSES = 2
PAUSE_S = 0.5  # between two steps: those that wait for their turn leave the cores alone
SETTLED = 8  # steps before a process is killed
SPARES, PLAIN, TORCHRUN = "torchrun runtime, spares", "torchrun runtime, no spares", "torchrun (PyTorch)"
GOALS_S = {SPARES: 1.0, PLAIN: 8.0}
SPARE_GOAL_MB = 400
RESTART_LIMIT_S = 90


class Ours:
    def __init__(self, cluster, name, has_spares):
        self.has_spares = has_spares
        self.job = cluster.apply(ScriptJob(name, gpus=(PROCESSES, PROCESSES), pause=PAUSE_S,
                                           more={"faultTolerance": {"maxRestarts": 1000}},
                                           env={} if has_spares else {"RUBATO_SPARES": "off"}))

    def lines(self):
        return self.job.lines()

    def settle(self):
        if self.has_spares:
            self.job.wait_spares()

    def victim(self):
        return self.job.of_rank_0()[0]

    def spare_mb(self):
        """What the kernel counts as a waiting spare's own part of its memory."""
        spare = self.job.of_rank_0()[1][0]
        rows = pathlib.Path(f"/proc/{spare}/smaps_rollup").read_text().splitlines()
        return next(int(row.split()[1]) for row in rows if row.startswith("Pss:")) / 1024


class Theirs:
    """Started anew for each run: a restart of it may fail, and then it ends."""

    def __init__(self):
        self.folder = folder = pathlib.Path(tempfile.mkdtemp(prefix="rubato-pytorch-"))
        shutil.copy(SCRIPT, folder)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        os.environ["RUBATO_PROGRESS_FILE"] = str(folder / "progress")
        self.agent = Process("torchrun", [sys.executable, "-m", "torch.distributed.run", "--nnodes=1",
                                          f"--nproc-per-node={PROCESSES}", "--max-restarts=1000", folder / SCRIPT.name,
                                          folder, 10**9, PAUSE_S], folder / "torchrun.log")

    def lines(self):
        return lines_of(self.folder)[0]

    def settle(self):
        pass

    def victim(self):
        return self.lines()[-1]["pid"]

    def stop(self):
        processes.kill(self.agent.child.pid)
        self.agent.child.wait()
        shutil.rmtree(self.folder)


def settled(way):
    """All train, and have done so for some steps; how often they were started again."""
    def holds():
        recent = way.lines()[-SETTLED:]
        starts = {line["variables"]["TORCHELASTIC_RESTART_COUNT"] for line in recent}
        return len(recent) == SETTLED and len(starts) == 1 and recent[-1]["world"] == PROCESSES
    wait_quickly(holds, START_S, "some steps")
    way.settle()
    return way.lines()[-1]["variables"]["TORCHELASTIC_RESTART_COUNT"]


def kill(way):
    """Seconds from the death of a process to the first step of the next ones."""
    before = settled(way)
    victim, began = way.victim(), time.time()
    os.kill(victim, signal.SIGKILL)

    def next_step():
        return next((line["at"] for line in way.lines()
                     if line["at"] > began and line["variables"]["TORCHELASTIC_RESTART_COUNT"] != before), None)
    try:
        return wait_quickly(next_step, RESTART_LIMIT_S, "the next processes") - began
    except ControlPlaneError:
        return float("inf")


def kill_theirs():
    way = Theirs()
    try:
        return kill(way)
    finally:
        way.stop()


def measure(build, runs):
    times = {SPARES: [], PLAIN: [], TORCHRUN: []}
    with ControlPlane(controller_manager=True) as plane, Cluster(plane, build) as cluster:
        cluster.add_nodes(2 * PROCESSES)
        try:
            ours = {SPARES: Ours(cluster, "spares", True), PLAIN: Ours(cluster, "plain", False)}
            for way in ours.values():
                settled(way)
            memory = ours[SPARES].spare_mb()
            for _ in range(runs):
                for name in times:
                    times[name].append(kill(ours[name]) if name in ours else kill_theirs())
                    print(f"  {name}: {times[name][-1]:.2f} s", file=sys.stderr, flush=True)
        except BaseException:
            print(cluster.explain(), file=sys.stderr)
            raise
    return times, memory


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", default=str(ROOT / "build/bench/pytorch.json"))
    args = parser.parse_args()
    times, memory = measure(os.environ["RUBATO_BUILD"], args.runs)
    out = pathlib.Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"seconds": times, "spare_mb": memory}, indent=1))
    rows = []
    for name, values in times.items():
        goal = GOALS_S.get(name)
        met = "" if goal is None else f"{sum(value <= goal for value in values)} of {len(values)}"
        rows.append([name, spread(values).text("{:.2f}"), "" if goal is None else f"≤ {goal:g}", met])
    print("Two processes, gloo. Seconds from SIGKILL to one of them to the first step of the next ones: median "
          "(min–max).\n")
    print(markdown(["under", "s", "goal", "met"], rows))
    print(f"\nA waiting spare holds {memory:.0f} MB (PSS; goal: ≤ {SPARE_GOAL_MB}).")


if __name__ == "__main__":
    main()
