"""The loop over committed steps, with an engine in Python."""

import math
import os
import pathlib
import signal
import subprocess
import sys

import numpy
import pytest
import rubato
import torch
from fake_engine import FakeEngine, alone
from programs import MICRO_BATCHES, OPTIMIZERS, STEPS, TRAINING, Sequences, Tiny, build_with, weighted_loss
from rubato.errors import failure


def job_of(story, loss=weighted_loss, build=None, workers=0, **more):
    engine = FakeEngine(story)
    data = rubato.Indexed(Sequences(), micro_batch=2, micro_batches=MICRO_BATCHES, workers=workers)
    build = build or build_with(*OPTIMIZERS["AdamW"])
    return rubato.Job(build, data, loss, steps=STEPS, _engine=engine, **more), engine


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


@pytest.mark.parametrize("workers", [0, 2])
def test_the_last_evaluation_comes_though_the_loop_was_left(workers):
    evaluate = rubato.Indexed(Sequences(), workers=workers)
    job, engine = job_of(alone(TRAINING, STEPS), evaluate=evaluate, evaluate_every=1)
    for step in job:
        if step.is_last:
            break
    job._leave()
    assert [math.isfinite(reply["loss"]) for reply in engine.replies[-6:]] == [True] * 6
    assert engine.is_stopped and engine.failure is None
    assert not living(job._program.evaluate_loading)


def test_whatever_is_raised_behind_a_loop_the_engine_is_stopped(monkeypatch):
    job, engine = job_of(alone(TRAINING, STEPS))
    for step in job:
        if step.is_last:
            break

    def broken():
        raise KeyError("of mine")

    monkeypatch.setattr(job._program, "close", broken)
    with pytest.raises(KeyError):
        job._leave()
    assert engine.failure["error"].startswith("KeyError: 'of mine' (")

    job, engine = job_of(alone(TRAINING, STEPS))
    next(job)
    job.finish()
    monkeypatch.setattr(engine, "next", lambda _: broken())
    with pytest.raises(KeyError):
        job._leave()
    assert engine.failure["error"].startswith("KeyError: 'of mine' (")


def living(loading):
    """Its processes."""
    return [process for process in getattr(loading, "_processes", []) if process._pid]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_body_ends_the_job_by_the_next_answer(workers):
    job, engine = job_of(alone(TRAINING, STEPS), workers=workers)
    with pytest.raises(RuntimeError, match="no step is committed"):
        job.finish()
    for step in job:
        if step.number == 2:
            job.finish()
            break
    assert len(living(job._program.loading)) == workers
    computed = [reply for reply in engine.replies if "loss" in reply]
    assert not any("ends" in reply for reply in computed[: 2 * MICRO_BATCHES])
    job._leave()
    ended = [reply for reply in engine.replies if "loss" in reply][2 * MICRO_BATCHES :]
    assert ended and all(reply["ends"] for reply in ended)
    assert engine.is_stopped and engine.failure is None
    assert not living(job._program.loading)


def test_what_the_body_changes_is_part_of_the_state():
    memories = []
    job, _ = job_of(alone(TRAINING, 2, memories))
    for step in job:
        job.state.optimizer.param_groups[0]["lr"] = 0.5 / step.number
        job.state.model.eval()
    assert [b'["lr",0.5]' in memories[0][-1], b'["lr",0.25]' in memories[1][-1]] == [True, True]
    assert step.learning_rate == 0.5


def test_what_the_body_does_wrong_to_the_state_is_told_to_the_engine():
    job, engine = job_of(alone(TRAINING, STEPS))
    next(job)
    job.state.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
    with pytest.raises(rubato.Refused, match="are others than build"):
        next(job)
    assert engine.is_stopped and (engine.failure["reason"], engine.failure["scope"]) == ("StateChanged", "job")
    assert next(job, None) is None
    job._leave()
    assert engine.failure["reason"] == "StateChanged", "the first word holds"


def test_a_dataset_of_another_length_is_told_to_the_engine(monkeypatch):
    job, engine = job_of(alone(TRAINING, STEPS))
    next(job)
    monkeypatch.setattr(Sequences, "__len__", lambda self: 10_000)
    with pytest.raises(rubato.Refused, match="samples at the start and has 10000 now") as refused:
        next(job)
    assert refused.value.reason == "DatasetChanged"
    assert (engine.replies[-1]["reason"], engine.replies[-1]["scope"]) == ("DatasetChanged", "job")


@pytest.mark.parametrize("optimizer", ["lr=None", "no lr"])
def test_an_optimizer_may_have_no_learning_rate(optimizer):
    job, engine = job_of(alone(TRAINING, STEPS), build=build_with(*OPTIMIZERS[optimizer]))
    steps = list(job)
    assert [step.learning_rate for step in steps] == [None] * STEPS
    assert steps[-1].loss < steps[0].loss
    applied = [reply["learning_rate"] for reply in engine.replies if "learning_rate" in reply]
    assert applied == [None] * STEPS


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
    assert failure(SyntaxError("raised nowhere"))["error"] == "SyntaxError: raised nowhere"


class Mute(Exception):
    def __str__(self):
        raise KeyError("text")


@pytest.mark.parametrize(
    "exception, text",
    [
        (ValueError("b\udcff.txt"), "ValueError: b?.txt ("),
        (Mute(), "Mute: <Mute without a text> ("),
        (rubato.Refused("NoState", "b\udcff.txt"), "b?.txt"),
    ],
)
def test_an_exception_of_any_text_is_told(exception, text):
    def broken(model, batch):
        raise exception

    job, engine = job_of(alone(TRAINING, 1), broken)
    with pytest.raises(type(exception)):
        next(job)
    (reply,) = engine.replies
    assert reply["error"].encode().startswith(text.encode())


@pytest.mark.parametrize(
    "reason, code", [("Retired", 0), ("agent gone", "rubato: the job left this worker: agent gone")]
)
def test_a_worker_that_leaves_exits(reason, code):
    job, engine = job_of(story for story in [{"kind": "end", "finished": False, "reason": reason}])
    with pytest.raises(SystemExit) as caught:
        next(job)
    assert caught.value.code == code and engine.is_stopped


def trained_by(monkeypatch, data=None, **more):
    """What a job that runs alone tells the engine."""
    told = []
    monkeypatch.setattr("rubato.engine.Engine", lambda training: told.append(training) or FakeEngine(None))
    data = data or rubato.Indexed(Sequences(), micro_batch=numpy.int64(2), micro_batches=4)
    job = rubato.Job(build_with(*OPTIMIZERS["AdamW"]), data, weighted_loss, **{"steps": 3, **more})
    job._is_over = True  # no story is behind this engine
    return told[0]


def test_arguments_of_a_job_that_runs_alone(monkeypatch):
    told = trained_by(monkeypatch, steps=numpy.int64(3), seed=2**63 - 1, checkpoint="~/x", checkpoint_keep=1)
    assert told["stop"]["steps"] == 3 and told["seed"] == 2**63 - 1 and told["batch"] == {"micro": 2, "global": 8}
    assert told["checkpoint"] == {"path": os.path.expanduser("~/x"), "every": 0, "keep": 1}
    assert trained_by(monkeypatch, checkpoint="states")["checkpoint"]["path"] == os.path.abspath("states")


def test_a_job_has_one_seed(monkeypatch):
    def of(**more):
        return rubato.Indexed(Sequences(), micro_batch=2, micro_batches=4, **more)

    assert trained_by(monkeypatch)["seed"] == 0
    assert trained_by(monkeypatch, seed=5)["seed"] == 5
    assert trained_by(monkeypatch, data=of(seed=5))["seed"] == 5
    assert trained_by(monkeypatch, data=of(seed=5), seed=5)["seed"] == 5
    with pytest.raises(ValueError, match=r"Job\(seed=0\) and Indexed\(seed=5\).*Say it once"):
        trained_by(monkeypatch, data=of(seed=5), seed=0)


@pytest.mark.parametrize(
    "wrong, text",
    [
        ({"steps": -5}, r"Job\(steps\)=-5: give an integer from 1"),
        ({"steps": 0}, r"Job\(steps\)=0"),
        ({"steps": 2.5}, r"Job\(steps\)=2.5"),
        ({"steps": None}, "say how many steps"),
        ({"seed": 2**63}, r"Job\(seed\)=9223372036854775808: give an integer from 0 to 2\*\*63 - 1"),
        ({"max_grad_norm": math.nan}, "max_grad_norm"),
        ({"max_grad_norm": -1}, "max_grad_norm"),
        ({"data": [1, 2]}, r"Job\(data=\) is a list.*rubato.Indexed\(dataset, micro_batch=2"),
        ({"data": torch.utils.data.DataLoader([1])}, r"DataLoader.*collate=loader.collate_fn"),
        ({"evaluate": [1, 2]}, r"Job\(evaluate=\) is a list"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(monkeypatch, wrong, text):
    with pytest.raises((TypeError, ValueError), match=text):
        trained_by(monkeypatch, **wrong)


def test_numbers_of_indexed_are_checked():
    for wrong in ({"workers": -1}, {"micro_batch": 0}, {"micro_batches": -2}, {"seed": -1}):
        with pytest.raises(ValueError, match=rf"Indexed\({next(iter(wrong))}\)"):
            rubato.Indexed([1], **wrong)


def test_a_forked_child_has_no_part_in_the_job():
    """Neither by its atexit handlers nor by the loop: it would wait for an engine that it does not have."""
    job, engine = job_of(alone(TRAINING, STEPS))
    step = next(job)
    job.finish()
    child = os.fork()
    if child == 0:
        job._leave()
        is_refused = False
        try:
            next(job)
        except RuntimeError:
            is_refused = True
        os._exit(0 if is_refused and not engine.is_stopped else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert step.number == 1 and next(job).number == 2


def test_a_script_without_a_job_tells_how_far_it_is(monkeypatch, tmp_path):
    rubato.report(step=1)  # elsewhere it does nothing
    told = tmp_path / "progress"
    monkeypatch.setenv("RUBATO_PROGRESS_FILE", str(told))
    for step in (1, 2):
        rubato.report(step=step, loss=torch.tensor(0.0), tokens=numpy.int64(64 * step))
    assert told.read_text() == '{"step": 2, "loss": 0.0, "tokens": 128}\n'
    rubato.report(3)
    assert told.read_text() == '{"step": 3}\n'


@pytest.fixture
def sigterm(monkeypatch):
    """Sets the script's own handler; nothing is left behind."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("rubato.progress._is_told", None)
    yield lambda handler: signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGTERM, before)


def test_a_script_asks_whether_it_is_to_write_a_checkpoint(sigterm):
    heard = []
    sigterm(lambda *_: heard.append("script"))
    assert [rubato.should_checkpoint(), rubato.should_checkpoint()] == [False, False]
    signal.raise_signal(signal.SIGTERM)
    assert [rubato.should_checkpoint(), rubato.should_checkpoint()] == [True, True]
    assert heard == ["script"]


def test_a_script_that_asks_ends_itself_and_its_children_end_by_the_signal(sigterm):
    sigterm(signal.SIG_DFL)
    assert not rubato.should_checkpoint()
    child = os.fork()
    if child == 0:
        signal.raise_signal(signal.SIGTERM)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    signal.raise_signal(signal.SIGTERM)
    assert rubato.should_checkpoint()


def test_import_needs_no_torch():
    check = "import sys, rubato; assert 'torch' not in sys.modules; rubato.State, rubato.Indexed, rubato.Job"
    folder = pathlib.Path(rubato.__file__).parents[1]
    subprocess.run([sys.executable, "-B", "-c", check], check=True, env={"PYTHONPATH": str(folder)})
