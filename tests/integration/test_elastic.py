"""An elastic job on a real API server, with everything that can happen to it: two operators, nodes that are
processes, workers that really train. Each story ends with the same three questions: are the losses, bit for
bit, those of one undisturbed worker? Was every sample used once? Was a slot ever given twice?
"""

import itertools
import json
import os
import re
import signal
import sys
import time

import pytest
import processes
from cluster import wait_quickly
from cluster_fixtures import CHANGE_S, cluster, plane_and_cluster  # noqa: F401
from control_plane import wait_until
from jobs import Job
from watching import conditions_of

REFERENCE_STEPS = 1200  # as many as the longest of the stories takes; most take a few hundred
STEPS = 100000  # more than one ever takes: things must have time to happen
# DESIGN: what `kubectl get tj` shows, and what -o wide adds.
COLUMNS = ["NAME", "STATE", "GPUS", "TYPE", "PROGRESS", "LOSS", "TOKENS/S", "GOODPUT", "RESCALES", "AGE"]
WIDE = COLUMNS + ["QUEUE", "REASON"]
FINISH_S = 600


@pytest.fixture(scope="module")
def reference(plane_and_cluster):
    """One worker, never disturbed: what all others are held to."""
    cluster = plane_and_cluster
    node = cluster.add_node()
    job = cluster.apply(Job("reference", steps=REFERENCE_STEPS, gpus=(1, 1)))
    job.keep = True
    job.wait_state("Complete", FINISH_S)
    assert job.steps_done() == REFERENCE_STEPS
    counted = job.check_ledger()
    assert counted["forwards"] == once(job, counted)
    wait_until(lambda: not job.workers(), CHANGE_S, "the workers to end")
    cluster.remove_node(node)
    return job


def set_policy(cluster, **spec):
    """Free GPUs are always taken, and at once: what two workers gain is measured here on cores that they share with all
    else, and a job that may grow once a minute may be done before it may grow again."""
    parameters = {"minRelativeGain": -1, **spec.pop("parameters", {})}
    cluster.plane.kubectl("apply", "-f", "-", input=json.dumps(
        {"apiVersion": "rubato.dev/v1alpha1", "kind": "SchedulingPolicy", "metadata": {"name": "default"},
         "spec": {"rescaleBudget": {"perJobSeconds": 0}, **spec, "parameters": parameters}}))


@pytest.fixture(autouse=True)
def growth(cluster):
    set_policy(cluster)


def same_as(reference, job):
    """The three questions, of the steps that both have. Returns what the ledger counted."""
    assert job.steps_done() == job.steps
    for ours, theirs in zip(job.records(), reference.records()):
        assert ours == theirs, f"{job.name}: step {ours[0] + 1} differs from the undisturbed run"
    counted = job.check_ledger(reference if job.steps <= REFERENCE_STEPS else None)
    job.cluster.check()
    return counted


def once(job, counted):
    """Forward passes when each micro-batch is computed once per round: rounds that all decided to do again, because
    an exponent overflowed, are rounds too."""
    return (job.steps + counted["redone"]) * job.micro_batches


def processes_of(job):
    """{pod: [(pid, start)]}: the workers, so that a restarted one is seen."""
    return {pod: [(pid, processes.start_time(pid)) for pid in pids]
            for pod, pids in job.workers().items()}


def notes_of(job):
    """Of its events, by reason."""
    return {event["reason"]: event["note"] for event in job.events()}


def survived(before, job, pods):
    after = processes_of(job)
    for pod in pods:
        assert after.get(pod) == before[pod], f"the worker of {pod} was restarted: {before} {after}"


def start(cluster, name, nodes, **settings):
    """A job that trains on all of so many nodes."""
    cluster.add_nodes(nodes)
    settings = {"gpus": (1, nodes), "steps": STEPS} | settings
    job = cluster.apply(Job(name, **settings))
    job.wait_members(nodes, CHANGE_S)
    job.wait_step(5)
    return job


def table(cluster, *words):
    lines = cluster.plane.kubectl("get", "tj", *words).stdout.splitlines()
    return re.split(r"\s{2,}", lines[0].strip()), lines[1:]


# ---- stories ---------------------------------------------------------------------------------------


def test_undisturbed(cluster, reference):
    job = start(cluster, "undisturbed", 2)
    assert table(cluster, "undisturbed")[0] == COLUMNS
    wait_until(lambda: re.search(r"undisturbed +Running +2/1-2 +CPU +\d+%", table(cluster, "undisturbed")[1][0]),
               CHANGE_S, "its row to say what it does")
    assert table(cluster, "undisturbed", "-o", "wide")[0] == WIDE
    job.finish_soon(FINISH_S)
    counted = same_as(reference, job)
    assert counted["forwards"] == once(job, counted)  # each computed once
    assert not job.was("Recovering") and not job.was("Degraded")
    kinds = [kind for kind, status, _ in job.story() if status == "True"]
    milestones = ("Queued", "Allocated", "Running", "Complete")
    # Queued stands there once for each thing that it waited for, one after the other.
    passed = [kind for kind, _ in itertools.groupby(kind for kind in kinds if kind in milestones)]
    assert passed == [kind for kind in milestones if kind in kinds]
    assert {"Allocated", "Running", "Complete"} <= set(kinds)


def test_grows_onto_new_nodes(cluster, reference):
    job = start(cluster, "grow", 1, gpus=(1, 3))
    before = processes_of(job)
    cluster.add_nodes(2)
    job.wait_members(3, CHANGE_S)
    survived(before, job, before)
    job.finish_soon(FINISH_S)
    counted = same_as(reference, job)
    assert counted["forwards"] == once(job, counted)  # a planned change costs nothing
    last = job.status()["rescales"]["last"]
    assert last["to"] == 3, last
    assert any(e["reason"] == "Rescaled" for e in job.events())


def test_node_killed_within_a_step(cluster, reference):
    job = start(cluster, "killed", 3)
    before = processes_of(job)
    victim = job.pod_of_rank(1)
    step = job.plant(victim, "reduce")
    cluster.node_of(victim).kill()
    job.wait_step(step + 10, CHANGE_S)
    survived(before, job, set(before) - {victim})
    job.wait_node_lost(CHANGE_S)
    job.finish_soon(FINISH_S)
    same_as(reference, job)
    assert job.status()["progress"]["recomputedSteps"] == 0  # no return to a checkpoint


def test_frozen_node_is_fenced(cluster, reference):
    job = start(cluster, "frozen", 3)
    before = processes_of(job)
    victim = job.pod_of_rank(0)  # who writes records and checkpoints
    uid = job.pods()[victim]["metadata"]["uid"]
    node = cluster.node_of(victim)
    node.freeze()
    at = job.steps_done()
    job.wait_step(at + 10, CHANGE_S)
    survived(before, job, set(before) - {victim})
    thawed = time.time()
    node.thaw()
    cluster.pods.wait(lambda latest: ("default", victim) not in latest, CHANGE_S, "the zombie's pod to go")
    # It may finish the one step that was decided before it froze; nothing after that.
    late = [step for when, step, _ in job.step_lines(uid) if when > thawed]
    assert not [step for step in late if step > at + 2], late
    job.wait_members(3, CHANGE_S)  # the node is trusted again once its Lease is renewed
    survived(before, job, set(before) - {victim})
    job.finish_soon(FINISH_S)
    same_as(reference, job)
    job.wait_node_lost(CHANGE_S)


def test_frozen_worker_is_found(cluster, reference):
    job = start(cluster, "stuck", 2)
    before = processes_of(job)
    victim = job.pod_of_rank(1)
    pid, began = before[victim][0]
    os.kill(pid, signal.SIGSTOP)
    at = job.steps_done()
    job.wait_step(at + 10, CHANGE_S)
    survived(before, job, set(before) - {victim})
    wait_until(lambda: not processes.is_alive(pid) or processes.start_time(pid) != began, CHANGE_S,
               "its agent to end the stuck worker")
    job.wait_members(2, CHANGE_S)
    job.finish_soon(FINISH_S)
    same_as(reference, job)
    # What the coordinator found: the condition may have come and gone between two writes of the status.
    assert job.was("Recovering", "StepStalled") or cluster.said(f"{victim} Stuck: no progress")


def test_worker_crash(cluster, reference):
    job = start(cluster, "crash", 2)
    before = processes_of(job)
    victim = job.pod_of_rank(0)
    os.kill(job.workers()[victim][0], signal.SIGKILL)
    at = job.steps_done()
    job.wait_step(at + 10, CHANGE_S)
    survived(before, job, set(before) - {victim})
    job.wait_members(2, CHANGE_S)  # its agent started another
    job.finish_soon(FINISH_S)
    same_as(reference, job)
    assert not job.was("Recovering", "StepStalled")  # nobody had to wait for a deadline


def test_leader_killed_during_a_rescale(cluster, reference):
    job = start(cluster, "leaderless", 1, gpus=(1, 3))
    before = processes_of(job)
    leader = cluster.leader()
    [standby] = set(cluster.operators) - {leader}
    cluster.add_nodes(2)
    job.wait(lambda o: len(o["status"]["allocation"]["pods"]) > 1, CHANGE_S, "a decision to grow")
    cluster.operators[standby].pause()
    cluster.operators[leader].kill()
    job.wait_step(job.steps_done() + 10, CHANGE_S)  # nobody leads, and training goes on
    assert cluster.leader() is None
    cluster.operators[standby].resume()
    wait_until(lambda: cluster.leader() == standby, CHANGE_S, "the other operator to lead")
    job.wait_members(3, CHANGE_S)
    survived(before, job, before)
    job.finish_soon(FINISH_S)
    same_as(reference, job)


def test_a_leader_that_was_frozen_stands_by(cluster, reference):
    """Its Lease is another's when it wakes up: it begins anew in the same process, and can lead again."""
    job = start(cluster, "frozen-leader", 2)
    before = processes_of(job)
    leader = cluster.leader()
    [standby] = set(cluster.operators) - {leader}
    cluster.operators[leader].pause()
    wait_until(lambda: cluster.leader() == standby, CHANGE_S, "the other operator to lead")
    cluster.operators[leader].resume()
    log = cluster.operators[leader].log
    wait_until(lambda: "begins anew as a standby" in log.read_text(), CHANGE_S, f"{leader} to see that it is replaced")
    cluster.operators[standby].kill()
    wait_until(lambda: cluster.leader() == leader, CHANGE_S, f"{leader} to lead again")
    assert cluster.operators[leader].is_running()
    job.wait_step(job.steps_done() + 10, CHANGE_S)
    survived(before, job, before)
    job.finish_soon(FINISH_S)
    same_as(reference, job)


def test_deleted_pod_is_replaced(cluster, reference):
    job = start(cluster, "deleted", 2)
    before = processes_of(job)
    victim = job.pod_of_rank(1)
    cluster.plane.kubectl("delete", "pod", victim, "--wait=false")
    cluster.pods.wait(lambda latest: ("default", victim) not in latest, CHANGE_S, "the pod to go")
    job.wait_members(2, CHANGE_S, without=victim)
    assert victim not in job.living_pods()
    survived(before, job, set(before) - {victim})
    job.finish_soon(FINISH_S)
    same_as(reference, job)


def test_cordoned_node_is_left_alone(cluster, reference):
    _, closed = cluster.add_nodes(2)
    cluster.cordon(closed)
    job = cluster.apply(Job("cordon", steps=STEPS, gpus=(1, 3)))
    job.wait_members(1, CHANGE_S)
    job.wait_step(5)
    before = processes_of(job)
    cluster.add_node()
    job.wait_members(2, CHANGE_S)
    used = {pod["spec"]["nodeName"] for pod in job.pods().values()}
    assert closed.name not in used
    cluster.cordon(closed, on=False)
    job.wait_members(3, CHANGE_S)
    survived(before, job, before)
    job.finish_soon(FINISH_S)
    same_as(reference, job)


def apply(cluster, *objects):
    for one in objects:
        cluster.plane.kubectl("apply", "-f", "-", input=json.dumps(one))


def second_pod_is_given_up(cluster, reference, name, said, lift):
    """The job trains on with its first pod, and has the second once that may be made."""
    cluster.add_nodes(2)
    job = cluster.apply(Job(name, steps=STEPS, gpus=(1, 2)))
    job.wait_seen(lambda o: o.get("status", {}).get("allocation", {}).get("gpus") == 2, CHANGE_S, "both GPUs")
    job.wait_members(1, CHANGE_S)
    before = processes_of(job)
    job.wait(lambda o: o["status"]["allocation"]["gpus"] == 1, CHANGE_S, "to give one back")
    lift()  # before it may grow again: it waits twice as long after each refusal
    wait_until(lambda: "is not there" in notes_of(job).get("PodGivenUp", ""), CHANGE_S, "the event")
    assert said in notes_of(job)["FailedCreate"]
    job.wait_members(2, CHANGE_S)
    survived(before, job, before)
    job.finish_soon(FINISH_S)
    same_as(reference, job)


def test_a_pod_beyond_the_quota_is_given_up(cluster, reference):
    def put_quota(hard):
        apply(cluster, {"apiVersion": "v1", "kind": "ResourceQuota",
                        "metadata": {"name": "few", "namespace": "default"}, "spec": {"hard": hard}})

    set_policy(cluster, gangStartSeconds=60)
    put_quota({"pods": "1"})
    try:
        wait_until(lambda: "hard" in cluster.plane.get("resourcequota/few").get("status", {}), CHANGE_S, "the quota")
        second_pod_is_given_up(cluster, reference, "beyond", "exceeded quota", lambda: put_quota({"pods": "2"}))
    finally:
        cluster.plane.kubectl("delete", "resourcequota/few")


def test_a_pod_that_an_admission_policy_denies_is_given_up(cluster, reference):
    """It answers 422, as of a pod that is wrong; the job's template was good, and it is not failed."""
    policies = "validatingadmissionpolicies.admissionregistration.k8s.io"
    about = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "no-second"}}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    probe = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe-w1", "namespace": "default"},
             "spec": {"containers": [{"name": "c", "image": "i"}]}}

    def denies():
        tried = cluster.plane.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(probe), check=False)
        return "denied request" in tried.stderr

    set_policy(cluster, gangStartSeconds=60)
    apply(cluster,
          {**about, "kind": "ValidatingAdmissionPolicy",
           "spec": {"matchConstraints": {"resourceRules": [rule]},
                    "validations": [{"expression": "!object.metadata.name.endsWith('-w1')"}]}},
          {**about, "kind": "ValidatingAdmissionPolicyBinding",
           "spec": {"policyName": "no-second", "validationActions": ["Deny"]}})
    try:
        wait_until(denies, CHANGE_S, "the policy")
        second_pod_is_given_up(cluster, reference, "denied", "denied request",
                               lambda: cluster.plane.kubectl("delete", policies + "/no-second"))
    finally:
        cluster.plane.kubectl("delete", policies + "/no-second", "--ignore-not-found")
        cluster.plane.kubectl("delete", "validatingadmissionpolicybindings/no-second", "--ignore-not-found")


def test_policies_change_while_jobs_train(cluster, reference):
    """Every policy is put in force in turn; who is preempted goes on where it stopped, and nothing is lost."""
    def put(policy, missing="Degrade", **parameters):
        set_policy(cluster, policy=policy, parameters=parameters, roundSeconds=1, missingMechanism=missing)

    def says(status, message=""):
        active = conditions_of(cluster.plane.get("schedulingpolicy/default")).get("Active", {})
        return active.get("status") == status and message in active.get("message", "")

    names = cluster.plane.get("crd/schedulingpolicies.rubato.dev")["spec"]["versions"][0]["schema"][
        "openAPIV3Schema"]["properties"]["spec"]["properties"]["policy"]["enum"]
    assert {"fifo", "srtf", "tiresias"} <= set(names)
    cluster.add_nodes(2)
    try:
        first = cluster.apply(Job("first", steps=STEPS, gpus=(2, 2)))
        first.wait_members(2, CHANGE_S)
        second = cluster.apply(Job("second", steps=STEPS, gpus=(1, 2)))  # there is room for one of them
        put("las", quantumSeconds=0)
        wait_until(lambda: says("False", "quantumSeconds is 0, but must be"), CHANGE_S, "the refusal")
        put("lucid", missing="Refuse")
        wait_until(lambda: says("False", "lucid needs two jobs on one GPU"), CHANGE_S, "the refusal of sharing")
        for name in names:
            put(name, **({"quantumSeconds": 1} if name == "las" else {}))
            wait_until(lambda: any(says("True", name + end) for end in (":", ",", " (without")), CHANGE_S,
                       f"{name} in force")
            step = first.steps_done() + second.steps_done()
            wait_until(lambda: first.steps_done() + second.steps_done() >= step + 20, CHANGE_S, f"steps under {name}")
        put("las", quantumSeconds=1)  # who has had less goes first
        wait_until(lambda: second.steps_done() > 0, CHANGE_S, "a turn of the other job")
    finally:
        cluster.plane.kubectl("delete", "schedulingpolicy/default", "--ignore-not-found")
    for job in (first, second):  # both, as one of them may wait for the other's GPUs
        job.end_soon()
    for job in (first, second):
        job.finish_soon(FINISH_S)
        same_as(reference, job)


def test_suspend_and_resume(cluster, reference):
    job = start(cluster, "suspended", 2)
    job.wait_step(30)
    job.patch({"suspend": True})
    job.wait_condition("Suspended", limit_s=CHANGE_S)
    assert not job.workers()  # the condition is true only when nothing runs any more
    wait_until(lambda: not job.living_pods(), CHANGE_S, "the watch to have seen it too")
    step = job.status()["progress"]["step"]
    assert step == job.steps_done() and 30 <= step < job.steps
    assert job.status()["progress"]["checkpointStep"] == step
    job.patch({"suspend": False})
    job.wait_step(step + 10)
    job.finish_soon(FINISH_S)
    counted = same_as(reference, job)
    assert counted["forwards"] == once(job, counted)  # nothing was done twice
    assert job.status()["progress"].get("recomputedSteps", 0) == 0


def test_stop_steps_change_while_it_runs(cluster, reference):
    job = start(cluster, "longer", 2, steps=600)
    before = processes_of(job)
    job.steps = 1200
    job.patch({"training": {"stop": {"steps": 1200}}})
    job.wait_step(610)
    survived(before, job, before)
    job.steps = 1100
    job.patch({"training": {"stop": {"steps": 1100}}})
    job.wait_state("Complete", FINISH_S)
    counted = same_as(reference, job)
    assert counted["forwards"] == once(job, counted)
    assert job.status()["membership"]["stopSteps"] == 1100
    assert job.status()["decaySteps"] == 600
    assert job.status().get("rescales", {}).get("count", 0) == 0
    assert not job.was("Recovering")


def test_resume_while_the_suspend_is_under_way(cluster, reference):
    job = start(cluster, "undecided", 2)
    for left in (2, 1, 0):  # resumed before, while or after the workers end, as near as we can
        job.wait_step(job.steps_done() + 10)
        rescales = job.status().get("rescales", {}).get("count", 0)
        before = len(job.states())
        job.patch({"suspend": True})
        job.wait_seen(lambda o: o["status"]["state"] == "Suspending", CHANGE_S, "Suspending", since=before)
        wait_quickly(lambda: sum(map(len, job.workers().values())) <= left, CHANGE_S, f"only {left} workers")
        job.patch({"suspend": False})
        job.wait(lambda o: o["status"]["state"] == "Running"
                 and o["status"]["membership"]["phase"] == "Training", CHANGE_S, "to run again")
        job.wait_step(job.steps_done() + 10)
        assert job.status().get("rescales", {}).get("count", 0) <= rescales + 2
    job.finish_soon(FINISH_S)
    same_as(reference, job)


def test_deleted_job_leaves_nothing(cluster, reference):
    job = start(cluster, "gone", 2)
    job.wait_step(20)
    job.delete()
    job.wait_gone(CHANGE_S)
    wait_until(lambda: not job.pods(), CHANGE_S, "the pods to go")
    assert not [pids for node in cluster.nodes.values() for pids in node.workers().values()]
    wait_until(lambda: not [s for s in cluster.plane.get("secrets", "-n", "default")["items"]
                            if s["metadata"]["name"].startswith("gone-")], CHANGE_S,
               "the job's secret to go")
    done = job.steps_done()
    assert 20 <= done < job.steps
    for ours, theirs in zip(job.records(), reference.records()):
        assert ours == theirs


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, *sys.argv[1:]]))
