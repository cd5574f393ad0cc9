"""What a manifest says about the life of a job, on a real API server: what is refused before GPUs are given, deadlines,
restarts that are charged, and the time after the end."""

import json
import os
import signal
import time

from cluster_fixtures import CHANGE_S, cluster, plane_and_cluster  # noqa: F401
from control_plane import wait_until
from jobs import Job
from watching import conditions_of

LONG = 100000  # steps


class LimitedJob(Job):
    """`more` goes over the spec, `container` over the container."""

    def __init__(self, name, more=None, container=None, **kwargs):
        super().__init__(name, steps=LONG, **kwargs)
        self.more, self.container = more or {}, container or {}

    def manifest(self):
        manifest = super().manifest()
        manifest["spec"].update(self.more)
        manifest["spec"]["template"]["spec"]["containers"][0].update(self.container)
        return manifest

    def was_given_gpus(self):
        return any(state.get("status", {}).get("allocation", {}).get("gpus", 0) > 0 for state in self.states())

    def message(self, kind):
        return conditions_of(self.object())[kind]["message"]


def test_a_template_that_no_pod_can_have_fails_before_gpus_are_given(cluster):
    cluster.add_node()
    job = cluster.apply(LimitedJob("impossible", {"ttlSecondsAfterFinished": 3},
                                   {"ports": [{"containerPort": 0}]}, gpus=(1, 1)))
    job.wait_condition("Failed", reason="InvalidTemplate", limit_s=CHANGE_S)
    failed = job.states()[-1]
    assert "containerPort" in conditions_of(failed)["Failed"]["message"]
    assert "completionTime" in failed["status"]
    assert not job.was_given_gpus()
    job.wait_gone(CHANGE_S)  # the time to live is for jobs that failed, too


def test_pods_that_a_quota_forbids_are_waited_for_without_gpus(cluster):
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": "default"},
             "spec": {"hard": {"pods": "0"}}}
    cluster.plane.kubectl("apply", "-f", "-", input=json.dumps(quota))
    try:
        wait_until(lambda: "hard" in cluster.plane.get("resourcequota/none").get("status", {}), CHANGE_S, "the quota")
        cluster.add_node()
        job = cluster.apply(LimitedJob("forbidden", gpus=(1, 1)))
        job.wait_condition("Queued", reason="PodForbidden", limit_s=CHANGE_S)
        assert "exceeded quota" in job.message("Queued")
        assert not job.was_given_gpus()
    finally:
        cluster.plane.kubectl("delete", "resourcequota/none")
    job.wait_step(3)
    job.delete()


def test_missing_data_is_waited_for_and_found(cluster):
    cluster.add_node()
    job = LimitedJob("dataless", gpus=(1, 1))
    tokens = cluster.claims / "default" / "tokens" / "tokens.bin"
    aside = tokens.with_suffix(".aside")
    job.cluster = cluster
    job.prepare()
    tokens.rename(aside)
    job.prepare = lambda: None
    try:
        cluster.apply(job)
        job.wait_condition("Queued", reason="NodesRefused", limit_s=CHANGE_S)
        assert "DataNotFound" in job.message("Queued") and "/data/tokens.bin" in job.message("Queued")
        wait_until(lambda: {"WorkerRefused", "NodesRefused"} <= {e["reason"] for e in job.events()}, CHANGE_S, "events")
        assert all(e["type"] == "Warning" for e in job.events() if e["reason"] in ("WorkerRefused", "NodesRefused"))
        assert not job.status()["allocation"]["pods"], "it waits without GPUs"
    finally:
        aside.rename(tokens)
    job.wait_step(3)  # by itself, when the node is tried again
    assert "completionTime" not in job.status()


def test_suspended_time_does_not_count_against_the_deadline(cluster):
    cluster.add_node()
    job = cluster.apply(LimitedJob("limited", {"activeDeadlineSeconds": 10}, gpus=(1, 1)))
    job.wait_step(3)
    job.wait(lambda o: "startTime" in o["status"], CHANGE_S, "its start")
    first = job.status()["startTime"]
    job.patch({"suspend": True})
    job.wait_condition("Suspended", limit_s=CHANGE_S)
    time.sleep(11)  # the deadline is a time of the API server's clock
    step = job.steps_done()
    job.patch({"suspend": False})
    job.wait_step(step + 3)
    job.wait(lambda o: o["status"].get("startTime", first) > first, CHANGE_S, "its new start")
    second = job.status()["startTime"]
    job.wait_condition("Failed", reason="DeadlineExceeded", limit_s=CHANGE_S)
    assert job.status()["completionTime"] > second


class HidingJob(LimitedJob):
    """Its volume is mounted over the folder that a node's programs are in."""

    def manifest(self):
        manifest = super().manifest()
        mounts = manifest["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
        mounts.append({"name": "fault", "mountPath": str(self.cluster.bin)})
        return manifest


def test_why_a_pod_failed_is_told(cluster):
    cluster.add_node()
    job = cluster.apply(HidingJob("hiding", {"faultTolerance": {"maxRestarts": 0}}, gpus=(1, 1)))
    job.wait_condition("Failed", reason="ReachedMaxRestarts", limit_s=CHANGE_S)
    assert "pod hiding-w0 on node" in job.message("Failed")
    assert "ended with exit code 127 (StartError): the volume at" in job.message("Failed")
    wait_until(lambda: "PodFailed" in {event["reason"] for event in job.events()}, CHANGE_S, "the event")


def test_restarts_are_counted_whoever_leads(cluster):
    cluster.add_nodes(2)
    job = cluster.apply(LimitedJob("crashing", {"faultTolerance": {"maxRestarts": 2}}, gpus=(2, 2)))
    job.wait_step(5)
    generation = 0
    for crash in range(3):
        job.wait_members(2, CHANGE_S)  # those of after the crash: the count may be told before they are
        job.wait(lambda o, n=generation: o["status"]["membership"]["generation"] > n, CHANGE_S, "a generation after it")
        job.wait_members(2, CHANGE_S)
        generation = job.status()["membership"]["generation"]
        os.kill(job.workers()[job.pod_of_rank(0)][0], signal.SIGKILL)
        if crash < 2:
            job.wait(lambda o, n=crash + 1: o["status"].get("restarts", {}).get("count") == n, CHANGE_S, "the count")
        if crash == 1:
            leader = cluster.leader()
            [standby] = set(cluster.operators) - {leader}
            cluster.operators[leader].kill()
            wait_until(lambda: cluster.leader() == standby, CHANGE_S, "the other operator to lead")
    job.wait_condition("Failed", reason="ReachedMaxRestarts", limit_s=CHANGE_S)
    assert job.status()["restarts"]["count"] == 3
