"""Jobs of runtime torchrun and command, on a real API server: PyTorch's own processes (gloo, FSDP and
DistributedDataParallel) start, start again with other ranks when nodes come and go, fail, and end."""

import os
import pathlib
import signal
import sys
from importlib import util

from cluster import wait_quickly
from cluster_fixtures import CHANGE_S, cluster, plane_and_cluster  # noqa: F401
from control_plane import wait_until
from script_jobs import START_S, ScriptJob
from watching import conditions_of


def each_follows(steps):
    """None is left out; one that was stopped between its line and its checkpoint may be there twice."""
    return all(after in (before, before + 1) for before, after in zip(steps, steps[1:]))


def test_a_script_grows_shrinks_survives_and_ends(cluster):
    first = cluster.add_node()
    job = cluster.apply(ScriptJob("elastic", gpus=(1, 3), program="sharded.py"))
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
    restarts = int(grown["TORCHELASTIC_RESTART_COUNT"]) - int(about["TORCHELASTIC_RESTART_COUNT"])
    assert restarts > 0
    steps = [line["step"] for line in job.lines()]
    assert steps[0] == 0 and each_follows(steps), "the checkpoint is taken up"
    assert len(steps) - len(set(steps)) <= restarts, "each may repeat the step in which it stopped the script"

    job.wait(lambda o: o["status"].get("performance", {}).get("tokensPerSecond", 0) > 0, CHANGE_S, "its speed")
    assert job.status()["display"]["progress"].endswith(" steps") and float(job.status()["display"]["loss"]) >= 0

    # A process dies: all start again in their pods, as spares have been made, and the job is charged.
    job.wait_spares()
    pods, before = set(job.living_pods()), job.lines()[-1]["variables"]
    assert len(pods) == 3
    os.kill(job.of_rank_0()[0], signal.SIGKILL)
    wait_quickly(lambda: job.lines()[-1]["variables"] != before, START_S, "it to go on")
    assert all(made == used for made, used in job.spares())
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
    assert not job.interpreters()
    at = job.lines()[-1]["step"]
    job.patch({"suspend": False})
    wait_quickly(lambda: job.lines()[-1]["step"] > at, START_S, "it to go on")
    assert each_follows([line["step"] for line in job.lines()]), "each began with the last checkpoint"
    (job.checkpoints / "end").touch()
    job.wait_state("Complete", START_S)
    wait_until(lambda: not job.interpreters(), CHANGE_S, "its spares to end")


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
    wait_until(lambda: not job.interpreters(), CHANGE_S, "its programs to end")
    assert [line["step"] for line in job.lines()] == list(range(5))
    about = job.lines()[0]["variables"]
    assert (about["WORLD_SIZE"], about["LOCAL_WORLD_SIZE"], about["GROUP_WORLD_SIZE"]) == ("2", "2", "1")


def test_a_script_of_hugging_face_runs_as_it_is(cluster):
    """One that the package accelerate ships for torchrun, from where it is installed: its ranks compare the gradients
    that they add up, and fail where they differ. Killed, it starts again, and ends."""
    cluster.add_node(slots=2)
    script = pathlib.Path(util.find_spec("accelerate").origin).parent / "test_utils/scripts/test_sync.py"
    torchrun = str(pathlib.Path(sys.executable).parent / "torchrun")
    job = cluster.apply(ScriptJob("accelerate", gpus=(2, 2), env={"ACCELERATE_USE_CPU": "true"}, command=[
        torchrun, "--nproc_per_node=1", "--nnodes=2", str(script)]))
    job.wait_state("Running", CHANGE_S)
    wait_quickly(lambda: len(job.interpreters()) == 2, START_S, "its processes")
    os.kill(next(iter(job.interpreters().values()))[0], signal.SIGKILL)
    job.wait(lambda o: o["status"].get("restarts", {}).get("count") == 1, CHANGE_S, "the charge")
    job.wait_state("Complete", START_S)
    said = "".join(path.read_text(errors="replace") for path in job.log_files().values())
    assert "Test `accumulate` gradient accumulation" in said and "generation 2: rank 1 of 2" in said


def test_any_program_runs_as_a_gang(cluster):
    cluster.add_node(slots=2)
    job = cluster.apply(ScriptJob("gang", runtime="command", gpus=(2, 2), command=[
        "/bin/sh", "-c", 'echo "$JAX_PROCESS_ID/$JAX_NUM_PROCESSES of $JAX_COORDINATOR_ADDRESS" > /ckpt/$RANK;'
                         'for step in 1 2 3; do echo "epoch 1, step $step: loss 0.5"; done'],
        env={"RUBATO_PROGRESS_PATTERN": r"step (?<step>\d+): loss (?<loss>[\d.]+)"}))
    job.wait_state("Complete", START_S)
    assert job.status()["progress"]["step"] == 3 and float(job.status()["display"]["loss"]) == 0.5
    log = next(iter(job.log_files().values())).read_text()
    assert "epoch 1, step 1: loss 0.5" in log, "what it prints is in the pod's log"
    said = [(job.checkpoints / str(rank)).read_text().split() for rank in range(2)]
    assert [s[0] for s in said] == ["0/2", "1/2"] and said[0][2] == said[1][2]


def test_a_program_that_is_not_there_is_named(cluster):
    cluster.add_node()
    wrong = cluster.apply(ScriptJob("wrong", runtime="command", gpus=(1, 1), command=["/bin/true"],
                                    env={"RUBATO_PROGRESS_PATTERN": r"step (\d+)"}))
    wrong.wait(lambda o: "no group named step" in conditions_of(o).get("Queued", {}).get("message", ""), CHANGE_S,
               "what is wrong with it")
    wrong.delete()
    job = cluster.apply(ScriptJob("absent", runtime="command", gpus=(1, 1), command=["/no/such/program"],
                                  more={"faultTolerance": {"maxRestarts": 1}}))
    job.wait_state("Failed", CHANGE_S)
    assert "starting /no/such/program: No such file" in job.message("Failed")
