"""What cannot be trained with equal bits is refused before the first step, and the way out is named."""

import random

import pytest
import rubato
import torch
from fake_engine import FakeWorker, train
from programs import (
    LENGTH,
    MICRO_BATCHES,
    TOKENS,
    TRAINING,
    Sequences,
    build_around,
    linear,
    plain_loss,
    program_of,
    started,
)
from rubato import data
from rubato.program import Program
from torch import nn


def refusal(program, training=None):
    with pytest.raises(rubato.Refused) as caught:
        FakeWorker(program, training or TRAINING)
    assert caught.value.scope == "job"
    assert len(str(caught.value)) < 800
    return caught.value.reason, str(caught.value)


def test_batch_norm_is_refused_and_evaluation_mode_is_the_way_out():
    program = program_of(build_around(linear, lambda: nn.BatchNorm1d(LENGTH)), plain_loss)
    reason, text = refusal(program)
    assert reason == "StatefulForward"
    assert "1.running_mean (BatchNorm1d)" in text and "GroupNorm" in text
    train(started(program_of(build_around(linear, lambda: nn.BatchNorm1d(LENGTH).eval()), plain_loss), 2), 0, 2)


def test_a_buffer_that_changes_later_is_refused():
    class Late(nn.Linear):
        def __init__(self):
            super().__init__(TOKENS, LENGTH)
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, features):
            if is_late:
                self.seen += 1
            return super().forward(features)

    is_late = False
    workers = started(program_of(build_around(Late), plain_loss), 1)
    is_late = True
    with pytest.raises(rubato.Refused, match=r"0\.seen \(Late\)"):
        train(workers, 0, 1)


def test_nondeterminism_is_refused():
    drawn = random.Random(5)
    reason, text = refusal(program_of(build_around(linear), lambda m, b: plain_loss(m, b) * drawn.random()))
    assert reason == "NotDeterministic" and "use_deterministic_algorithms" in text
    state = build_around(linear)()
    reason, text = refusal(program_of(lambda: state, plain_loss))
    assert reason == "NotDeterministic" and "build()" in text


class Counting(torch.optim.SGD):
    """Keeps a number where no state_dict sees it."""

    def step(self, closure=None):
        self.steps = getattr(self, "steps", 0) + 1
        for group in self.param_groups:
            group["lr"] = 0.1 / self.steps
        return super().step(closure)


class Growing(torch.optim.SGD):
    """Makes a tensor in the third step."""

    def step(self, closure=None):
        super().step(closure)
        group = self.param_groups[0]
        group["steps"] = group.get("steps", 0) + 1
        if group["steps"] > 2:
            self.state[group["params"][0]]["late"] = torch.zeros(1)


def test_state_that_cannot_travel_is_refused():
    assert refusal(program_of(build_around(linear, optimizer=Counting), plain_loss))[0] == "HiddenState"
    workers = started(program_of(build_around(linear, optimizer=Growing), plain_loss), 1)
    with pytest.raises(rubato.Refused, match="late"):
        train(workers, 0, 3)


def test_tensors_that_share_memory_are_refused():
    def build():
        model = nn.Sequential(linear(), linear())
        model[1].weight = nn.Parameter(model[0].weight.data)
        return rubato.State(model, torch.optim.SGD(model.parameters()))

    reason, text = refusal(program_of(build, lambda m, b: plain_loss(m[0], b)))
    assert reason == "OverlappingTensors" and "0.weight and 1.weight" in text


def test_streams_scalers_and_mismatched_batches_are_refused():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([])

    reason, text = refusal(program_of(build_around(linear), plain_loss, Stream()))
    assert reason == "IterableDataset" and "__getitem__" in text

    def build():
        state = build_around(linear)()
        state.extra["scaler"] = torch.amp.GradScaler("cpu", enabled=False)
        return state

    reason, text = refusal(program_of(build, plain_loss))
    assert reason == "GradScaler" and "bfloat16" in text

    program = Program(build_around(linear), rubato.Indexed(Sequences(), micro_batch=3), plain_loss)
    reason, text = refusal(program)
    assert reason == "BatchMismatch" and "micro_batch=3" in text and "training.batch.micro 2" in text


def test_batch_shape():
    assert data.batch_shape(TRAINING, rubato.Indexed([], 2, MICRO_BATCHES)) == (2, MICRO_BATCHES)
    assert data.batch_shape({}, rubato.Indexed([], 3, 5)) == (3, 5)
    with pytest.raises(rubato.Refused, match="Neither"):
        data.batch_shape({}, rubato.Indexed([], 3))
