"""Equal bytes of PyTorch jobs: each model trains on 1, 2, 3 and 4 workers that nobody disturbs, and on workers of which
one is killed at each place of a step while others take its place. Model, optimizer and losses must be the same bytes.
The control is DistributedDataParallel with the same micro-batches and random numbers, whose bytes differ.

    make bench-pytorch-bits     or: RUBATO_BUILD=$PWD/build/dev scripts/with-tools python tests/bench/pytorch_bits.py
                                    [--steps 200] [--cases gpt2/AdamW llama/fused …] [--worlds 1 2 3 4]

Fails when bytes differ. On the local cluster, with a real API server; the workers are those of the tests, which heed
fault plans.
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))
from cluster import Cluster, wait_quickly  # noqa: E402
from control_plane import ControlPlane, ControlPlaneError  # noqa: E402
from script_jobs import TorchJob  # noqa: E402
from table import markdown  # noqa: E402

SCRIPT = pathlib.Path(__file__).parent / "pytorch_bits_train.py"
CASES = ["gpt2/AdamW", "llama/fused", "vit/NAdam", "conv/SGD", "gpt2/Adafactor"]
PLACES = ["compute", "reduce", "commit", "apply", "publish", "pull"]
TOGETHER = 3  # workers of the job that is disturbed
PAUSE_S = 0.4  # between two steps of it, so that some are left when a killed one is back
REJOIN_S = 90
CONTROL_STEPS = 20
LIMIT_S = 1800


def bits_job(case, name, gpus, steps, pause, **more):
    words = case.split("/")
    return TorchJob(f"{'-'.join(words).lower()}-{name}", script=SCRIPT, gpus=gpus, steps=steps, every=50,
                    more_lines="\n", batch=(14, 2), arguments=[*words, str(pause)], **more)


def kill(job, victim, place):
    plan = job.pod_folder(victim) / "volumes" / "fault" / "plan"
    if place != "pull":
        job.plant(victim, place, "kill")
        plan.unlink(missing_ok=True)  # not the one in its place, too
        return
    plan.write_text("pull\n")  # there the one in its place dies, too
    os.kill(job.interpreters()[victim][0], signal.SIGKILL)
    wait_quickly(lambda: not plan.exists(), REJOIN_S, f"{victim} to die when it pulls")


def disturb(job):
    """Kills a worker at each place, as long as there are steps left. How many."""
    kills = 0
    while job.steps_done() + 20 < job.steps:
        try:
            job.wait_members(TOGETHER, REJOIN_S)
        except ControlPlaneError:
            break  # the job was over before
        if job.steps_done() + 20 < job.steps:
            kill(job, job.pod_of_rank(kills % TOGETHER), PLACES[kills % len(PLACES)])
            kills += 1
    job.wait_state("Complete", LIMIT_S)
    return kills


def control(case, world):
    """The digest under plain DistributedDataParallel."""
    with tempfile.TemporaryDirectory(prefix="rubato-bits-") as folder:
        out = pathlib.Path(folder) / "digest"
        ranks = [subprocess.Popen([sys.executable, "-B", str(SCRIPT), *case.split("/"), str(rank), str(world),
                                   str(CONTROL_STEPS), str(out)], env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"})
                 for rank in range(world)]
        if any([rank.wait(LIMIT_S) for rank in ranks]):
            raise SystemExit(f"{case}: the control failed")
        return out.read_text()


def try_case(cluster, case, worlds, steps):
    """Row of the table, and whether all bytes were equal."""
    jobs = []
    for world in worlds:
        jobs.append(cluster.apply(bits_job(case, f"w{world}", (world, world), steps, pause=0)))
        jobs[-1].wait_state("Complete", LIMIT_S)
    disturbed = cluster.apply(bits_job(case, "hit", (1, TOGETHER), steps, pause=PAUSE_S, is_hit=True,
                                      more={"faultTolerance": {"maxRestarts": 100}}))
    kills = disturb(disturbed)
    files = [job.state_files(job.checkpoints / "states") for job in (*jobs, disturbed)]
    are_equal = all(each == files[0] for each in files)
    digests = {control(case, world) for world in worlds if world < 4}
    told = disturbed.steps_told()
    for job in (*jobs, disturbed):
        job.delete()
        job.wait_gone(60)
    row = [*case.split("/"), steps, ", ".join(map(str, worlds)), kills, "equal" if are_equal else "DIFFERENT",
           len(told) - len(set(told)), f"{len(digests)} of {sum(world < 4 for world in worlds)}"]
    return row, are_equal


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--worlds", type=int, nargs="+", default=[1, 2, 3, 4])
    args = parser.parse_args()
    rows = []
    with ControlPlane(controller_manager=True) as plane, Cluster(plane, os.environ["RUBATO_BUILD"]) as cluster:
        cluster.add_node(slots=4)
        try:
            for case in args.cases:
                rows.append(try_case(cluster, case, args.worlds, args.steps))
                print(f"  {rows[-1][0]}", file=sys.stderr, flush=True)
        except BaseException:
            print(cluster.explain(), file=sys.stderr)
            raise
    print(markdown(["model", "optimizer", "steps", "workers", "kills of the disturbed job", "bytes of all of these",
                    "steps told twice", "digests under DistributedDataParallel"], [row for row, _ in rows]))
    return 0 if all(are_equal for _, are_equal in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
