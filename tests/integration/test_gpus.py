"""GPUs without one: nodes offer GPUs that are made up, whose pods get them by turns, and whose workers find no driver."""

import fcntl
import subprocess

import pytest
from cluster import RESOURCE, gpu_flags
from cluster_fixtures import CHANGE_S, cluster, plane_and_cluster  # noqa: F401
from control_plane import wait_until
from jobs import Job
from local_node import BIN, LIMIT_S, LocalNode
from watching import conditions_of

SAY = "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $RUBATO_DEVICE.; exec sleep 1000"


# ---- pods of a node with GPUs


class GpuNode(LocalNode):
    """Three GPUs that are made up."""

    def __init__(self, folder):
        super().__init__(folder, "--gpu-locks", folder / "locks", *gpu_flags(folder, 3, "NVIDIA L40S"))

    def run(self, name, gpus, env=()):
        container = {"command": ["/bin/sh", "-c", SAY],
                     "env": [{"name": key, "value": value} for key, value in env]}
        if gpus:
            container["resources"] = {"limits": {RESOURCE: str(gpus)}, "requests": {RESOURCE: str(gpus)}}
        super().run(name, container)


@pytest.fixture
def node(tmp_path):
    with GpuNode(tmp_path) as made:
        yield made


def test_each_pod_has_gpus_of_its_own(node):
    found = node.get("node", "n1")
    assert found["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-L40S"
    assert found["status"]["allocatable"][RESOURCE] == "3"
    node.run("two", 2)
    assert node.said("two") == "GPU-0,GPU-1 PCI_BUS_ID cuda"
    node.run("one", 1, env=[("RUBATO_DEVICE", "cpu")])  # the template wins
    assert node.said("one") == "GPU-2 PCI_BUS_ID cpu"
    node.run("none", 0)
    assert node.said("none") == "PCI_BUS_ID"
    node.run("more", 1)  # the API server's books are wrong, say: it waits
    wait_until(lambda: "waits for 1 GPU: 0 of 3 free" in node.status("more").get("message", ""), LIMIT_S,
               "the pod to wait")
    node.delete("two")
    assert node.said("more") in ("GPU-0 PCI_BUS_ID cuda", "GPU-1 PCI_BUS_ID cuda")


def test_a_node_that_is_started_anew_gives_no_gpu_twice(node):
    node.run("before", 2)
    assert node.said("before").startswith("GPU-0,GPU-1 ")
    # Something else of this machine has the third: a node of another cluster, or what is left of one.
    with open(node.folder / "locks" / "nvidia2.lock", "w") as third:
        fcntl.flock(third, fcntl.LOCK_EX)
        node.process.kill()  # its pods die with it, as at a power cut
        node.process.start()
        wait_until(lambda: node.status("before").get("reason") == "NodeRebooted", LIMIT_S, "the pod of before to fail")
        node.run("after", 2)
        assert node.said("after").startswith("GPU-0,GPU-1 ")
        node.run("more", 1)
        wait_until(lambda: "waits for 1 GPU: 0 of 3" in node.status("more").get("message", ""), LIMIT_S, "it to wait")
    assert node.said("more").startswith("GPU-2 ")


# ---- jobs whose workers find no driver


def said_of(job, reason):
    return [event["note"] for event in job.events() if event["reason"] == reason]


def test_a_node_whose_gpu_is_of_no_use_is_avoided_and_the_others_train(cluster, tmp_path):
    cluster.add_node()
    broken = cluster.add_node(gpus=(*gpu_flags(tmp_path, 1, "CPU"), "--gpu-locks", tmp_path / "locks"))
    job = cluster.apply(Job("beside", steps=60, gpus=(1, 2)))
    job.wait(lambda o: any(node["node"] == broken.name and node["reason"] == "DeviceUnavailable"
                           for node in (o or {}).get("status", {}).get("avoidedNodes", [])), CHANGE_S, "it avoided")
    wait_until(lambda: said_of(job, "WorkerRefused"), CHANGE_S, "the event")
    note = said_of(job, "WorkerRefused")[0]
    assert f"on node {broken.name} (image rubato/worker:dev) cannot take part: DeviceUnavailable: " in note
    assert "there is no NVIDIA driver here" in note or "was built without CUDA" in note
    job.wait_state("Complete", CHANGE_S)
    assert conditions_of(job.object())["Complete"]["reason"] == "StepsReached"


def test_a_job_that_no_node_gives_a_gpu_says_what_is_missing(cluster, tmp_path):
    broken = cluster.add_node(gpus=(*gpu_flags(tmp_path, 1, "NVIDIA H100"), "--gpu-locks", tmp_path / "locks"))
    job = cluster.apply(Job("nowhere", gpus=(1, 1)))
    job.wait_condition("Queued", reason="NodesRefused", limit_s=CHANGE_S)
    message = conditions_of(job.object())["Queued"]["message"]
    assert f"refused its workers (image rubato/worker:dev) for DeviceUnavailable: {broken.name}: " in message
    assert not job.status()["allocation"]["pods"], "it waits without GPUs"


# ---- rubatoctl


def local(*words):
    return subprocess.run([BIN / "rubatoctl", "local", *map(str, words)], capture_output=True, text=True,
                          timeout=2 * LIMIT_S, check=False)


def test_local_up_finds_gpus_or_says_what_to_do(tmp_path):
    state = tmp_path / "state"
    none = local("up", "--gpus", "auto", "--state", state, "--gpu-driver", tmp_path / "none")
    assert none.returncode == 1 and "this machine shows no NVIDIA GPU" in none.stderr, none.stderr
    assert "What to do: install NVIDIA's driver" in none.stderr
    assert not state.exists()
    auto = gpu_flags(tmp_path, 3, "NVIDIA L4")
    try:
        up = local("up", "--nodes", "2", "--state", state, *auto)
        assert up.returncode == 0 and "GPUs 0,1,2 of this machine: NVIDIA L4" in up.stderr, up.stderr
        kubeconfig = up.stdout.split("=", 1)[1].strip()
        nodes = subprocess.run([BIN / "rubatoctl", "--kubeconfig", kubeconfig, "node", "list"], check=True, text=True,
                               capture_output=True, timeout=LIMIT_S).stdout.splitlines()
        assert [line.split()[-4:-2] for line in nodes[1:]] == [["NVIDIA-L4", "1"], ["NVIDIA-L4", "2"]], nodes
        assert local("up", "--state", state, *auto).returncode == 0  # as it is
        assert "--slots" in local("up", "--state", state, "--slots", "2", *auto).stderr  # it is one or the other
    finally:
        local("down", "--purge", "--state", state)
