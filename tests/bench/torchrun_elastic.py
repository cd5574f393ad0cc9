"""How long training stands still under torchrun elastic (PyTorch on CPU, gloo) when a worker crashes, a node
is lost by SIGKILL, a node falls silent (SIGSTOP), and a node joins: the events of recovery.py.

    scripts/with-tools python tests/bench/torchrun_elastic.py [--mode defaults tuned] [--runs 5]

Two nodes of one worker each, as two torchrun agents on this machine. "tuned" sets what its manual lets one set
(below). A stall is the time from the event to the first step that had not been done before; steps since the
last checkpoint are done again on the way. For a join: between the last step before the restart and the first new
one. Prints a table, writes build/bench/torchrun_elastic.json.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))
import processes  # noqa: E402
from control_plane import ControlPlaneError, Process, free_port, wait_until  # noqa: E402
from table import markdown, spread  # noqa: E402

START_LIMIT_S = 180
EVENT_LIMIT_S = 180
SILENCE_LIMIT_S = 90  # with the defaults nothing ends it before gloo's 30 minutes
EVERY = 20  # steps between checkpoints
MODES = {
    "defaults": {"rdzv": "", "monitor": None, "group_timeout": 0},
    "tuned": {"rdzv": "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3",
              "monitor": 0.1, "group_timeout": 4},
}


class Steps:
    """The file to which rank 0 writes each step: (nanoseconds, step, world size)."""

    def __init__(self, path):
        self.path = path

    def all(self):
        try:
            lines = self.path.read_text().splitlines()
        except FileNotFoundError:
            return []
        return [tuple(map(int, line.split())) for line in lines]

    def newest(self, world):
        """The highest step, when the last one was made by so many workers; else 0."""
        rows = self.all()
        return max(row[1] for row in rows) if rows and rows[-1][2] == world else 0


class Nodes:
    def __init__(self, folder, mode, preset):
        self.folder, self.mode, self.preset = folder, MODES[mode], preset
        self.port, self.agents = free_port(), {}
        # Without this no newcomer ever joins a running job in PyTorch 2.15: the old agents keep the address
        # of their first round, and the newcomer waits a minute for one that nobody writes.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        self.steps = Steps(folder / "steps")

    def start(self, name):
        words = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1",
                 "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=bench",
                 "--max-restarts=1000", "--local-addr=127.0.0.1"]
        host = "is_host=" + str(name == 0).lower()  # node 0 keeps the store and is never lost
        words.append("--rdzv-conf=" + ",".join(filter(None, [host, self.mode["rdzv"]])))
        if self.mode["monitor"] is not None:
            words.append(f"--monitor-interval={self.mode['monitor']}")
        words += [ROOT / "tests/bench/torchrun_train.py", "--preset", self.preset,
                  "--steps-file", self.steps.path, "--checkpoint", self.folder / "checkpoint.pt",
                  "--every", EVERY, "--group-timeout", self.mode["group_timeout"]]
        self.agents[name] = Process(f"node-{name}", words, self.folder / f"node-{name}.log")

    def worker(self, name):
        """The training process of a node."""
        for pid in processes.tree(self.agents[name].child.pid)[1:]:
            if "TORCHELASTIC_RUN_ID" in processes.environment_of(pid):
                return pid
        raise ControlPlaneError(f"node {name} has no worker; {self.agents[name].tail()}")

    def lose(self, name):
        processes.kill(self.agents[name].child.pid)
        self.agents.pop(name).child.wait()

    def stop(self):
        for name in list(self.agents):
            self.lose(name)

    def restart(self):
        self.stop()
        self.port = free_port()
        self.start(0)
        self.start(1)

    def wait_training(self, world, more=2 * EVERY):
        """Until so many workers have trained for some steps, and half-way between two checkpoints."""
        wait_until(lambda: self.steps.newest(world) > 0, START_LIMIT_S, f"training with {world}")
        goal = self.steps.newest(world) + more
        wait_until(lambda: self.steps.newest(world) >= goal
                   and self.steps.newest(world) % EVERY >= EVERY // 2, START_LIMIT_S, "some steps")

    def stall(self, began_ns, limit_s=EVENT_LIMIT_S):
        """Seconds from began_ns to the first new step; None after the limit. And the steps redone."""
        before = max(row[1] for row in self.steps.all() if row[0] <= began_ns)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            after = [row for row in self.steps.all() if row[0] > began_ns]
            # A step that was under way may still end after the event; a restart goes back.
            restart = next((i for i in range(1, len(after)) if after[i][1] <= after[i - 1][1]), None)
            if after and after[0][1] <= before:
                restart = 0
            if restart is not None:
                reached = max([before] + [row[1] for row in after[:restart]])
                new = [row for row in after[restart:] if row[1] > reached]
                if new:
                    return (new[0][0] - began_ns) / 1e9, reached + 1 - after[restart][1]
            time.sleep(0.02)
        return None, 0


def step_seconds(rows, world):
    gaps = [(b[0] - a[0]) / 1e9 for a, b in zip(rows, rows[1:])
            if a[2] == b[2] == world and b[1] == a[1] + 1]
    return statistics.median(gaps) if gaps else None


def crash(nodes, _):
    began = time.time_ns()
    os.kill(nodes.worker(1), 9)
    return nodes.stall(began)


def lose(nodes, _):
    began = time.time_ns()
    nodes.lose(1)
    return nodes.stall(began)


def silence(nodes, mode):
    began = time.time_ns()
    processes.freeze(nodes.agents[1].child.pid)
    try:
        return nodes.stall(began, SILENCE_LIMIT_S if mode == "defaults" else EVENT_LIMIT_S)
    finally:
        nodes.lose(1)


def join(nodes, _):
    """The gap between the last step of one worker and the first new step of two."""
    nodes.start(1)
    began = time.time_ns()
    wait_until(lambda: nodes.steps.newest(2) > 0, START_LIMIT_S, "two workers")
    rows = nodes.steps.all()
    last = max((row for row in rows if row[2] == 1), key=lambda row: row[0])
    reached = max(row[1] for row in rows if row[0] <= last[0])
    wait_until(lambda: any(row[1] > reached and row[0] > last[0] for row in nodes.steps.all()),
               EVENT_LIMIT_S, "a new step")
    first = next(row for row in nodes.steps.all() if row[1] > reached and row[0] > last[0])
    again = next(row for row in nodes.steps.all() if row[0] > last[0])
    assert last[0] > began
    return (first[0] - last[0]) / 1e9, reached + 1 - again[1]


EVENTS = {"worker crash": crash, "node loss, SIGKILL": lose, "planned join": join,
          "node loss, silence": silence}


def measure(mode, runs, preset, folder):
    """{event: [(stall, steps done again) …]} and the step times. A stall of None: it did not end in time, or
    an agent gave up (a store that times out ends it); then both nodes are started anew."""
    nodes = Nodes(folder, mode, preset)
    found = {event: [] for event in EVENTS}

    def play(event):
        try:
            nodes.wait_training(1 if event == "planned join" else 2)
            value = EVENTS[event](nodes, mode)
        except ControlPlaneError as error:
            print(f"  {mode}: {error}", file=sys.stderr)
            value = None, 0
            nodes.restart()
        found[event].append(value)
        print(f"  {mode}: {event}: {value}", file=sys.stderr)
        return value[0] is not None

    try:
        nodes.restart()
        for _ in range(runs):
            play("worker crash")
        for _ in range(runs):
            if play("node loss, SIGKILL"):
                play("planned join")
        for _ in range(1 if mode == "defaults" else runs):
            if play("node loss, silence") and mode != "defaults":
                nodes.wait_training(1)
                nodes.start(1)
        rows = nodes.steps.all()
        return found, {world: step_seconds(rows, world) for world in (1, 2)}
    finally:
        nodes.stop()


def cell(values):
    """Median and spread; how many did not end."""
    times = [seconds for seconds, _ in values if seconds is not None]
    failed = len(values) - len(times)
    text = spread(times).text("{:.1f}") if times else ""
    return text + (f" {failed} of {len(values)} did not end" if failed else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--preset", default="kjv")
    parser.add_argument("--out", default=str(ROOT / "build/bench/torchrun_elastic.json"))
    args = parser.parse_args()

    modes = {}
    for mode in args.mode:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="rubato-torchrun-"))
        found, steps = measure(mode, args.runs, args.preset, folder)
        modes[mode] = {"settings": MODES[mode], "step_seconds": steps, "stalls": found}
        shutil.rmtree(folder)
    out = pathlib.Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"runs": args.runs, "preset": args.preset, "modes": modes}, indent=1))

    rows = [[event] + [cell(modes[m]["stalls"][event]) for m in modes] for event in EVENTS]
    print(f"Model {args.preset}, a checkpoint every {EVERY} steps. From the event to the first new step (for a "
          "join: from the last step\nto the first new one), seconds: median (min–max)\n")
    print(markdown(["event", *(f"torchrun, {mode}" for mode in modes)], rows))
    for mode, result in modes.items():
        print(f"\n{mode}: {MODES[mode]}; a step takes " + ", ".join(
            f"{s * 1e3:.0f} ms with {w}" for w, s in result["step_seconds"].items() if s))
    print(f"\nSilence with the defaults was waited for {SILENCE_LIMIT_S} s; gloo gives up after 30 minutes.")


if __name__ == "__main__":
    main()
