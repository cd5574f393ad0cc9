"""A job that trains alone, by the engine itself: checkpoints, resuming, evaluation, and what comes after the loop."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import rubato
import torch

STEPS = 6


def build():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return rubato.State(model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9))


def loss(model, batch):
    return rubato.Weighted(model(batch).square().sum(), len(batch))


class Noisy(list):
    def __getitem__(self, index):
        return super().__getitem__(index) + torch.rand(4) / 100


def data(samples=32, **shape):
    return rubato.Indexed(Noisy(torch.full((4,), index / 8) for index in range(samples)), **shape)


def job_of(folder, steps, workers=0, **more):
    samples = data(micro_batch=2, micro_batches=3, workers=workers)
    return rubato.Job(build, samples, loss, steps=steps, checkpoint=folder, checkpoint_every=2, seed=3, **more)


def newest(folder):
    path = folder / (folder / "LATEST").read_text().strip()
    return {name: (path / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors", "steps.bin")}


def test_it_goes_on_from_its_checkpoint_with_the_same_bytes(tmp_path):
    job = job_of(tmp_path / "whole", STEPS)
    losses = [step.loss for step in job]
    assert len(losses) == STEPS and losses[-1] < losses[0]
    weights = {name: tensor.clone() for name, tensor in job.state.model.state_dict().items()}
    assert all(tensor.isfinite().all() for tensor in weights.values()), "the model is there after the loop"

    parts = [step.loss for steps in (3, STEPS) for step in job_of(tmp_path / "parts", steps)]
    assert parts == losses
    assert newest(tmp_path / "parts") == newest(tmp_path / "whole")
    from safetensors.torch import load_file

    path = tmp_path / "whole" / (tmp_path / "whole" / "LATEST").read_text().strip()
    saved = load_file(path / "model.safetensors")
    assert saved.keys() == weights.keys() and all(torch.equal(saved[name], weights[name]) for name in saved)
    assert json.loads((path / "run.json").read_text())["step"] == STEPS


def momentum(job):
    """What the optimizer holds for each parameter."""
    return [values["exp_avg"].clone() for values in job.state.optimizer.state.values()]


def test_a_job_that_is_over_shows_its_last_state_and_no_step(tmp_path):
    first = job_of(tmp_path, STEPS)
    list(first)
    again = job_of(tmp_path, STEPS)
    assert list(again) == []
    assert first.state.scheduler.last_epoch == again.state.scheduler.last_epoch == STEPS
    assert all(map(torch.equal, momentum(first), momentum(again)))


def test_it_ends_where_the_script_ends_it(tmp_path):
    job = job_of(tmp_path / "ended", STEPS)
    losses = []
    for step in job:
        losses.append(step.loss)
        if step.number == 3:
            job.finish()
    assert losses == [step.loss for step in job_of(tmp_path / "whole", 3)]
    assert newest(tmp_path / "ended") == newest(tmp_path / "whole")


def test_another_model_does_not_go_on_from_it(tmp_path):
    list(job_of(tmp_path, 2))

    def other():
        model = torch.nn.Linear(4, 1)
        return rubato.State(model, torch.optim.SGD(model.parameters(), lr=0.1))

    job = rubato.Job(other, data(micro_batch=2, micro_batches=3), loss, steps=4, checkpoint=tmp_path, seed=3)
    with pytest.raises(SystemExit, match="CheckpointPathTaken.*what the script trains"):
        next(job)


def test_other_samples_are_counted_and_the_way_out_is_an_argument(tmp_path):
    list(job_of(tmp_path, 2))
    job = rubato.Job(build, data(40, micro_batch=2, micro_batches=3), loss, steps=4, checkpoint=tmp_path, seed=3)
    with pytest.raises(SystemExit, match=r"its data has 32 samples, this job's has 40\. Give Job\(checkpoint=\)"):
        next(job)


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_and_loading_ahead_change_nothing(tmp_path, workers):
    evaluate = data(5, micro_batch=2, workers=workers)
    evaluated = job_of(tmp_path / "evaluated", STEPS, workers, evaluate=evaluate, evaluate_every=2)
    assert len(list(evaluated)) == STEPS
    list(job_of(tmp_path / "plain", STEPS))
    assert newest(tmp_path / "evaluated") == newest(tmp_path / "plain")


def test_too_few_samples_are_told(tmp_path):
    with pytest.raises(SystemExit, match="5 samples, fewer than training.batch.global 6"):
        next(rubato.Job(build, data(5, micro_batch=2, micro_batches=3), loss, steps=2))


def test_an_exception_ends_the_process_with_its_traceback(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import rubato, torch\n"
        "def build():\n"
        "    model = torch.nn.Linear(1, 1)\n"
        "    return rubato.State(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "data = rubato.Indexed([torch.ones(1)] * 8, micro_batch=1, micro_batches=2)\n"
        "for step in rubato.Job(build, data, lambda model, batch: model(batch).sum(), steps=9):\n"
        "    if step.number == 3: raise ValueError('of mine')\n")
    done = subprocess.run([sys.executable, "-B", str(script)], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": str(pathlib.Path(rubato.__file__).parents[1])})
    assert done.returncode == 1 and done.stderr.count("ValueError: of mine") == 1
