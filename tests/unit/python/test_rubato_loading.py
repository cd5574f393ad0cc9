"""Micro-batches that processes load ahead: the same bytes for any number of them, and none that is left over."""

import os
import pathlib
import random
import select
import signal
import socket
import subprocess
import sys
import time

import numpy
import pytest
import rubato
import torch
from fake_engine import FakeEngine, alone, train
from programs import (
    MICRO_BATCHES,
    OPTIMIZERS,
    STEPS,
    TRAINING,
    Sequences,
    build_with,
    program_of,
    started,
    weighted_loss,
)
from rubato import transport
from rubato.errors import LoadingFailed
from rubato.loading import Task, loading_of

LIMIT_S = 60  # of every wait
BUILD = build_with(*OPTIMIZERS["AdamW"])


class Events:
    """Lines that any process of a test tells, in their order."""

    def __init__(self):
        self._read, self._write = os.pipe()
        self.lines = []

    def tell(self, line):
        os.write(self._write, f"{line}\n".encode())

    def wait(self, condition):
        """Until condition() holds, which is about the lines."""
        until = time.monotonic() + LIMIT_S
        while not condition():
            assert self._take(until - time.monotonic()), self.lines

    def all(self):
        """When none of the processes lives."""
        while self._take(0):
            pass
        return self.lines

    def _take(self, limit_s):
        if not select.select([self._read], [], [], max(0, limit_s))[0]:
            return False
        self.lines += os.read(self._read, 1 << 16).decode().split()
        return True


class Function(torch.utils.data.Dataset):
    """Samples that a function makes."""

    def __init__(self, function):
        self.function = function

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return self.function(index)


@pytest.fixture
def loader():
    """Makes what loads the samples of a function."""
    made = []

    def make(function, workers=1, **options):
        made.append(loading_of(rubato.Indexed(Function(function), workers=workers, **options)))
        return made[-1]

    yield make
    for loading in made:
        loading.close()


def tasks(*indices):
    return [Task(index, (index,)) for index in indices]


class Augmented(Sequences):
    def __getitem__(self, index):
        sample = super().__getitem__(index)
        sample["noise"] += numpy.random.rand() + torch.rand(1).item()
        return sample


def test_any_number_of_processes_gives_the_same_bytes():
    histories = []
    for workers in (0, 1, 3):
        program = program_of(BUILD, dataset=Augmented(), workers=workers)
        assert program.loading.ahead == 2 * workers
        for world in (1, 2):  # two that share the processes: hints do not come true
            histories.append(train(started(program, world), 0, 3))
        program.close()
    assert all(history == histories[0] for history in histories)


def test_evaluation_is_loaded_ahead_too():
    losses = []
    for workers in (0, 2):
        events = Events()

        def sample(index):
            events.tell(index)
            return {"tokens": torch.tensor([index] * 3), "noise": random.random()}

        def loss(model, batch):
            first = int(batch["tokens"][0, 0])
            if workers and not model.training and first < 8:
                events.wait(lambda: str(first + 2) in events.lines)
            return weighted_loss(model, {"tokens": batch["tokens"] % 16, "noise": batch["noise"]})

        evaluate = rubato.Indexed(torch.utils.data.Subset(Function(sample), range(10)), workers=workers)
        program = program_of(BUILD, loss, evaluate=evaluate)
        (worker,) = started(program, 1)
        losses.append([worker.ask("validate", micro=micro)["loss"] for micro in range(5)])
        program.close()
    assert losses[0] == losses[1]


def test_the_next_micro_batch_is_loaded_while_one_is_computed_and_in_the_loops_body():
    events = Events()

    class Told(Sequences):
        def __getitem__(self, index):
            events.tell("loaded")
            return super().__getitem__(index)

    def wait_for_the_next():
        """It is loaded though nobody waits for it: only those that were computed were asked for."""
        if left > 0:
            events.wait(lambda: events.lines.count("loaded") >= 2 * (computed + 1))

    def loss(model, batch):
        nonlocal computed, left
        computed, left = computed + 1, left - 1
        wait_for_the_next()
        return weighted_loss(model, batch)

    computed = left = 0  # micro-batches; left: after the first step
    data = rubato.Indexed(Told(), micro_batch=2, micro_batches=MICRO_BATCHES, workers=1)
    for step in rubato.Job(BUILD, data, loss, steps=STEPS):
        left = MICRO_BATCHES * (STEPS - step.number)
        wait_for_the_next()
    assert events.all().count("loaded") == 2 * computed, "each once, and none after the last step"


def test_a_hint_that_does_not_come_true_costs_time_only(loader):
    events = Events()

    def sample(index):
        events.tell(index)
        if index == 2:
            raise ValueError("nobody asks for it")
        return torch.full((3,), index + torch.rand(1).item())

    loading, plain = loader(sample, workers=2), loader(sample, workers=0)
    ahead = {0: (1, 2, 3), 7: (8, 9, 10, 11), 3: range(20, 60), 1: ()}
    for index, next_ones in ahead.items():
        (task,) = tasks(index)
        assert torch.equal(loading.load(task, tasks(*next_ones)), plain.load(task, []))
    loading.close()
    loaded = {int(line) for line in events.all()}
    assert 2 in loaded and len(loaded & set(range(20, 60))) <= loading.ahead


def test_after_wrong_hints_all_processes_load_again(loader):
    loading = loader(lambda index: os.getpid(), workers=2, collate=lambda samples: samples[0])
    loading.load(*tasks(0), tasks(*range(100, 200)))
    seen = set()
    for index in range(1, 100):
        if index == 20:
            seen.clear()
        seen.add(loading.load(*tasks(index), tasks(*range(index + 1, index + 9))))
    assert len(seen) == 2


def broken(index):
    raise KeyError("no such column")


def leaving(index):
    sys.exit("no more samples")


def hungry(index):
    raise MemoryError("x" * 2000)


def refusing(index):
    raise rubato.Refused("NoSample", "There is none.")


@pytest.mark.parametrize("function", [broken, leaving, hungry, refusing])
def test_what_a_dataset_raises_is_told_as_if_the_main_thread_had_loaded(function):
    replies = []
    for workers in (0, 2):
        data = rubato.Indexed(Function(function), micro_batch=2, micro_batches=MICRO_BATCHES, workers=workers)
        engine = FakeEngine(alone(TRAINING, STEPS))
        job = rubato.Job(BUILD, data, weighted_loss, steps=STEPS, _engine=engine)
        with pytest.raises(BaseException) as caught:
            next(job)
        replies += engine.replies
    assert isinstance(caught.value, LoadingFailed)
    assert "Traceback" in str(caught.value) and f", in {function.__name__}\n" in str(caught.value)
    assert len(replies) == 2 and replies[0] == replies[1]
    line = function.__code__.co_firstlineno + 1
    assert replies[0]["error"].endswith(f"test_rubato_loading.py:{line})") or function is refusing


def test_a_batch_that_cannot_travel_is_told(loader):
    with pytest.raises(LoadingFailed, match="pickle"):
        loader(lambda index: lambda: index, collate=lambda samples: samples).load(*tasks(0), [])


def test_a_loading_process_that_dies_is_told(loader):
    def dies(index):
        os.kill(os.getpid(), index) if index else os._exit(3)

    ends = {0: "status 3", signal.SIGTERM: "signal 15 .Terminated", signal.SIGKILL: "SIGKILL.*memory"}
    for index, text in ends.items():
        with pytest.raises(RuntimeError, match=text):
            loader(dies).load(*tasks(index), tasks(1))


def test_a_loading_process_that_leaves_a_child_behind_is_missed_too(loader):
    wait, gate = os.pipe()

    def forks_and_dies(index):
        if os.fork() == 0:
            os.close(gate)
            os.read(wait, 1)
            os._exit(0)
        os._exit(4)

    with pytest.raises(RuntimeError, match="status 4"):
        loader(forks_and_dies).load(*tasks(0), [])
    os.close(gate)


def test_a_loading_process_has_neither_the_agents_socket_nor_the_signals_of_the_script(loader, monkeypatch):
    ours, agents = socket.socketpair()
    monkeypatch.setenv("RUBATO_AGENT_FD", str(ours.fileno()))

    def sample(index):
        return os.environ["RUBATO_AGENT_FD"], signal.getsignal(signal.SIGINT), torch.get_num_threads(), os.getpid()

    loading = loader(sample, collate=lambda samples: samples[0])
    said = loading.load(*tasks(0), [])
    assert said[:3] == ("taken", signal.SIG_IGN, 1)
    ours.close()
    agents.settimeout(LIMIT_S)
    assert agents.recv(1) == b"", "nobody has the other end"
    assert os.environ["RUBATO_AGENT_FD"] != "taken"
    loading.close()
    with pytest.raises(ProcessLookupError):
        os.kill(said[3], 0)


SCRIPT = """
import atexit, rubato, threading, torch
atexit.register(lambda: print("atexit"))
def build():
    model = torch.nn.Linear(1, 1)
    return rubato.State(model, torch.optim.SGD(model.parameters(), lr=0.1))
class Endless(list):
    def __getitem__(self, index):
        print("loading", flush=True)
        threading.Event().wait()
print("said once", end=" ")
data = rubato.Indexed(Endless([0] * 8), micro_batch=1, micro_batches=2, workers=2)
next(rubato.Job(build, data, lambda model, batch: model(batch).sum(), steps=9))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_loading_processes_end_with_the_script_however_it_ends(tmp_path, number):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(rubato.__file__).parents[1])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-B", script], start_new_session=True, env=environment, **pipes)
    assert process.stdout.readline() == "said once loading\n"
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2, "one that loads and one that has nothing to do"
    loaders = [os.pidfd_open(int(child)) for child in children]
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.kill()
    said, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == -number and errors.count("Traceback") == (number == signal.SIGINT)
    assert said.count("atexit") == (number == signal.SIGINT)
    for loader in loaders:
        assert select.select([loader], [], [], LIMIT_S)[0]
        os.close(loader)


def test_objects_arrive_as_they_were():
    image = torch.rand(3, 8, 6).permute(1, 2, 0)
    sent = {
        "strided": [image, image[1:, ::2], torch.rand(4).expand(3, 4), torch.tensor(2.5)],
        "dtypes": [torch.arange(5).to(dtype) for dtype in (torch.bfloat16, torch.bool, torch.int64, torch.complex64)],
        "odd": [torch.zeros(0, 3), torch.rand(2, requires_grad=True), torch.eye(3).to_sparse()],
        "arrays": (numpy.arange(6.0).reshape(2, 3), "text", 7, None),
        "shifted": torch.arange(100)[1:],
    }
    sent["same"] = sent["shifted"]
    ours, theirs = transport.link()
    transport.send(ours, transport.pack(sent))
    found = transport.receive(theirs)
    assert found["same"] is found["shifted"] and found["arrays"][1:] == ("text", 7, None)
    assert numpy.array_equal(found["arrays"][0], sent["arrays"][0])
    for kind in ("strided", "dtypes", "odd"):
        for new, old in zip(found[kind], sent[kind], strict=True):
            assert new.dtype == old.dtype and new.layout == old.layout and new.requires_grad == old.requires_grad
            assert torch.equal(new.to_dense(), old.to_dense())
    for new, old in zip([*found["strided"], found["shifted"]], [*sent["strided"], sent["shifted"]]):
        assert new.stride() == old.stride() and (new.data_ptr() - old.data_ptr()) % 64 == 0
    found["shifted"].add_(1)
    assert torch.equal(sent["shifted"], torch.arange(1, 100))
    ours.close()
    with pytest.raises(EOFError):
        transport.receive(theirs)
