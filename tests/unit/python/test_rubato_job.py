"""The loop over committed steps, with an engine in Python."""

import math
import pathlib
import subprocess
import sys

import pytest
import rubato
from fake_engine import FakeEngine, alone
from programs import MICRO_BATCHES, OPTIMIZERS, STEPS, TRAINING, Sequences, Tiny, build_with, weighted_loss


def job_of(story, loss=weighted_loss, build=None):
    engine = FakeEngine(story)
    data = rubato.Indexed(Sequences(), micro_batch=2, micro_batches=MICRO_BATCHES)
    return rubato.Job(build or build_with(*OPTIMIZERS["AdamW"]), data, loss, steps=STEPS, _engine=engine), engine


def test_the_loop_hands_out_committed_steps():
    job, engine = job_of(alone(TRAINING, STEPS))
    assert job.state is None
    steps = list(job)
    assert [step.number for step in steps] == [1, 2, 3, 4, 5]
    assert [step.is_last for step in steps] == [False] * 4 + [True]
    assert steps[0].learning_rate == 1e-2 > steps[1].learning_rate
    assert all(math.isfinite(step.loss) and step.is_reporter and step.world_size == 1 for step in steps)
    assert engine.is_stopped and next(job, None) is None
    assert isinstance(job.state.model, Tiny)


def test_a_loop_may_be_left_at_its_last_step_and_no_sooner():
    for last in (STEPS, STEPS - 1):
        job, engine = job_of(alone(TRAINING, STEPS))
        for step in job:
            if step.number == last:
                break
        job._leave()
        assert engine.is_stopped and (engine.failure is None) == step.is_last
        assert step.is_last or engine.failure["reason"] == "ScriptEnded"


def test_the_body_ends_the_job_by_the_next_answer():
    job, engine = job_of(alone(TRAINING, STEPS))
    with pytest.raises(RuntimeError, match="no step is committed"):
        job.finish()
    for step in job:
        if step.number == 2:
            job.finish()
            break
    computed = [reply for reply in engine.replies if "loss" in reply]
    assert not any("ends" in reply for reply in computed[: 2 * MICRO_BATCHES])
    job._leave()
    ended = [reply for reply in engine.replies if "loss" in reply][2 * MICRO_BATCHES :]
    assert ended and all(reply["ends"] for reply in ended)


def test_what_the_body_changes_is_part_of_the_state():
    memories = []
    job, _ = job_of(alone(TRAINING, 2, memories))
    for step in job:
        job.state.optimizer.param_groups[0]["lr"] = 0.5 / step.number
        job.state.model.eval()
    assert [b'["lr",0.5]' in memories[0][-1], b'["lr",0.25]' in memories[1][-1]] == [True, True]
    assert step.learning_rate == 0.5


def test_errors_are_told_to_the_engine_and_raised():
    def broken(model, batch):
        raise KeyError("no such column")

    job, engine = job_of(alone(TRAINING, 1), broken)
    with pytest.raises(KeyError):
        next(job)
    (reply,) = engine.replies
    assert reply["reason"] == "ProgramFailed" and reply["scope"] == "attempt"
    assert reply["error"].startswith("KeyError: 'no such column' (") and "test_rubato_job.py:" in reply["error"]
    assert next(job, None) is None

    def hungry(model, batch):
        raise MemoryError("x" * 2000)

    job, engine = job_of(alone(TRAINING, 1), hungry)
    with pytest.raises(MemoryError):
        next(job)
    assert (engine.replies[0]["reason"], engine.replies[0]["scope"]) == ("OutOfMemory", "worker")
    assert len(engine.replies[0]["error"]) <= 800

    job, engine = job_of(alone(TRAINING, 1), build=lambda: 3)
    with pytest.raises(rubato.Refused):
        next(job)
    assert (engine.replies[0]["reason"], engine.replies[0]["scope"]) == ("NoState", "job")


@pytest.mark.parametrize(
    "reason, code", [("Retired", 0), ("agent gone", "rubato: the job left this worker: agent gone")]
)
def test_a_worker_that_leaves_exits(reason, code):
    job, engine = job_of(story for story in [{"kind": "end", "finished": False, "reason": reason}])
    with pytest.raises(SystemExit) as caught:
        next(job)
    assert caught.value.code == code and engine.is_stopped


def test_import_needs_no_torch():
    check = "import sys, rubato; assert 'torch' not in sys.modules; rubato.State, rubato.Indexed, rubato.Job"
    folder = pathlib.Path(rubato.__file__).parents[1]
    subprocess.run([sys.executable, "-B", "-c", check], check=True, env={"PYTHONPATH": str(folder)})
