"""Certificates are renewed while a job trains, on a real API server: when those of before have ended, links and
connections are made anew all the same. Somebody keeps the authority in a Secret, and puts another one there."""

import base64
import json
import os
import signal
import time

from authority import Authority
from cluster import Cluster
from control_plane import ControlPlane, wait_until
from jobs import Job

CHANGE_S = 120
LIFE_S = 45
GIVEN = "platform-ca"


def give(plane, authority):
    """Puts the authority into the Secret of the operators' namespace."""
    plane.kubectl("apply", "-f", "-", input=json.dumps(authority.manifest(GIVEN, "rubato-system")))


def certificate_of(cluster, job):
    """What the job's Secret holds, and the file that each of its pods sees."""
    name = next(volume["secret"]["secretName"] for volume in next(iter(job.pods().values()))["spec"]["volumes"]
                if volume["name"] == "rubato-job")
    data = cluster.plane.get(f"secret/{name}")["data"]
    seen = [(job.pod_folder(pod) / "volumes" / "rubato-job" / "tls.crt").read_bytes() for pod in job.pods()]
    return base64.b64decode(data["tls.crt"]), seen, base64.b64decode(data["ca.crt"]).count(b"BEGIN CERTIFICATE")


def test_certificates_are_renewed_while_a_job_trains(tmp_path):
    first, second = Authority(tmp_path / "first"), Authority(tmp_path / "second")

    def operators_run_as(plane):
        give(plane, first)
        return plane.kubeconfig

    with ControlPlane(controller_manager=True) as plane:
        with Cluster(plane, os.environ["RUBATO_BUILD"], operator_kubeconfig=operators_run_as,
                     operator_flags=[f"--certificate-hours={LIFE_S / 3600}", f"--authority-secret={GIVEN}"]) as cluster:
            train_on(cluster, second)
            cluster.check()


def lose_a_worker(job):
    """One is killed, starts again in its pod, and joins the others, who went on without it."""
    def membership(found):
        return (found or {}).get("status", {}).get("membership", {})
    before = membership(job.object())["generation"]
    os.kill(job.workers()[job.pod_of_rank(1)][0], signal.SIGKILL)
    job.wait(lambda found: membership(found).get("generation", 0) >= before + 2 and
             len(membership(found)["members"]) == 3, CHANGE_S, "the lost worker to be back")


def train_on(cluster, second):
    cluster.add_nodes(3)
    job = cluster.apply(Job("lasting", steps=100000, gpus=(1, 3)))
    job.wait_members(3, CHANGE_S)
    began, pods = time.monotonic(), set(job.pods())
    old, _, authorities = certificate_of(cluster, job)
    assert authorities == 1
    give(cluster.plane, second)
    wait_until(lambda: certificate_of(cluster, job)[2] == 2, CHANGE_S, "both authorities to be trusted")

    def has_come():
        new, seen, _ = certificate_of(cluster, job)
        return new != old and all(found == new for found in seen)
    wait_until(has_come, CHANGE_S, "the new certificate to reach the pods")
    wait_until(lambda: time.monotonic() > began + LIFE_S + 5, CHANGE_S, "the first certificate to end")

    # A worker that is started anew links with those that never ended; agents find the leader that comes.
    lose_a_worker(job)
    leader = cluster.leader()
    cluster.operators[leader].kill()
    wait_until(lambda: cluster.leader() not in (None, leader), CHANGE_S, "another leader")
    step = job.steps_done()
    job.wait_step(step + 20)
    cluster.operators[leader].start()
    lose_a_worker(job)
    assert set(job.pods()) == pods, "a pod was lost on the way"
    assert not [event for event in job.events() if event["reason"] == "NotRenewed"]
    job.finish_soon(CHANGE_S)
    job.check_ledger()
    job.delete()
    job.wait_gone(CHANGE_S)
