"""Jobs of runtime torchrun and command, on a real API server: PyTorch's own processes (gloo, DistributedDataParallel)
start, start again with other ranks when nodes come and go, fail, and end."""

import json
import os
import pathlib
import shutil
import signal
import sys
import time

from cluster import wait_quickly
from cluster_fixtures import CHANGE_S, cluster, plane_and_cluster  # noqa: F401
from jobs import Job
from processes import environment_of, name_of, tree
from watching import conditions_of

SCRIPT = pathlib.Path(__file__).parent / "scripts" / "elastic.py"
START_S = 180  # importing torch takes seconds, and the cores are shared


class ScriptJob(Job):
    def __init__(self, name, runtime="torchrun", steps=100000, pause=0.05, command=None, more=None, **kwargs):
        super().__init__(name, steps=steps, ledger=False, **kwargs)
        self.runtime, self.pause, self.command, self.more = runtime, pause, command, more or {}

    def prepare(self):
        """The script lies where its pods see it, which have a /tmp of their own."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        shutil.copy(SCRIPT, self.checkpoints)

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
        container["env"] = [{"name": "GLOO_SOCKET_IFNAME", "value": "lo"}]
        container["command"] = self.command or [sys.executable, "/ckpt/elastic.py"]
        if self.command is None:
            container["args"] = ["/ckpt", str(self.steps), str(self.pause)]
        return manifest

    def lines(self):
        try:
            text = (self.checkpoints / "steps.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def wait_steps_of(self, world, more=5, limit_s=START_S):
        """Until so many more steps were made by so many processes."""
        seen = len(self.lines())
        wait_quickly(lambda: sum(line["world"] == world for line in self.lines()[seen:]) >= more, limit_s,
                     f"{self.name}: {more} steps of {world}: {json.dumps(self.status(), indent=1)}\n"
                     f"{self.cluster.explain()}")

    def programs(self, spares=True):
        """Interpreters in its pods; without `spares`, those that began with the program itself."""
        found = []
        for node in self.cluster.nodes.values():
            for pid in tree(node.pid):
                about = environment_of(pid)
                if about.get("RUBATO_POD_NAME") in self.pods() and name_of(pid).startswith("python"):
                    found += [pid] if spares or "RUBATO_SPARE_FD" not in about else []
        return found

    def message(self, kind):
        return conditions_of(self.object())[kind]["message"]


def test_a_script_grows_shrinks_survives_and_ends(cluster):
    first = cluster.add_node()
    job = cluster.apply(ScriptJob("elastic", gpus=(1, 3)))
    job.wait_steps_of(1)
    job.wait_state("Running", CHANGE_S)
    about = job.lines()[-1]["variables"]
    assert about["RANK"] == about["LOCAL_RANK"] == about["GROUP_RANK"] == about["ROLE_RANK"] == "0"
    assert about["WORLD_SIZE"] == about["LOCAL_WORLD_SIZE"] == about["GROUP_WORLD_SIZE"] == "1"
    assert about["TORCHELASTIC_MAX_RESTARTS"] == "10" and about["TORCHELASTIC_RUN_ID"] == job.object()["metadata"]["uid"]
    second = cluster.add_node(slots=2)
    job.wait_steps_of(3)
    grown = job.lines()[-1]["variables"]
    assert (grown["MASTER_ADDR"], grown["MASTER_PORT"]) != (about["MASTER_ADDR"], about["MASTER_PORT"])
    assert int(grown["TORCHELASTIC_RESTART_COUNT"]) > int(about["TORCHELASTIC_RESTART_COUNT"])
    steps = [line["step"] for line in job.lines()]
    assert steps == list(range(len(steps))), "the checkpoint is taken up"

    job.wait(lambda o: o["status"].get("performance", {}).get("tokensPerSecond", 0) > 0, CHANGE_S, "its speed")
    assert job.status()["display"]["progress"].endswith(" steps") and float(job.status()["display"]["loss"]) >= 0

    # A process dies: all start again in their pods, as spares have been made, and the job is charged.
    def spares():
        """Of each pod: how many were ready, and how many of them have taken the script over."""
        logs = [path.read_text(errors="replace") for path in job.log_files().values()]
        return [(log.count("a spare is ready"), log.count("a spare takes the program over")) for log in logs]

    wait_quickly(lambda: len(spares()) == 3 and all(made > used for made, used in spares()), START_S, "spares")
    pods, before, began = set(job.living_pods()), job.lines()[-1]["variables"], time.monotonic()
    os.kill(job.programs(spares=False)[0], signal.SIGKILL)
    wait_quickly(lambda: job.lines()[-1]["variables"] != before, START_S, "it to go on")
    print(f"from the end of a process to the first step of the next ones: {time.monotonic() - began:.2f} s")
    assert all(made == used for made, used in spares())
    after = job.lines()[-1]["variables"]
    assert {name for name in before if before[name] != after[name]} == {"MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"}
    job.wait(lambda o: o["status"].get("restarts", {}).get("count") == 1, CHANGE_S, "the charge")
    assert set(job.living_pods()) == pods

    # A node is lost: the others go on without it, and nothing is charged.
    lost = first if job.pods()[job.pod_of_rank(0)]["spec"]["nodeName"] == first.name else second
    lost.kill()
    wait_quickly(lambda: job.lines()[-1]["world"] < 3, START_S, "the others to go on")
    assert job.status()["restarts"]["count"] == 1
    job.wait_node_lost(CHANGE_S)  # it is counted once the others have run for a while
    cluster.remove_node(lost)

    # Suspended, its program is told to end, and nothing is left; resumed it goes on where it was.
    job.patch({"suspend": True})
    job.wait_state("Suspended", CHANGE_S)
    assert not job.programs()
    at = job.lines()[-1]["step"]
    job.patch({"suspend": False})
    wait_quickly(lambda: job.lines()[-1]["step"] > at, START_S, "it to go on")
    steps = [line["step"] for line in job.lines()]
    assert all(after <= before + 1 for before, after in zip(steps, steps[1:])), "no step is left out"
    (job.checkpoints / "end").touch()
    job.wait_state("Complete", START_S)
    wait_quickly(lambda: not job.programs(), CHANGE_S, "its spares to end")


def test_torchruns_command_is_understood_and_failures_are_told(cluster):
    cluster.add_node(slots=2)
    torchrun = str(pathlib.Path(sys.executable).parent / "torchrun")
    job = ScriptJob("failing", gpus=(2, 2), command=[
        torchrun, "--nnodes=1:4", "--nproc_per_node", "1", "--rdzv-backend=c10d", "/ckpt/elastic.py", "/ckpt", "40", "0.01"],
        more={"gpus": {"min": 2, "max": 2, "perPod": 2}, "faultTolerance": {"maxRestarts": 1}})
    job.cluster = cluster
    job.prepare()
    (job.checkpoints / "fail").write_text("5")
    cluster.apply(job)
    job.wait_state("Failed", 2 * START_S)
    assert "told to fail in step 5" in job.message("Failed")
    assert job.status()["restarts"]["count"] == 2
    wait_quickly(lambda: not job.programs(), CHANGE_S, "its programs to end")
    assert [line["step"] for line in job.lines()] == list(range(5))
    about = job.lines()[0]["variables"]
    assert (about["WORLD_SIZE"], about["LOCAL_WORLD_SIZE"], about["GROUP_WORLD_SIZE"]) == ("2", "2", "1")


def test_any_program_runs_as_a_gang(cluster):
    cluster.add_node(slots=2)
    job = cluster.apply(ScriptJob("gang", runtime="command", gpus=(2, 2), command=[
        "/bin/sh", "-c", 'echo "$JAX_PROCESS_ID/$JAX_NUM_PROCESSES of $JAX_COORDINATOR_ADDRESS" > /ckpt/$RANK']))
    job.wait_state("Complete", START_S)
    said = [(job.checkpoints / str(rank)).read_text().split() for rank in range(2)]
    assert [s[0] for s in said] == ["0/2", "1/2"] and said[0][2] == said[1][2]


def test_a_program_that_is_not_there_is_named(cluster):
    cluster.add_node()
    job = cluster.apply(ScriptJob("absent", runtime="command", gpus=(1, 1), command=["/no/such/program"],
                                  more={"faultTolerance": {"maxRestarts": 1}}))
    job.wait_state("Failed", CHANGE_S)
    assert "starting /no/such/program: No such file" in job.message("Failed")
