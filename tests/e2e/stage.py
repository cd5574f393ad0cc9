"""Rubato on a real cluster, seen through what tests/integration has for jobs: its Job and its watches work on
real pods too."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import api_faults
import processes  # tests/integration
import pytest
from jobs import Job, sample_text
from realcluster import rubato
from realcluster.cluster import RESOURCE, Cluster
from realcluster.errors import ClusterError, wait_for
from realcluster.leftovers import leftovers
from watching import SlotRule, Watch, conditions_of

IMAGE = "localhost/rubato-worker:dev"  # what ships
TESTING_IMAGE = "localhost/rubato-testing:dev"  # the same with worker/testing: it keeps a ledger
COMMIT_POLL_S = 0.004
LATE_S = 0.05  # a thread that sleeps and wakes so much later had no processor
CHANGE_S = 180
ACTS_WITHIN_S = 6.0  # of a leader that woke up: twice the silence after which it calls an agent lost
LOSS_EVENTS = {"AgentLost", "LinkFailed", "NodeLost", "PodDeleted", "PodGivenUp", "StepFailed", "StepStalled",
               "WorkerCrashed"}


def build_folder() -> pathlib.Path:
    return pathlib.Path(os.environ["RUBATO_BUILD"])


def figure(name: str, value: float, note: str = "", unit: str = "s") -> None:
    print(f"FIGURE {name} {value:.2f} {unit} {note}".rstrip(), flush=True)


def staged(request: pytest.FixtureRequest | None, name: str, nodes: int,
           values: Mapping[str, Any] | None = None) -> Iterator[Stage]:
    """The body of a fixture: a cluster with Rubato, which is gone without a trace afterwards; logs are kept when it
    does not come up, and when a test fails (conftest.py)."""
    cluster = Cluster(f"{name}-{os.getpid()}", lambda text: print(text, flush=True))
    made = None
    try:
        began = time.monotonic()
        cluster.up(nodes, slots=1, owner=os.getpid())
        figure("cluster-up-to-ready", time.monotonic() - began, f"({nodes} nodes)")
        group, began = cluster.record.id, time.monotonic()
        classes = api_faults.asked()
        faults = api_faults.ApiFaults(cluster, classes) if classes else None
        install(cluster, values)
        figure("helm-install-to-ready", time.monotonic() - began)
        made = Stage(cluster, build_folder(), faults)
        yield made
    finally:
        if made:
            made.close()
        if made is None and cluster.state.exists():
            print("logs kept in", cluster.save_logs(cluster.folder.with_name(f"{cluster.name}.failed-logs")))
        cluster.down()
    assert leftovers(group) == []


def install(cluster: Cluster, values: Mapping[str, Any] | None = None) -> None:
    cluster.load(*rubato.build_images(build_folder(), "testing"))
    rubato.install(cluster, build_folder(), {**(values or {}), **(api_faults.VALUES if api_faults.asked() else {})})


class PlaneView:
    """The API server as tests/integration's ControlPlane offers it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.client_ca, self.admin = cluster.plane.client_ca, cluster.plane.admin
        self.url = f"https://127.0.0.1:{cluster.record.door_port}"
        self.folder = cluster.folder

    def kubectl(self, *words: Any, input: str | None = None, **settings: Any) -> Any:
        return self.cluster.kubectl(*words, data=input, **settings)

    def get(self, *words: Any) -> Any:
        return self.cluster.get(*words)


def message(job: dict, condition: str, reason: str) -> str:
    """What the condition says when it has this reason."""
    found = conditions_of(job).get(condition, {})
    return found.get("message", "") if found.get("reason") == reason else ""


class Stage:
    """One cluster with Rubato, its nodes with one slot each, and watches from the beginning."""

    def __init__(self, cluster: Cluster, build: pathlib.Path, faults: api_faults.ApiFaults | None) -> None:
        self.cluster, self.build, self.bin, self.faults = cluster, build, build / "bin", faults
        self.plane, self.folder = PlaneView(cluster), cluster.folder
        self.claims = cluster.state.shared
        self.slot_rule = SlotRule(RESOURCE)
        for name, node in cluster.record.nodes.items():
            self.slot_rule.add_node(name, node["slots"])
        self.pods = Watch(self.plane, "/api/v1/namespaces/default/pods", self.slot_rule)
        self.trainings = Watch(self.plane, "/apis/rubato.dev/v1alpha1/trainingjobs")

    def close(self) -> None:
        for watch in (self.pods, self.trainings):
            watch.ending.set()
        if self.faults:
            self.faults.stop()

    def check(self) -> None:
        for watch in (self.pods, self.trainings):
            watch.check()

    def keep(self, test: str) -> None:
        """Logs and the state of things as `test` left them; and their ends, to be read at once."""
        where = self.cluster.folder.with_name(f"{self.cluster.name}.{test}.failed-logs")
        print("logs kept in", self.cluster.save_logs(where))
        print(self.explain(), flush=True)

    def explain(self) -> str:
        said = [self.cluster.kubectl(*words.split(), check=False).stdout for words in (
            "get nodes,pods -A -o wide", "get tj -A -o wide", "get events -n default --sort-by=.lastTimestamp")]
        said.append(self.cluster.kubectl("logs", "-n", rubato.NAMESPACE, "--prefix", "--tail=15", "-l",
                                         "app.kubernetes.io/name=rubato-operator", check=False).stdout)
        return "\n".join("\n".join(text.splitlines()[-30:]) for text in said)

    # ---- nodes ----

    def add_node(self) -> str:
        self.slot_rule.add_node(f"n{self.cluster.record.next_number}", 1)
        return self.cluster.add_node(slots=1).name

    def node_of(self, pod: str) -> str:
        return self.pods.get(pod)["spec"]["nodeName"]

    def workers(self, program: str = "rubato-worker") -> dict[str, list[int]]:
        """{pod: process ids of its workers}, as this host counts, over all nodes that have power."""
        return self._processes(program, "RUBATO_POD_NAME")

    def operators(self) -> dict[str, list[int]]:
        return self._processes("rubato-operator", "POD_NAME")

    def _processes(self, program: str, variable: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for node in self.cluster.nodes():
            if node.machine.is_on():
                for pid in sorted(node.machine.group.processes()):
                    if processes.name_of(pid) == program:
                        found.setdefault(processes.environment_of(pid).get(variable, "?"), []).append(pid)
        return found

    # ---- operators ----

    def holder(self) -> str | None:
        """Who holds the Lease: the pod of the operator that leads, and which life of it."""
        found = self.cluster.kubectl("-n", rubato.NAMESPACE, "get", "lease", "rubato-operator", "-o", "json",
                                     check=False)
        if found.returncode != 0:
            return None
        return json.loads(found.stdout)["spec"].get("holderIdentity") or None

    def leader(self) -> str | None:
        """The pod of the operator that leads."""
        holder = self.holder()
        return holder.rsplit("_", 1)[0] if holder else None

    def node_of_leader(self) -> str:
        leader = wait_for(self.leader, 120, "an operator that leads")
        return self.cluster.get("pod", leader, "-n", rubato.NAMESPACE)["spec"]["nodeName"]

    def scale_operators(self, replicas: int) -> None:
        self.cluster.kubectl("-n", rubato.NAMESPACE, "scale", "deployment", "rubato-operator",
                             f"--replicas={replicas}")

    # ---- jobs ----

    def apply(self, job: PodJob) -> PodJob:
        job.cluster = self
        for claim in ("tokens", job.claim):
            self.cluster.volume(claim)
        tokens = self.claims / "default" / "tokens" / "tokens.bin"
        if not tokens.exists():
            rubato.tokenize(self.build, sample_text().encode(), tokens)
        self.cluster.kubectl("apply", "-f", "-", data=job.manifests())
        return job


class PodJob(Job):
    """A small job whose workers are real pods. `cpu` keeps a step long enough for things to happen in it."""

    def __init__(self, name: str, cpu: str | None = None, image: str = TESTING_IMAGE, pull: str = "Never",
                 **settings: Any) -> None:
        super().__init__(name, **settings)
        self.cpu, self.image, self.pull = cpu, image, pull

    def testing_worker(self) -> list:
        return []  # it is in the image

    def manifest(self) -> dict:
        made = super().manifest()
        pod = made["spec"]["template"]["spec"]
        container = pod["containers"][0]
        container |= {"image": self.image, "imagePullPolicy": self.pull,
                      "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}}}
        if self.cpu:
            container["resources"]["limits"] = {"cpu": self.cpu}
        for volume in pod["volumes"]:
            if volume["name"] == "fault":
                volume["emptyDir"] = {"sizeLimit": "4Mi"}
        return made

    def workers(self) -> dict[str, list[int]]:
        mine = self.pods()
        return {pod: pids for pod, pids in self.cluster.workers().items() if pod in mine}

    def message(self, condition: str) -> str:
        return conditions_of(self.object()).get(condition, {}).get("message", "")

    def members(self) -> list[str]:
        return [member["pod"] for member in self.status().get("membership", {}).get("members", [])]

    def identities(self) -> dict[str, list[tuple[int, int | None]]]:
        """{pod: [(process id, start time)]}: a worker that was restarted is seen."""
        return {pod: [(pid, processes.start_time(pid)) for pid in pids] for pod, pids in self.workers().items()}

    def member_away_from(self, node: str) -> str:
        """A member whose pod is on another node; the last of the ring."""
        return next(pod for pod in reversed(self.members()) if self.cluster.node_of(pod) != node)

    def event_versions(self) -> set[tuple[str, str]]:
        """(reason, version) of each event: what comes, or is said again, is new."""
        return {(event["reason"], event["metadata"]["resourceVersion"]) for event in self.events()}

    def differs_from(self, reference: Job) -> str:
        """Where the records so far differ from the undisturbed run; empty when they do not."""
        for ours, theirs in zip(self.records(), reference.records()):
            if ours != theirs:
                return f"{self.name}: step {ours[0] + 1} differs from the undisturbed run: {ours} {theirs}"
        return ""


@dataclasses.dataclass
class StallCost:
    """What a job lost while the leading operator stood still, and after it went on."""
    seconds: float
    longest_step: float
    workers_lost: list[str]  # pods whose worker is another process, or none
    pods_deleted: list[str]  # or told to end
    fewest_members: int  # of the record, at any time since
    generations: int
    events: list[str]  # what the operator said of pods that are gone
    is_led_by_other: bool

    def is_nothing(self) -> bool:
        return not (self.workers_lost or self.pods_deleted or self.generations or self.events)


def stall_leader(stage: Stage, job: PodJob, seconds: float) -> StallCost:
    """SIGSTOP to the operator that leads, SIGCONT after `seconds`; then steps enough for it to act on what it finds,
    and to say how far the job is."""
    holder, pids = wait_for(lambda: (h := stage.holder()) and (p := stage.operators().get(h.rsplit("_", 1)[0]))
                            and (h, p), CHANGE_S, "an operator that leads")
    workers, pods = job.identities(), {name: pod["metadata"]["uid"] for name, pod in job.living_pods().items()}
    seen = len(job.states())
    generation, told = job.status()["membership"]["generation"], job.event_versions()
    with CommitClock(job) as clock:
        began = time.monotonic()
        os.kill(pids[0], signal.SIGSTOP)
        try:
            wait_for(lambda: time.monotonic() - began >= seconds, seconds + 5, "the leader to have stood still",
                     poll_s=0.01)
        finally:
            os.kill(pids[0], signal.SIGCONT)
        woken = time.monotonic()
        wait_for(lambda: time.monotonic() - woken >= ACTS_WITHIN_S, ACTS_WITHIN_S + 5, "it to act")
        goal = job.steps_done() + 1
        job.wait(lambda now: now["status"]["progress"]["step"] >= goal, CHANGE_S, "the leader's word on progress")
    now = {name: pod["metadata"]["uid"] for name, pod in job.living_pods().items()}
    after = job.identities()
    return StallCost(seconds, max(clock.gaps(began))[0],
                     sorted(pod for pod in workers if after.get(pod) != workers[pod]),
                     sorted(pod for pod, uid in pods.items() if now.get(pod) != uid),
                     min(len(state["status"]["membership"]["members"]) for state in job.states()[seen - 1:]),
                     job.status()["membership"]["generation"] - generation,
                     sorted({reason for reason, _ in job.event_versions() - told} & LOSS_EVENTS),
                     stage.holder() != holder)


class CommitClock:
    """When steps were committed: watches steps.bin on a thread of its own."""

    def __init__(self, job: Job, folder: pathlib.Path | None = None) -> None:
        self.path = (folder or job.checkpoints) / "steps.bin"
        self.seen = [(time.monotonic(), job.steps_done())]
        self.late: list[tuple[float, float]] = []  # when the thread woke late, and by how much
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> CommitClock:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ending.set()
        self._thread.join(5)

    def _run(self) -> None:
        slept = time.monotonic()
        while not self._ending.wait(COMMIT_POLL_S):
            woke = time.monotonic()
            if (late := woke - slept - COMMIT_POLL_S) > LATE_S:
                self.late.append((woke, late))
            steps = os.stat(self.path).st_size // 32 if self.path.exists() else 0
            if steps != self.seen[-1][1]:
                self.seen.append((time.monotonic(), steps))
            slept = time.monotonic()

    def gaps(self, since: float) -> Iterator[tuple[float, float]]:
        """(length, end) of each pause between commits that ended after `since`."""
        for (before, _), (after, _) in zip(self.seen, self.seen[1:]):
            if after > since:
                yield after - before, after

    def recovered_after(self, since: float) -> float:
        """From `since` to the end of the longest pause after it: the first step that was committed again."""
        gaps = list(self.gaps(since))
        if not gaps:
            raise ClusterError("no step was committed")
        return max(gaps)[1] - since

    def silence_after(self, since: float) -> float:
        """recovered_after(), less what the machine took: the time by which this thread woke late, and a step as slow as
        the slowest before, for what is in hand is computed again."""
        recovered = self.recovered_after(since)
        stolen = sum(late for woke, late in self.late if since < woke <= since + recovered)
        return recovered - stolen - max((length for length, end in self.gaps(0) if end <= since), default=0.0)

    def usual_step(self, since: float, until: float) -> float:
        within = sorted(length for length, end in self.gaps(since) if end < until)
        return within[len(within) // 2] if within else float("nan")
