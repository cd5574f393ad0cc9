"""Jobs of runtime torchrun and command, whose pods run a script of tests/integration/scripts with the interpreter that
runs us, or any command; and of runtime pytorch, whose pods run examples/pytorch/kjv.py.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

from control_plane import wait_until
from jobs import Job, sample_text
from processes import environment_of, id_in_its_namespace, name_of, tree
from watching import conditions_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = pathlib.Path(__file__).parent / "scripts" / "elastic.py"
START_S = 180  # importing torch takes seconds, and the cores are shared


def lines_of(folder, begin=0):
    """What the script has written of its steps from that byte on, as far as the lines are whole; and where the next one
    begins."""
    try:
        with open(folder / "steps.jsonl", "rb") as file:
            file.seek(begin)
            whole, end, _ = file.read().rpartition(b"\n")
    except FileNotFoundError:
        return [], begin
    return list(map(json.loads, whole.splitlines())), begin + len(whole + end)


class ScriptJob(Job):
    def __init__(self, name, runtime="torchrun", steps=100000, pause=0.05, command=None, more=None, env=None,
                 program=SCRIPT.name, **kwargs):
        super().__init__(name, steps=steps, ledger=False, **kwargs)
        self.program = program
        self.runtime, self.pause, self.command, self.more, self.env = runtime, pause, command, more or {}, env or {}
        self.read, self.read_to = [], 0  # of lines()

    def prepare(self):
        """The scripts lie where its pods see them, which have a /tmp of their own."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        for script in SCRIPT.parent.glob("*.py"):
            shutil.copy(script, self.checkpoints)

    def manifest(self):
        manifest = super().manifest()
        spec = manifest["spec"]
        del spec["training"]
        spec["runtime"] = self.runtime
        spec.update(self.more)
        pod = spec["template"]["spec"]
        pod["volumes"] = [v for v in pod["volumes"] if v["name"] == "checkpoints"]
        container = pod["containers"][0]
        container["volumeMounts"] = [m for m in container["volumeMounts"] if m["name"] == "checkpoints"]
        container["env"] = [{"name": name, "value": value}
                            for name, value in {"GLOO_SOCKET_IFNAME": "lo", **self.env}.items()]
        container["command"] = self.command or [sys.executable, f"/ckpt/{self.program}"]
        if self.command is None:
            container["args"] = ["/ckpt", str(self.steps), str(self.pause)]
        return manifest

    def lines(self):
        """Of all its steps. Who waits asks often, and they come to be thousands: none is read twice."""
        more, self.read_to = lines_of(self.checkpoints, self.read_to)
        self.read += more
        return self.read

    def wait_steps_of(self, world, more=5, limit_s=START_S):
        """Until so many more steps were made by so many processes."""
        seen = len(self.lines())
        wait_until(lambda: sum(line["world"] == world for line in self.lines()[seen:]) >= more, limit_s,
                   f"{self.name}: {more} steps of {world}: {json.dumps(self.status(), indent=1)}\n"
                   f"{self.cluster.explain()}")

    def interpreters(self):
        """{pod: ids of its interpreters}: that of the program, and a spare that is ready or gets so."""
        found = {}
        for node in self.cluster.nodes.values():
            for pid in tree(node.pid):
                pod = environment_of(pid).get("RUBATO_POD_NAME")
                if pod in self.pods() and name_of(pid).startswith("python"):
                    found.setdefault(pod, []).append(pid)
        return found

    def of_rank_0(self):
        """(id of the program, ids of its pod's spares)"""
        inside = self.lines()[-1]["pid"]  # as it is called in its pod
        pids = self.interpreters()[self.pod_of_rank(0)]
        program = next(pid for pid in pids if id_in_its_namespace(pid) == inside)
        return program, [pid for pid in pids if pid != program]

    def spares(self):
        """Of each pod's log: (how many spares were ready, how many of them have taken the script over)"""
        logs = [path.read_text(errors="replace") for path in self.log_files().values()]
        return [(log.count("a spare is ready"), log.count("a spare takes the program over")) for log in logs]

    def wait_spares(self):
        """Until each pod has one."""
        wait_until(lambda: self.spares() and all(made > used for made, used in self.spares()), START_S, "spares")

    def message(self, kind):
        return conditions_of(self.object())[kind]["message"]


def package_environment(kind=""):
    """Where a script finds the package of this build; of kind "testing" that which heeds fault plans."""
    library = pathlib.Path(os.environ["RUBATO_BUILD"]) / "lib" / kind / "librubato_pytorch.so"
    return {"PYTHONPATH": str(ROOT / "python"), "RUBATO_LIBRARY": str(library), "PYTHONDONTWRITEBYTECODE": "1"}


class TorchJob(ScriptJob):
    """`script`: a file that is copied to its pods; it is given `arguments`. `more_lines` come after it; of
    themselves they are a pause: it ends with the body of its loop, and a run alone of as many steps is short."""

    def __init__(self, name, script=ROOT / "examples/pytorch/kjv.py", every=1000, more=None, is_hit=False,
                 more_lines=None, arguments=("/ckpt/text",), batch=(16, 2), **kwargs):
        faults = {"RUBATO_FAULT_FILE": "/fault/plan"} if is_hit else {}
        super().__init__(name, runtime="pytorch", more=more,
                         env=package_environment("testing" if is_hit else "") | faults, **kwargs)
        self.script, self.every, self.arguments, self.batch = script, every, arguments, batch
        self.more_lines = more_lines or f"    __import__('time').sleep({self.pause})\n"

    def prepare(self):
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        (self.checkpoints / "train.py").write_text(self.script.read_text() + self.more_lines)
        (self.checkpoints / "text").write_text(sample_text(8000))

    def manifest(self):
        manifest = super().manifest()
        manifest["spec"]["training"] = {
            "batch": dict(zip(("global", "micro"), self.batch)), "stop": {"steps": self.steps}, "seed": 1,
            "checkpoint": {"every": self.every, "path": "/ckpt/states", "keep": 3}}
        container = manifest["spec"]["template"]["spec"]["containers"][0]
        container["command"], container["args"] = [sys.executable, "/ckpt/train.py"], list(self.arguments)
        container["volumeMounts"].append({"name": "fault", "mountPath": "/fault"})
        manifest["spec"]["template"]["spec"]["volumes"].append({"name": "fault", "emptyDir": {}})
        return manifest

    def records(self):
        return self.records_in(self.checkpoints / "states")

    def train_alone(self, folder):
        """The same steps in one process of ours, without a cluster."""
        subprocess.run([sys.executable, str(self.script), str(self.checkpoints / "text"), str(self.steps), str(folder)],
                       env={**os.environ, **package_environment()}, check=True, stdout=subprocess.DEVNULL)

    def steps_told(self):
        """The numbers in the lines "step N: …" of all logs."""
        return [int(step) for path in self.log_files().values()
                for step in re.findall(r"^\S+ step (\d+): loss", path.read_text(errors="replace"), re.M)]

    def state_files(self, folder):
        newest = folder / (folder / "LATEST").read_text().strip()
        return {name: (newest / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors", "steps.bin")}
