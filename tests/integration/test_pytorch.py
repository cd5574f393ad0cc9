"""Jobs of runtime pytorch on a real API server: a script of plain PyTorch trains on any number of workers that come and
go, without being started again, and ends with the bytes of a run alone."""

import os
import signal

from cluster_fixtures import CHANGE_S, cluster, plane_and_cluster  # noqa: F401
from control_plane import wait_until
from script_jobs import ROOT, START_S, TorchJob
from watching import conditions_of


def interpreters_of(job):
    return {pid for of_pod in job.interpreters().values() for pid in of_pod}


def test_a_script_trains_on_workers_that_come_and_go_and_the_bytes_are_those_of_one(cluster, tmp_path):
    first = cluster.add_node()
    job = cluster.apply(TorchJob("torch", gpus=(1, 3), steps=100000, every=20, pause=0.2))
    job.wait_members(1, START_S)
    job.wait_step(10, START_S)
    before = interpreters_of(job)
    second = cluster.add_node(slots=2)
    job.wait_members(3, START_S)
    pids = interpreters_of(job)
    assert before and before < pids and len(pids) == 3, "nobody was started again"
    job.wait_step(job.steps_done() + 10, START_S)

    # A process dies: the others go on, and the one in its place joins them.
    victim = job.interpreters()[job.pod_of_rank(1)][0]
    os.kill(victim, signal.SIGKILL)
    job.wait_step(job.steps_done() + 10, START_S)
    job.wait(lambda o: o["status"].get("restarts", {}).get("count") == 1, CHANGE_S, "the charge")
    job.wait_members(3, START_S)
    assert len(pids & interpreters_of(job)) == 2

    # A node is lost.
    lost = first if job.pods()[job.pod_of_rank(0)]["spec"]["nodeName"] == first.name else second
    lost.kill()
    job.wait_node_lost(CHANGE_S)
    cluster.remove_node(lost)
    job.wait_step(job.steps_done() + 10, START_S)

    # Suspended and resumed, it goes on from its checkpoint.
    job.patch({"suspend": True})
    job.wait_state("Suspended", CHANGE_S)
    wait_until(lambda: not job.interpreters(), CHANGE_S, "its script to end")
    at = job.steps_done()
    job.patch({"suspend": False})
    job.wait_step(at + 10, START_S)
    job.finish_soon(START_S)
    assert job.status()["progress"]["step"] == job.steps and float(job.status()["display"]["loss"]) > 0

    job.train_alone(tmp_path / "alone")
    alone, together = job.state_files(tmp_path / "alone"), job.state_files(job.checkpoints / "states")
    assert {name: alone[name] == together[name] for name in alone} == dict.fromkeys(alone, True)
    steps = job.steps_told()
    assert steps and len(steps) == len(set(steps)), "the reporter tells each step once"


WAITS = """
print("waits", flush=True)
while not pathlib.Path("/ckpt/go").exists():
    __import__("time").sleep(0.1)
"""


def test_a_script_of_transformers_trainer_and_what_it_does_after_its_last_step(cluster, tmp_path):
    cluster.add_node(slots=2)
    job = cluster.apply(TorchJob("trainer", script=ROOT / "examples/pytorch/hf_llama.py", gpus=(1, 2), steps=100000,
                                 more_lines=WAITS))
    job.wait_members(2, START_S)
    os.kill(job.interpreters()[job.pod_of_rank(0)][0], signal.SIGKILL)
    job.wait_step(job.steps_done() + 10, START_S)
    job.wait_members(2, START_S)
    job.end_soon()

    def of_logs(word):
        return sum(path.read_text().count(word) for path in job.log_files().values())

    wait_until(lambda: of_logs("waits") == 2, START_S, "both scripts to be past their loops")
    saved = job.checkpoints / "llama" / "model.safetensors"
    assert saved.exists() and job.object()["status"]["state"] == "Running", "the job waits for its scripts"
    (job.checkpoints / "go").touch()
    job.wait_state("Complete", START_S)
    job.steps = job.steps_done()

    job.train_alone(tmp_path / "alone")
    alone, together = job.state_files(tmp_path / "alone" / "rubato"), job.state_files(job.checkpoints / "states")
    assert {name: alone[name] == together[name] for name in alone} == dict.fromkeys(alone, True)
    assert saved.read_bytes() == (tmp_path / "alone" / "model.safetensors").read_bytes()
    assert of_logs("train_loss") == of_logs("train_runtime") == 1, "the reporter tells it, once"


SCRIPT = """
import rubato, torch
torch.set_num_threads(1)
{before}
def build():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), {layer})
    return rubato.State(model, torch.optim.SGD(model.parameters(), lr=0.1))
def loss(model, batch):
    {fault}
    return model(batch).square().mean()
data = [torch.full((4,), i / 64) for i in range({samples})]
job = rubato.Job(build, rubato.Indexed(data{batch}), loss)
for step in job:
    {body}
"""


def script(folder, before="", layer="torch.nn.Tanh()", fault="", samples=64, batch="", body="pass"):
    path = folder / "train.py"
    path.write_text(SCRIPT.format(before=before, layer=layer, fault=fault, samples=samples, batch=batch, body=body))
    return path


def test_a_script_ends_its_job_sooner_than_the_manifest_says(cluster, tmp_path):
    cluster.add_node(slots=2)
    train = script(tmp_path, body="if step.number == 40: job.finish()")
    job = cluster.apply(TorchJob("enough", script=train, gpus=(2, 2), steps=100000))
    job.wait_condition("Complete", limit_s=START_S, reason="EndedByScript")
    assert job.message("Complete") == "the script ended the job after step 40"
    assert job.steps_done() == 40 and job.object()["status"]["progress"]["step"] == 40


def test_what_a_script_does_wrong_is_told(cluster, tmp_path):
    cluster.add_node(slots=4)  # so many at a time: what takes long is that interpreters start

    def begin(name, restarts=None, more_lines=None, file=None, **what):
        more = None if restarts is None else {"faultTolerance": {"maxRestarts": restarts}}
        return cluster.apply(TorchJob(name, script=file or script(tmp_path, **what), gpus=(1, 1), steps=100000,
                                      more=more, more_lines=more_lines))

    refused = [  # no other time and no other node would help the first two
        (begin("norm", layer="torch.nn.BatchNorm1d(4)"), "running_mean", "StatefulForward"),
        (begin("batch", batch=", micro_batch=4, micro_batches=4"), "the manifest says training.batch.micro 2",
         "BatchMismatch"),
        (begin("small", samples=9), "fewer than training.batch.global 16", None),
        (begin("ends", body="if step.number > 4: break"), "The script ended before the job's last step", None)]
    for job, word, fails_with in refused:
        job.wait_seen(lambda o: any(word in c.get("message", "") for c in conditions_of(o).values()), START_S, word)
        if fails_with:
            job.wait_condition("Failed", limit_s=CHANGE_S, reason=fails_with)
        job.delete()
    for job, _, _ in refused:
        job.wait_gone(CHANGE_S)

    lacking = tmp_path / "lacking.py"
    lacking.write_text("import no_such_package\n")  # nothing of ours has begun
    forgetful = tmp_path / "forgetful.py"
    forgetful.write_text("print('trained')\n")
    failed = [
        (raises := begin("raises", restarts=1, before="seen = []", body="seen.append(1)",
                         fault="if len(seen) >= 5: raise ValueError('told to')"), "ValueError: told to"),
        (begin("stumbles", restarts=0, body="if step.number > 4: 1 / 0"), "ZeroDivisionError"),
        (begin("behind", restarts=0, body="if step.number == 3: job.finish()", more_lines="raise SystemExit(3)\n"),
         "the script exited with status 3"),
        (begin("lacks", restarts=0, file=lacking, more_lines="\n"),
         "ModuleNotFoundError: No module named 'no_such_package'"),
        (begin("forgets", restarts=0, file=forgetful, more_lines="\n"), "the script has made no rubato.Job")]
    for job, word in failed:
        job.wait_state("Failed", START_S)
        assert word in job.message("Failed")
    log = next(iter(raises.log_files().values())).read_text()
    assert "Traceback" in log and "raise ValueError('told to')" in log
