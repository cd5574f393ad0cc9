"""A small TrainingJob of a test: its manifest, and what its workers leave behind (records of steps, ledger,
logs)."""

import calendar
import json
import os
import pathlib
import random
import re
import struct
import subprocess
import time

from cluster import wait_quickly
from control_plane import ControlPlaneError
from watching import condition_story, conditions_of

RECORD = struct.Struct("<QQQQ")  # worker/checkpoint/step_record.h
STEP_LINE = re.compile(r"^(\S+Z) step=(\d+) .*bits=(0x[0-9a-f]+)(.*)$")
LOST_POD = r"pod \S+ on node \S+ (lost: |did not come back)"  # under the leader that saw it; under one that came after
STEPS_MORE = 60
WORDS = ["time", "is", "taken", "from", "one", "note", "and", "given", "back", "to", "another", "stolen"]


def sample_text(words=40000):
    """Text that is the same everywhere."""
    rng = random.Random(1)
    return " ".join(rng.choice(WORDS) + rng.choice(["", ",", "."]) for _ in range(words))


class Job:
    """`micro`, `batch`, `length`, `hidden` set how long a step takes."""

    def __init__(self, name, steps=60, gpus=(1, 4), batch=16, micro=2, length=128, layers=2, hidden=64,
                 every=1000, claim=None, preset=None, env=None, park_seconds=None, ledger=True):
        self.name, self.steps, self.gpus = name, steps, gpus
        self.batch, self.micro, self.length = batch, micro, length
        self.layers, self.hidden, self.every, self.preset = layers, hidden, every, preset
        self.claim, self.env, self.park_seconds = claim or f"{name}-checkpoints", env or {}, park_seconds
        self.cluster, self.keep, self.ledger = None, False, ledger

    @property
    def micro_batches(self):
        return self.batch // self.micro

    # ---- manifest ----

    def testing_worker(self):
        """What makes an agent start the worker that keeps a ledger and heeds fault plans (worker/testing). A job
        without a ledger trains with the one that ships."""
        build = self.cluster.bin if self.cluster else pathlib.Path(os.environ["RUBATO_BUILD"]) / "bin"
        return [{"name": "RUBATO_WORKER", "value": str(build / "testing" / "rubato-worker")}] if self.ledger else []

    def manifests(self):
        claims = [{"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                   "metadata": {"name": name, "namespace": "default"},
                   "spec": {"accessModes": ["ReadWriteMany"],
                            "resources": {"requests": {"storage": "1Gi"}}}}
                  for name in ("tokens", self.claim)]
        return {"apiVersion": "v1", "kind": "List", "items": [*claims, self.manifest()]}

    def manifest(self):
        model = ({"family": "gpt2", "preset": self.preset} if self.preset else
                 {"family": "gpt2", "layers": self.layers, "hidden": self.hidden, "heads": 4})
        container = {
            "name": "worker", "image": "rubato/worker:dev", "command": ["rubato-agent"],
            "env": [{"name": "RUBATO_LEDGER", "value": "1" if self.ledger else ""},
                    {"name": "RUBATO_FAULT_FILE", "value": "/fault/plan"}, *self.testing_worker(),
                    *({"name": k, "value": v} for k, v in self.env.items())],
            "volumeMounts": [{"name": "tokens", "mountPath": "/data", "readOnly": True},
                             {"name": "checkpoints", "mountPath": "/ckpt"},
                             {"name": "fault", "mountPath": "/fault"}]}
        volumes = [{"name": "tokens", "persistentVolumeClaim": {"claimName": "tokens", "readOnly": True}},
                   {"name": "checkpoints", "persistentVolumeClaim": {"claimName": self.claim}},
                   {"name": "fault", "emptyDir": {}}]
        training = {
            "model": model, "data": {"path": "/data/tokens.bin", "validationFraction": 0.1},
            "batch": {"global": self.batch, "micro": self.micro, "sequenceLength": self.length},
            "optimizer": {"learningRate": 1e-3, "schedule": {"warmupSteps": 5, "decay": "constant"}},
            "stop": {"steps": self.steps}, "seed": 7, "reduce": "exact",
            "checkpoint": {"every": self.every, "path": "/ckpt", "keep": 3}}
        spec = {"gpus": {"min": self.gpus[0], "max": self.gpus[1]}, "training": training,
                "template": {"spec": {"containers": [container], "volumes": volumes}}}
        if self.park_seconds is not None:
            spec["parkSeconds"] = self.park_seconds
        return {"apiVersion": "rubato.dev/v1alpha1", "kind": "TrainingJob",
                "metadata": {"name": self.name, "namespace": "default"}, "spec": spec}

    def prepare(self):
        tokens = self.cluster.claims / "default" / "tokens" / "tokens.bin"
        if not tokens.exists():
            self.cluster.tokenize(sample_text(), tokens)

    # ---- the object ----

    def object(self):
        return self.cluster.trainings.get(self.name)

    def status(self):
        return (self.object() or {}).get("status", {})

    def state(self):
        return self.status().get("state")

    def patch(self, spec):
        self.cluster.plane.kubectl("patch", "trainingjob", self.name, "--type=merge", "-p",
                                   json.dumps({"spec": spec}))

    def finish_soon(self, limit_s):
        """Lets it end some steps from now: how fast it trains is the machine's affair, and it may be past that step
        when it hears of it; then it ends where it is."""
        self.end_soon()
        self.wait_state("Complete", limit_s)
        self.steps = max(self.steps, self.steps_done())

    def end_soon(self):
        self.steps = min(self.steps, self.steps_done() + STEPS_MORE)
        self.patch({"training": {"stop": {"steps": self.steps}}})

    def delete(self):
        self.cluster.plane.kubectl("delete", "trainingjob", self.name, "--wait=false")

    def wait(self, condition, limit_s, what):
        """Until condition(object) holds in some state that the API server gave out."""
        try:
            return self.cluster.trainings.wait(
                lambda latest: condition(latest.get(("default", self.name))), limit_s,
                f"{self.name}: {what}")
        except ControlPlaneError as error:
            raise ControlPlaneError(f"{error}\n{json.dumps(self.status(), indent=1)}\n"
                                    f"{self.cluster.explain()}") from None

    def states(self):
        """Every state of the object that the API server gave out, in order."""
        return [event.object for event in self.cluster.trainings.history(self.name)]

    def wait_seen(self, condition, limit_s, what, since=0):
        """Until one of the states() from the `since`-th on is as condition(object) wants it: it may have passed
        already."""
        self.wait(lambda _: any(map(condition, self.states()[since:])), limit_s, what)

    def wait_state(self, state, limit_s):
        return self.wait(lambda job: job and job.get("status", {}).get("state") == state, limit_s,
                         f"state {state}")

    def wait_condition(self, kind, status="True", limit_s=120, reason=None):
        def holds(job):
            found = conditions_of(job).get(kind)
            return found and found["status"] == status and reason in (None, found["reason"])
        return self.wait(holds, limit_s, f"{kind}={status} {reason or ''}")

    def wait_gone(self, limit_s):
        self.wait(lambda job: job is None, limit_s, "object gone")

    def wait_members(self, count, limit_s, without=None):
        """Until so many workers train together, as the record of membership says; none of the pod `without`."""
        def holds(job):
            membership = (job or {}).get("status", {}).get("membership", {})
            pods = [member["pod"] for member in membership.get("members", [])]
            return membership.get("phase") == "Training" and len(pods) == count and without not in pods
        return self.wait(holds, limit_s, f"{count} members")

    def story(self):
        return condition_story(self.cluster.trainings.history(self.name))

    def was(self, kind, reason=None):
        """Was this condition ever true (for this reason)?"""
        return any(k == kind and status == "True" and reason in (None, why)
                   for k, status, why in self.story())

    def recovered(self, why):
        """Was there a recovery with this reason (a regular expression)? It is counted when it is over; the condition
        Recovering may come and go between two writes of the status."""
        return any(re.match(rf"recover: {why}", state.get("status", {}).get("rescales", {}).get("last", {})
                            .get("reason", "")) for state in self.states())

    def wait_node_lost(self, limit_s):
        self.wait(lambda _: self.was("Recovering", "NodeLost") or self.recovered(LOST_POD),
                  limit_s, "a recovery from the loss of a node")

    def events(self):
        found = self.cluster.plane.get("events.events.k8s.io", "-n", "default")["items"]
        return [e for e in found if e.get("regarding", {}).get("name") == self.name]

    # ---- pods and processes ----

    def pods(self):
        with self.cluster.pods.changed:
            return {name: pod for (ns, name), pod in self.cluster.pods.latest.items()
                    if pod["metadata"].get("labels", {}).get("rubato.dev/job-name") == self.name}

    def living_pods(self):
        return {name: pod for name, pod in self.pods().items()
                if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
                and "deletionTimestamp" not in pod["metadata"]}

    def workers(self):
        """{pod name: [pid of its workers]} over all nodes, of this job."""
        mine, found = self.pods(), {}
        for node in self.cluster.nodes.values():
            for pod, pids in node.workers().items():
                if pod in mine:
                    found[pod] = pids
        return found

    def pod_of_rank(self, rank):
        """The pod whose worker has this rank, as the record of membership says."""
        return self.status()["membership"]["members"][rank]["pod"]

    def pod_folder(self, pod):
        uid = self.pods()[pod]["metadata"]["uid"]
        return self.cluster.node_of(pod).root / "pods" / uid

    def plant(self, pod, phase, action="stop", ahead=5):
        """Stops (or kills) the pod's worker within one of the next steps, in the named phase; returns the
        step, zero-based, once that has happened."""
        step = self.steps_done() + ahead
        plan = self.pod_folder(pod) / "volumes" / "fault" / "plan"
        hidden = plan.with_suffix(".new")
        hidden.write_text(f"{phase}:{step}:{action}\n")
        hidden.rename(plan)
        log = self.pod_folder(pod) / "worker.log"
        wait_quickly(lambda: "fault-point phase=" in log.read_text(errors="replace"), 120,
                     f"{pod} at {phase} of step {step}")
        return step

    # ---- what the workers leave ----

    @property
    def checkpoints(self):
        return self.cluster.claims / "default" / self.claim

    def records(self):
        """steps.bin as [(step, loss bits, digest of samples, gradient norm bits)]."""
        return self.records_in(self.checkpoints)

    @staticmethod
    def records_in(folder):
        try:
            data = (folder / "steps.bin").read_bytes()
        except FileNotFoundError:
            return []
        whole = data[:len(data) // RECORD.size * RECORD.size]
        return list(RECORD.iter_unpack(whole))

    def steps_done(self):
        return len(self.records())

    def wait_step(self, step, limit_s=120):
        """Until so many steps are committed; a matter of milliseconds after the commit."""
        try:
            wait_quickly(lambda: self.steps_done() >= step, limit_s, f"{self.name}: step {step}")
        except ControlPlaneError as error:
            raise ControlPlaneError(f"{error} but {self.steps_done()}\n"
                                    f"{json.dumps(self.status(), indent=1)}\n"
                                    f"{self.cluster.explain()}") from None

    def log_files(self):
        """{pod uid: path of the worker container's log}, of this job, pods that are gone too."""
        uids = {event.object["metadata"]["uid"] for event in self.cluster.pods.events
                if event.object["metadata"].get("labels", {}).get("rubato.dev/job-name") == self.name}
        found = {}
        for path in (self.cluster.folder / "nodes").glob("*/pods/*/worker.log"):
            if path.parent.name in uids:
                found[path.parent.name] = path
        return found

    def step_lines(self, uid):
        """[(wall seconds, step, loss bits)] that the pod's worker committed itself, in order."""
        lines = []
        for line in self.log_files()[uid].read_text(errors="replace").splitlines():
            found = STEP_LINE.match(line)
            if found and "replay=1" not in found[4]:
                lines.append((wall_seconds(found[1]), int(found[2]), int(found[3], 16)))
        return lines

    def check_ledger(self, reference=None):
        """Runs check_ledger: each sample once, each micro-batch's tokens as in the file. Returns what it
        counted; raises with its faults."""
        words = [self.cluster.bin.parent / "tests" / "check_ledger", self.checkpoints / "ledger",
                 "--tokens", self.cluster.claims / "default/tokens/tokens.bin", "--steps", self.steps,
                 "--global-batch", self.batch, "--micro-batch", self.micro,
                 "--sequence-length", self.length, "--validation-fraction", 0.1]
        if reference is not None:
            words += ["--reference", reference.checkpoints / "ledger"]
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
        assert done.returncode == 0, f"{self.name}: {done.stdout}{done.stderr}"
        return json.loads(done.stdout)


def wall_seconds(stamp):
    """Of 2026-11-21T08:00:00.123456Z."""
    whole, part = stamp.rstrip("Z").split(".")
    return calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) + int(part) / 10 ** len(part)
