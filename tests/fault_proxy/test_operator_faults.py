"""Two operators, each behind a fault proxy, while the API server between them and the world has bad days. Jobs
that really train start, grow, lose a node, are suspended, resumed and complete, each of it under another
class of faults. Then the questions of test_elastic.py: are the losses, bit for bit, those of an undisturbed
run? Was every sample used once? Was a slot ever given twice? And: was a pod made twice, did an old leader ever
write after a new one, do the events tell what happened?

FAULT_SEED chooses which class meets which moment. FAULT_CLASSES=cut,delay gives each of the named ones a
whole story of its own (FAULT_CLASSES=all takes some ten minutes).
"""

import json
import os
import random
import threading
import time

import pytest
from catalogue import CLASSES, Trouble
from cluster import LEASE_S, Cluster
from control_plane import ControlPlane, ControlPlaneError, wait_until
from jobs import Job
from remote import Certificates, FaultProxy

SEED = int(os.environ.get("FAULT_SEED", "1"))
REPLICAS = 2
WATCH_S = 6  # of the operators: a swallowed watch is missed no later
MOMENTS = ("start", "grow", "loss", "suspension", "resumption")
STORIES = 3  # so that each class has a moment
SETTINGS = {"batch": 16, "micro": 2, "length": 128, "hidden": 64}
STEPS_MOST = 20000  # more than any story has time for: each job is told when to end
CHANGE_S = 120  # of one change, with a fault on
FINISH_S = 600
EVENTS_S = 120
RESTART_S = 0.3


class Kubelet:
    """Starts an operator again when it has ended, and keeps its exit statuses."""

    def __init__(self, cluster):
        self.cluster, self.statuses, self.ending = cluster, [], threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while not self.ending.wait(RESTART_S):
            for operator in list(self.cluster.operators.values()):
                if not operator.is_running():
                    self.statuses.append(operator.child.returncode)
                    operator.start()

    def stop(self):
        self.ending.set()
        self.thread.join()


class LeaderRule:
    """Allocations are written by leaders in their order: after a newer one, none of an older. Use as on_event
    of a watch of TrainingJobs: the server gives its changes out in the order they were made."""

    def __init__(self):
        self.newest, self.epochs = 0, {}

    def __call__(self, event):
        name = event.object["metadata"]["uid"]
        status = event.object.get("status", {})
        membership = status.get("membership", {})
        for kind, number, leader in (
                ("allocation", status.get("allocation", {}).get("epoch", 0),
                 status.get("allocation", {}).get("leaderTransition", 0)),
                ("membership", (membership.get("generation", 0), membership.get("seq", 0)),
                 membership.get("leader", 0))):
            if not leader or self.epochs.get((name, kind)) == (number, leader):
                continue
            self.epochs[name, kind] = (number, leader)
            assert leader >= self.newest, \
                f"{event.object['metadata']['name']}: {kind} {number} by leader {leader} after {self.newest}"
            self.newest = leader


@pytest.fixture(scope="module")
def world():
    with ControlPlane(controller_manager=True) as plane:
        certificates = Certificates.of(plane)
        proxies = [FaultProxy(plane, f"operator-{n}", SEED + n, certificates) for n in range(REPLICAS)]
        cluster = Cluster(plane, os.environ["RUBATO_BUILD"], REPLICAS, ["--watch-seconds", WATCH_S],
                          lambda _: [proxy.kubeconfig for proxy in proxies])
        cluster.proxies, cluster.finished = proxies, []
        with cluster:
            cluster.leader_rule = LeaderRule()
            cluster._watch("/apis/rubato.dev/v1alpha1/trainingjobs", cluster.leader_rule)
            cluster.kubelet = Kubelet(cluster)
            yield cluster
            cluster.kubelet.stop()
        for proxy in proxies:
            proxy.stop()
        cluster.check_nothing_left()
        assert not cluster.kubelet.statuses, f"an operator ended: {cluster.kubelet.statuses}"


@pytest.fixture
def cluster(world, request):
    failed = request.session.testsfailed
    yield world
    for proxy in world.proxies:
        proxy.clear()
    if request.session.testsfailed > failed:
        world.plane.keep = True
        print(f"logs are kept in {world.folder}\n{world.explain()}")
        print("\n".join(proxy.explain() for proxy in world.proxies))
    world.clear(CHANGE_S)
    world.check()


def finish(job):
    job.finish_soon(FINISH_S)
    job.cluster.finished.append(job)


class Moments:
    """Switches the class of each moment on before it, and off after it; keeps how long each took."""

    def __init__(self, cluster, classes, say):
        self.cluster, self.classes, self.say = cluster, classes, say

    def __call__(self, moment, act, wait):
        name = self.classes[moment]
        trouble = Trouble(self.cluster.proxies, CLASSES[name])
        began = time.monotonic()
        try:
            act()
            wait()
        finally:
            trouble.stop()
        self.say(f"  {moment:11} under {name:14} {time.monotonic() - began:5.1f} s")


def bury(cluster, node):
    """What an administrator does with a node that will not come back: until then its pods count as running."""
    cluster.remove_node(node)
    with cluster.pods.changed:
        dead = [key for key, pod in cluster.pods.latest.items() if pod["spec"].get("nodeName") == node.name]
    for namespace, name in dead:
        cluster.plane.kubectl("-n", namespace, "delete", "pod", name, "--force", "--grace-period=0", check=False)


def story(cluster, name, classes, say):
    term = cluster.term()
    cluster.add_node()
    job = Job(name, gpus=(1, 2), steps=STEPS_MOST, **SETTINGS)
    moment = Moments(cluster, classes, say)

    def started():
        job.wait_members(1, CHANGE_S)
        job.wait_step(3, CHANGE_S)
    moment("start", lambda: cluster.apply(job), started)
    moment("grow", cluster.add_node, lambda: job.wait_members(2, CHANGE_S))
    victim = cluster.node_of(job.pod_of_rank(1))

    def lost():
        job.wait_members(1, CHANGE_S)
        job.wait_step(job.steps_done() + 5, CHANGE_S)
    moment("loss", victim.kill, lost)
    bury(cluster, victim)

    def suspended():
        job.wait_condition("Suspended", limit_s=CHANGE_S, reason="Suspended")
        wait_until(lambda: not job.workers() and not job.living_pods(), CHANGE_S, "the pods to go")
    moment("suspension", lambda: job.patch({"suspend": True}), suspended)
    step = job.steps_done()
    moment("resumption", lambda: job.patch({"suspend": False}), lambda: job.wait_step(step + 3, CHANGE_S))
    finish(job)
    judge(cluster, job, told=cluster.term() == term)


def judge(cluster, job, told):
    assert job.steps_done() == job.steps
    job.check_ledger()
    cluster.check()  # the slot rule, and the rule of leaders
    uids = {}
    for event in list(cluster.pods.events):
        if event.object["metadata"].get("labels", {}).get("rubato.dev/job-name") == job.name:
            uids.setdefault(event.object["metadata"]["name"], set()).add(event.object["metadata"]["uid"])
    assert all(len(of_name) == 1 for of_name in uids.values()), f"a pod was made twice: {uids}"
    allocated = {pod["name"] for event in cluster.trainings.history(job.name)
                 for pod in event.object.get("status", {}).get("allocation", {}).get("pods", [])}
    assert set(uids) <= allocated, "a pod that nobody decided on"
    assert job.was("Suspended") and job.was("Complete")
    # A repair may take less time than it takes to say so through the fault: its mark is the count.
    assert job.status()["rescales"]["count"] >= 2, job.story()
    if told:  # events that a leader has not written when it loses its Lease are lost with it
        wait_told(job, {"Allocated", "Suspended", "StepsReached"})


def wait_told(job, reasons):
    """Until events about the job have given each of these reasons."""
    told = []

    def are_told():
        told[:] = sorted(f"{(event.get('eventTime') or '')[11:19]} {event['reason']}" for event in job.events())
        return all(any(line.endswith(f" {reason}") for line in told) for reason in reasons)
    try:
        wait_until(are_told, EVENTS_S, f"{job.name}: events {sorted(reasons)}")
    except ControlPlaneError as error:
        raise ControlPlaneError(f"{error}; its {len(told)} events: {', '.join(told)}") from error


def chosen():
    """[(name of the story, {moment: class})]"""
    if asked := os.environ.get("FAULT_CLASSES"):
        names = list(CLASSES) if asked == "all" else asked.split(",")
        return [(name, dict.fromkeys(MOMENTS, name)) for name in names]
    names = list(CLASSES)
    random.Random(f"stories:{SEED}").shuffle(names)
    found = []
    for number in range(STORIES):
        classes = [names[(number * len(MOMENTS) + i) % len(names)] for i in range(len(MOMENTS))]
        found.append((f"story-{number + 1}", dict(zip(MOMENTS, classes))))
    return found


@pytest.mark.parametrize("name, classes", chosen(), ids=lambda value: value if isinstance(value, str) else "")
def test_story(cluster, name, classes, capsys):
    def say(line):
        with capsys.disabled():
            print(line, flush=True)
    say("")
    story(cluster, name, classes, say)


def test_a_leader_that_is_slow_is_replaced_and_writes_nothing_more(cluster):
    """The leader's writes crawl, and its Lease cannot be renewed in time: the other leads. What the old one
    still has under way must not be done after that; LeaderRule sees every write."""
    leader = cluster.leader()
    proxy = cluster.proxies[list(cluster.operators).index(leader)]
    cluster.add_nodes(2)
    job = cluster.apply(Job("handover", gpus=(1, 2), steps=STEPS_MOST, **SETTINGS))
    job.wait_members(2, CHANGE_S)
    with proxy.fault({"kind": "delay", "seconds": LEASE_S, "verbs": ["PUT"], "path": "/leases/"},
                     {"kind": "delay", "seconds": LEASE_S * 0.8, "verbs": ["PATCH", "POST", "DELETE"]}):
        job.patch({"suspend": True})
        wait_until(lambda: cluster.leader() not in (None, leader), CHANGE_S, "the other to lead")
        job.wait_condition("Suspended", limit_s=CHANGE_S, reason="Suspended")
    job.patch({"suspend": False})
    job.wait_members(2, CHANGE_S)
    finish(job)
    assert job.steps_done() == job.steps
    job.check_ledger()
    cluster.check()


def test_a_pod_name_that_is_taken_is_said(cluster):
    """A 409 that is no answer of ours come back late: the pod is somebody else's."""
    foreign = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "taken-w0", "namespace": "default"},
               "spec": {"schedulerName": "nobody", "containers": [{"name": "c", "image": "x"}]}}
    cluster.plane.kubectl("apply", "-f", "-", input=json.dumps(foreign))
    cluster.add_node()
    job = cluster.apply(Job("taken", gpus=(1, 1), steps=STEPS_MOST, **SETTINGS))
    wait_until(lambda: "PodNameTaken" in {event["reason"] for event in job.events()}, CHANGE_S, "the event")
    cluster.plane.kubectl("delete", "pod", "taken-w0", "--grace-period=0", "--force")
    job.wait_members(1, CHANGE_S)
    finish(job)
    assert job.steps_done() == job.steps


def test_losses_are_those_of_an_undisturbed_run(cluster):
    """Last: one worker, as many steps as any of the others took."""
    assert cluster.finished
    cluster.add_node()
    reference = cluster.apply(Job("reference", gpus=(1, 1), steps=max(job.steps for job in cluster.finished),
                                  **SETTINGS))
    reference.wait_state("Complete", FINISH_S)
    reference.check_ledger()
    for job in cluster.finished:
        for ours, theirs in zip(job.records(), reference.records()):
            assert ours == theirs, f"{job.name}: step {ours[0] + 1} differs from the undisturbed run"
        job.check_ledger(reference)
