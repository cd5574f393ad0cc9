"""What an administrator does to the operator while people train: upgrade, roll back, uninstall, install again; and an
operator that stands still for some seconds, with a lease that outlasts that. The job never notices: same processes,
same generation, not one step done twice, equal bytes.

The tests of this file are one story and run in its order.
"""

from __future__ import annotations

import pathlib
import time

import pytest
from realcluster import rubato
from realcluster.errors import wait_for
from stage import CommitClock, PodJob, figure, install, stall_leader, staged

NODES = 2
STEPS = 50000  # more than the story takes
CPU = "180m"  # of a worker: a step takes a tenth of a second
CHANGE_S = 120
PAUSE_LIMIT_S = 60.0  # who waits for an operator waits longer; the figure is printed


@pytest.fixture(scope="module")
def stage(request):
    yield from staged(request, "chart", NODES)


@pytest.fixture(scope="module")
def reference(stage):
    job = stage.apply(PodJob("reference", steps=1000, gpus=(1, 1)))
    job.wait_state("Complete", 600)
    return job


@pytest.fixture(scope="module")
def job(stage, reference):
    made = stage.apply(PodJob("steady", steps=STEPS, gpus=(1, NODES), cpu=CPU))
    made.wait_members(NODES, CHANGE_S)
    made.wait_step(10)
    return made


@pytest.fixture
def undisturbed(job, reference):
    """What happens in the test is not seen by the job."""
    before, generation = job.identities(), job.status()["membership"]["generation"]
    with CommitClock(job) as clock:
        began = time.monotonic()
        yield job
        job.wait_step(job.steps_done() + 10, PAUSE_LIMIT_S)
    pause, _ = max(clock.gaps(began))
    figure("longest-pause", pause, "of a step")
    assert job.identities() == before, "a worker was restarted"
    assert job.status()["membership"]["generation"] == generation
    assert pause < PAUSE_LIMIT_S
    assert job.differs_from(reference) == ""


def new_leader(stage, old):
    wait_for(lambda: (leader := stage.leader()) not in (None, old) and leader in stage.operators(), CHANGE_S,
             "a new leader")


def test_pods_are_restricted(stage, job):
    """The API server would admit them to a namespace that enforces it; their processes have no rights."""
    for pids in (*stage.workers().values(), *stage.operators().values()):
        status = pathlib.Path(f"/proc/{pids[0]}/status").read_text()
        assert "\nUid:\t65532\t65532\t65532\t65532\n" in status
        assert "\nCapEff:\t0000000000000000\n" in status and "\nNoNewPrivs:\t1\n" in status
        assert "\nSeccomp:\t2\n" in status
        with pytest.raises(OSError):  # the root file system is read-only, whoever asks
            pathlib.Path(f"/proc/{pids[0]}/root/usr/bin/written").write_text("")


def test_upgrade(undisturbed, stage):
    leader = stage.leader()
    began = time.monotonic()
    install(stage.cluster, {"log.verbose": True, "leaderElection.leaseSeconds": 15})  # of the chart's own
    new_leader(stage, leader)
    figure("helm-upgrade", time.monotonic() - began)


@pytest.mark.parametrize("seconds", [4.0, 10.0])
def test_leader_stalls(undisturbed, stage, seconds):
    """A leader that wakes up has heard nobody for as long, and that says nothing of anybody (make bench-stall: more)."""
    cost = stall_leader(stage, undisturbed, seconds)
    assert cost.is_nothing(), cost


def test_rollback(undisturbed, stage):
    leader = stage.leader()
    rubato.helm(stage.cluster, "rollback", rubato.RELEASE, "1", *rubato.waits(120))
    new_leader(stage, leader)


def test_uninstall_leaves_the_work(undisturbed, stage):
    rubato.helm(stage.cluster, "uninstall", rubato.RELEASE)
    wait_for(lambda: not stage.operators(), CHANGE_S, "the operators to end")
    undisturbed.wait_step(undisturbed.steps_done() + 20, PAUSE_LIMIT_S)
    kept = stage.cluster.kubectl("get", "crd,tj,tq,secret,service", "-A", "-o", "name").stdout
    for name in ("trainingjobs.rubato.dev", "trainingjob.rubato.dev/steady", "trainingqueue.rubato.dev/default",
                 "secret/rubato-operator-trust", "service/rubato-coordinator"):
        assert name in kept, kept


def test_install_again_takes_over(undisturbed, stage):
    install(stage.cluster)
    new_leader(stage, None)
    known = undisturbed.status()["progress"]["step"]
    undisturbed.wait(lambda job: job["status"]["progress"]["step"] > known, CHANGE_S, "progress, as the workers tell it")


def test_it_leads_again(stage, job, reference):
    """The operator of the second installation decides, with the keys of the first."""
    done = job.steps_done()
    job.patch({"suspend": True})
    job.wait_condition("Suspended", limit_s=CHANGE_S, reason="Suspended")
    wait_for(lambda: not job.living_pods(), CHANGE_S, "the pods to go")
    assert job.steps_done() >= done
    assert job.status()["progress"].get("recomputedSteps", 0) == 0
    assert job.differs_from(reference) == ""
    stage.check()
    job.delete()
    job.wait_gone(CHANGE_S)
