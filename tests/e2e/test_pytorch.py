"""People's own PyTorch scripts on real pods, and a power cut while they train: under `pytorch` who is left goes on as
the same processes, and the job ends with the bytes of a run alone; under `torchrun` spare interpreters take the script
over in the pods that are left, as a smaller world.

The image is what deploy/pytorch.Dockerfile makes, over one that is empty: its Python, its libraries and PyTorch are
those of this machine, by a volume that is read-only, so that nobody copies a gigabyte to each node.
"""

from __future__ import annotations

import contextlib
import pathlib
import sys
import tarfile
import time

import pytest
from realcluster import ROOT, images, rubato
from realcluster.errors import wait_for
from script_jobs import ScriptJob, TorchJob  # tests/integration
from stage import CHANGE_S, CommitClock, PodJob, build_folder, figure, staged

NODES = 3
IMAGE = "localhost/rubato-pytorch-test:dev"
MACHINE = "machine"  # the claim of the volume
START_S = 240  # three interpreters import torch at the same time, on two cores that others use too
SILENCE_LIMIT_S = 120.0


def seen_by_pods() -> list[str]:
    """Folders of this machine that are in a pod under their own names."""
    return ["/bin", "/lib", "/lib64", "/usr/bin", "/usr/lib", "/usr/lib64", sys.prefix, str(ROOT / "python"),
            str(build_folder() / "lib")]


def make_image(folder: pathlib.Path) -> pathlib.Path:
    """The worker's image in /opt/rubato, and what starts its programs in /usr/local/bin."""
    shipped = next(path for path in rubato.build_images(build_folder(), "worker"))
    with tarfile.open(shipped) as archive:
        for layer in (member for member in archive if member.isfile() and member.name.endswith(".tar")):
            with tarfile.open(fileobj=archive.extractfile(layer)) as files:
                files.extractall(folder / "root")
    parts = {f"/opt/rubato/{path.relative_to(folder / 'root')}": path
             for path in (folder / "root" / "usr").rglob("*") if path.is_file()}
    parts |= {f"/usr/local/bin/{name}": ROOT / "deploy" / "beside" for name in ("rubato-agent", "rubato-script")}
    parts["/etc/passwd"] = folder / "root" / "etc" / "passwd"
    images.write_archive(folder / "pytorch.tar", IMAGE, parts, ["/usr/local/bin/rubato-agent"])
    return folder / "pytorch.tar"


@pytest.fixture(scope="module")
def stage(request, tmp_path_factory):
    with contextlib.contextmanager(staged)(request, "e2e-pytorch", NODES) as made:
        made.cluster.load(make_image(tmp_path_factory.mktemp("image")))
        claim = {"namespace": "default", "name": MACHINE}
        size = {"storage": "1Gi"}
        made.cluster.kubectl("apply", "-f", "-", data={"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": MACHINE}, "spec": {
                "capacity": size, "accessModes": ["ReadOnlyMany"], "storageClassName": "", "claimRef": claim,
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/", "type": "Directory"}}},
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": claim, "spec": {
                "accessModes": ["ReadOnlyMany"], "storageClassName": "", "resources": {"requests": size}}}]})
        yield made


class OnPods(PodJob):
    """A job of tests/integration/script_jobs.py, whose pods find everything where it finds it."""

    def __init__(self, name, **settings):
        super().__init__(name, image=IMAGE, **settings)

    def manifest(self):
        made = super().manifest()
        pod = made["spec"]["template"]["spec"]
        container = pod["containers"][0]
        container["env"] = [item for item in container["env"] if item["name"] != "GLOO_SOCKET_IFNAME"]
        pod["volumes"].append({"name": MACHINE, "persistentVolumeClaim": {"claimName": MACHINE, "readOnly": True}})
        container["volumeMounts"] += [{"name": MACHINE, "mountPath": path, "subPath": path[1:], "readOnly": True}
                                      for path in seen_by_pods()]
        return made

    def start(self, stage):
        self.cluster = stage
        self.prepare()
        return stage.apply(self)

    def workers(self):
        mine, found = self.pods(), self.cluster.workers(pathlib.Path(sys.executable).name)
        return {pod: pids for pod, pids in found.items() if pod in mine}


class PytorchPods(OnPods, TorchJob):
    pass


class TorchrunPods(OnPods, ScriptJob):
    pass


def trains_on(job, steps: int) -> None:
    job.wait_step(job.steps_done() + steps, START_S)


def cut_power(stage, job) -> str:
    """Of a node on which no operator leads; the pod that was on it."""
    victim = job.member_away_from(stage.node_of_leader())
    stage.cluster.power_cut(stage.node_of(victim))
    wait_for(lambda: victim not in job.members(), SILENCE_LIMIT_S, f"{victim} to leave")
    return victim


def test_pytorch_power_cut(stage, tmp_path):
    began = time.monotonic()
    job = PytorchPods("torch", gpus=(1, NODES), steps=100000, every=100).start(stage)
    job.wait_members(NODES, START_S)
    trains_on(job, 10)
    figure("pytorch-apply-to-all-train", time.monotonic() - began)
    before = job.identities()
    with CommitClock(job, job.checkpoints / "states") as clock:
        trains_on(job, 10)
        began = time.monotonic()
        victim = cut_power(stage, job)
        trains_on(job, 20)
    figure("pytorch-power-cut-to-next-step", clock.recovered_after(began),
           f"(usual step {clock.usual_step(0, began):.2f} s)")
    assert len(before) == NODES
    before.pop(victim)
    assert job.identities() == before, "who is left was started again"
    job.finish_soon(START_S)
    job.train_alone(tmp_path / "alone")
    alone, together = job.state_files(tmp_path / "alone"), job.state_files(job.checkpoints / "states")
    assert {name: alone[name] == together[name] for name in alone} == dict.fromkeys(alone, True)
    print(f"{job.steps} steps; all files equal to those of a run alone")
    stage.check()


def test_torchrun_power_cut(stage):
    for node in stage.cluster.nodes():
        if not node.machine.is_on():
            stage.cluster.power_on(node.name)
    began = time.monotonic()
    job = TorchrunPods("elastic", gpus=(1, NODES), steps=100000).start(stage)

    def wait_steps(world: int) -> list[dict]:
        """The lines of the script, once the newest five are of so many processes."""
        def newest_are() -> list[dict]:
            lines = job.lines()
            return lines if len(lines) >= 5 and all(line["world"] == world for line in lines[-5:]) else []
        return wait_for(newest_are, START_S, f"steps of {world}")

    def spares() -> int:
        said = stage.cluster.kubectl("logs", "-l", "rubato.dev/job-name=elastic", "--tail=-1").stdout
        return said.count("a spare is ready")

    wait_steps(NODES)
    figure("torchrun-apply-to-all-train", time.monotonic() - began)
    wait_for(lambda: spares() >= NODES, START_S, "a spare interpreter in each pod", poll_s=0.5)
    figure("torchrun-apply-to-all-spares", time.monotonic() - began)
    cut = time.time()
    cut_power(stage, job)
    lines = wait_steps(NODES - 1)
    at = next(index for index, line in enumerate(lines) if line["at"] > cut and line["world"] < NODES)
    last, first = lines[at - 1]["step"], lines[at]
    figure("torchrun-power-cut-to-next-step", first["at"] - cut)
    assert first["step"] in (last, last + 1), "it begins with its checkpoint, which may be one older than its last line"
    (job.checkpoints / "end").touch()
    job.wait_state("Complete", CHANGE_S)
    assert job.status().get("restarts", {}).get("count", 0) == 0, "a lost node is not charged"
    stage.check()
