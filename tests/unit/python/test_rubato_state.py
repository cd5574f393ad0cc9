"""Equal bits on any number of workers, against an engine in Python."""

import enum
import itertools
import math
import random

import numpy
import pytest
import rubato
import torch
from fake_engine import FakeWorker, train
from programs import (
    LENGTH,
    MICRO_BATCHES,
    OPTIMIZERS,
    STEPS,
    TOKENS,
    TRAINING,
    WIDTH,
    Sequences,
    Tiny,
    build_around,
    build_with,
    cosine,
    linear,
    plain_loss,
    program_of,
    started,
)
from rubato.chance import mix, seeded
from rubato.plain import decode, encode, is_plain


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_number_of_workers_and_a_newcomer_have_the_same_bytes(name):
    program = program_of(build_with(*OPTIMIZERS[name]))
    histories = []
    for world in (1, 2, 3):
        workers = started(program, world)
        assert len({worker.found["fingerprint"] for worker in workers}) == 1
        history = train(workers, 0, 3)
        newcomer = FakeWorker(program, TRAINING)
        newcomer.load_from(workers[0], 3)
        history += train([*workers, newcomer], 3, STEPS)
        histories.append(history)
    assert histories[0] == histories[1] == histories[2]
    assert len({repr(step) for step in histories[0]}) == STEPS


def test_a_worker_that_goes_back_computes_the_same_again():
    program = program_of(build_with(*OPTIMIZERS["AdamW"]))
    worker, copy = started(program, 2)
    start = worker.memory.bytes()
    history = train([worker], 0, 2)
    copy.load_from(worker, 2)
    history += train([worker], 2, STEPS)
    worker.load_from(copy, 2)
    assert train([worker], 2, STEPS) == history[2:]
    worker.ask("init")
    assert worker.memory.bytes() == start
    assert train([worker], 0, STEPS) == history


def test_a_worker_may_apply_without_computing_and_start_from_loaded_step_0():
    program = program_of(build_with(*OPTIMIZERS["Adagrad"]))
    (worker,) = started(program, 1)
    follower = FakeWorker(program, TRAINING)
    follower.load_from(worker, 0)
    train([worker], 0, 1)
    follower.memory.gradient.copy_(worker.memory.gradient)
    follower.ask("apply", step=0, factor=1, loss=1.0, norm=1.0)
    assert follower.memory.bytes() == worker.memory.bytes()


def test_layout():
    (worker,) = started(program_of(build_with(*OPTIMIZERS["AdamW"])), 1)
    found = worker.found
    groups = {group: list(entries) for group, entries in itertools.groupby(found["tensors"], lambda t: t["group"])}
    assert list(groups) == ["trained", "model", "optimizer"]
    trained = [entry["name"] for entry in groups["trained"]]
    assert trained == ["unused", "embedding.weight", "narrow.weight", "narrow.bias", "norm.weight", "norm.bias"]
    rest = {entry["name"]: (entry["dtype"], entry["shape"]) for entry in groups["model"]}
    assert rest["frozen.weight"] == ("F32", [WIDTH, WIDTH])
    assert rest["shift"] == ("F32", [1, WIDTH])
    assert rest["empty"] == ("F32", [0, 3])
    named = {entry["name"] for entry in found["tensors"] if entry["in_state_dict"]}
    model = worker.trainer.state.model
    assert named == model.state_dict().keys() - {"head.weight"} and "empty" not in named, "tied weights stand once"
    dtypes = {entry["name"]: entry["dtype"] for entry in found["tensors"]}
    assert dtypes["narrow.weight"] == dtypes["exp_avg.narrow.weight"] == "BF16"
    assert dtypes["step.unused"] == "F32"
    assert (found["micro_batch"], found["micro_batches"], found["samples"], found["seed"]) == (2, MICRO_BATCHES, 13, 7)
    assert found["fingerprint"].startswith(f"torch-{torch.__version__}/cpu-")
    assert len(found["fingerprint"]) <= 200


def test_who_would_compute_other_bits_shows_another_fingerprint(monkeypatch):
    def shown(*modules, loss=plain_loss, **more):
        program = program_of(build_around(*(modules or [linear]), **more), loss)
        return FakeWorker(program, TRAINING).found["fingerprint"]

    usual = shown()
    assert shown() == usual
    others = [
        shown(linear, torch.nn.Tanh),  # no other tensors
        shown(lambda: torch.nn.Linear(TOKENS, LENGTH + 1)),
        shown(optimizer=torch.optim.Adagrad),
        shown(loss=lambda model, batch: 2 * plain_loss(model, batch)),
    ]
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)("2.14.0"))
    others.append(shown())
    assert others[-1].startswith("torch-2.14.0/")
    assert len({usual, *others}) == 1 + len(others)


def test_a_compiled_model_has_the_names_of_the_one_inside():
    def build():
        model = torch.nn.Sequential(linear(), torch.nn.Linear(LENGTH, LENGTH))
        names.update(model.state_dict())
        model[1] = torch.compile(model[1], backend="eager")
        model = torch.compile(model, backend="eager")
        return rubato.State(model, torch.optim.AdamW(model.parameters(), lr=0.1))

    names = set()
    (worker,) = started(program_of(build, plain_loss), 1)
    tensors = worker.found["tensors"]
    assert names == {tensor["name"] for tensor in tensors if tensor["in_state_dict"]}
    assert not [tensor["name"] for tensor in tensors if "_orig_mod" in tensor["name"]]
    newcomer = FakeWorker(program_of(build, plain_loss), TRAINING)
    train([worker], 0, 1)
    newcomer.load_from(worker, 1)
    train([worker, newcomer], 1, 2)


def test_gradient_gaps_stay_zero_and_zero_grad_does_no_harm():
    (worker,) = started(program_of(build_with(*OPTIMIZERS["SGD"])), 1)
    compute = {"step": 0, "micro": 0, "ids": [0, 1], "ahead": []}
    worker.ask("compute", **compute)
    memory = worker.memory
    first = memory.gradient.clone()
    worker.trainer.state.optimizer.zero_grad()
    memory.gradient.fill_(0)
    worker.ask("compute", **compute)
    assert torch.equal(memory.gradient, first)
    assert first[memory.offsets[0] : memory.offsets[1]].count_nonzero() == 0  # the unused parameter and its gap
    assert first[-16:].count_nonzero() == 0


class Average:
    """An EMA with a state_dict, fed by the optimizer's hook."""

    def __init__(self, model):
        self.count = 0
        self.values = {"deep": {name: p.detach().clone() for name, p in model.named_parameters()}}

    def update(self, model):
        self.count += 1
        for name, parameter in model.named_parameters():
            self.values["deep"][name] = self.values["deep"][name] * 0.9 + parameter.detach() * 0.1

    def state_dict(self):
        return {"values": self.values, "count": self.count}

    def load_state_dict(self, state):
        self.values, self.count = state["values"], state["count"]


class Mode(str, enum.Enum):
    WARM = "warm"


class Kept:
    """An extra with a number of NumPy's, and a text that is not quite one."""

    def __init__(self):
        self.factor, self.mode = numpy.float32(0.9), Mode.WARM

    def state_dict(self):
        return {"factor": self.factor, "mode": self.mode}

    def load_state_dict(self, state):
        self.factor, self.mode = state["factor"], state["mode"]


TABLE = numpy.linspace(0.1, 0.01, 20, dtype=numpy.float32)


@pytest.mark.parametrize("place", ["build", "schedule", "body", "extra"])
def test_numbers_of_numpy_are_the_same_for_a_newcomer(place):
    def build():
        model = linear()
        rate = {"build": TABLE[0], "extra": 0.1}.get(place, 1.0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.3)
        is_scheduled = place == "schedule"
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: TABLE[step]) if is_scheduled else None
        kept = Kept()
        if place == "extra":
            optimizer.register_step_post_hook(lambda *_: optimizer.param_groups[0].update(lr=0.1 * kept.factor))
        return rubato.State(model, optimizer, scheduler, extra={"kept": kept})

    program = program_of(build, plain_loss)
    workers = started(program, 1)
    for step in range(8):
        train(workers, step, step + 1)  # it compares
        for worker in workers if place == "body" else ():
            worker.trainer.state.optimizer.param_groups[0]["lr"] = TABLE[step]
            worker.trainer.keep_changes()
        workers[1:] = [FakeWorker(program, TRAINING)]
        workers[1].load_from(workers[0], step + 1)
    assert type(workers[0].trainer.state.optimizer.param_groups[0]["lr"]) is float
    assert type(workers[0].trainer.state.extra["kept"].factor) is float
    assert type(workers[0].trainer.state.extra["kept"].mode) is str


@pytest.mark.parametrize("like", [Mode.WARM, numpy.str_("warm"), numpy.float32(0.5), numpy.int64(3)])
def test_what_is_like_a_plain_value_becomes_one(like):
    assert not is_plain({"like": like})
    coded = encode({"like": like, like: 1}, "state")
    assert is_plain(decode(coded, {}))
    assert decode(coded, {}) == {"like": like, like: 1}


def build_with_averages():
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    average, module = Average(model), torch.optim.swa_utils.AveragedModel(model)
    optimizer.register_step_post_hook(lambda *_: (average.update(model), module.update_parameters(model)))
    return rubato.State(model, optimizer, cosine(optimizer), extra={"average": average, "module": module})


def test_extra_state_travels():
    program = program_of(build_with_averages)
    workers = started(program, 2)
    extra = [entry for entry in workers[0].found["tensors"] if entry["name"] == "extra.average.values.deep.norm.bias"]
    assert [entry["in_state_dict"] for entry in extra] == [False]
    history = train(workers, 0, 2)
    newcomer = FakeWorker(program, TRAINING)
    newcomer.load_from(workers[0], 2)
    history += train([*workers, newcomer], 2, STEPS)
    assert newcomer.trainer.state.extra["average"].count == STEPS
    assert history == train(started(program, 1), 0, STEPS)


def test_validation_leaves_no_trace():
    program = program_of(build_with(*OPTIMIZERS["AdamW"]), evaluate=rubato.Indexed(Sequences()))
    worker, other = started(program, 2)
    assert worker.found["validation_micro_batches"] == 6
    before = worker.memory.bytes()
    losses = [worker.ask("validate", micro=micro)["loss"] for micro in range(6)]
    assert losses == [other.ask("validate", micro=micro)["loss"] for micro in range(6)]
    assert all(math.isfinite(loss) for loss in losses)
    assert worker.memory.bytes() == before
    assert worker.trainer.state.model.training


def test_random_numbers_outside_are_not_disturbed():
    torch.manual_seed(3)
    random.seed(3)
    expected = torch.rand(1), random.random()
    torch.manual_seed(3)
    random.seed(3)
    with seeded(mix(1, 2, 3)):
        inside = torch.rand(1)
    assert (torch.rand(1), random.random()) == expected
    with seeded(mix(1, 2, 3)):
        assert torch.rand(1) == inside
    assert len({mix(seed, step, micro) for seed in range(4) for step in range(4) for micro in range(4)}) == 64


def test_a_loss_that_is_not_finite_is_said_so():
    (worker,) = started(program_of(build_around(linear), lambda m, b: plain_loss(m, b) * math.inf), 1)
    reply = worker.ask("compute", step=0, micro=0, ids=[0, 1], ahead=[])
    assert reply == {"loss": "NaN", "weight": 1}


def test_weights_and_norms_of_any_kind_of_number():
    def loss(model, batch):
        return rubato.Weighted(plain_loss(model, batch), numpy.int64(2))

    (worker,) = started(program_of(build_around(linear), loss, max_grad_norm=math.inf), 1)
    assert worker.found["max_grad_norm"] == 0
    assert worker.ask("compute", step=0, micro=0, ids=[0, 1], ahead=[])["weight"] == 2
    with pytest.raises(ValueError, match="weight=2.5"):
        started(program_of(build_around(linear), lambda m, b: rubato.Weighted(plain_loss(m, b), 2.5)), 1)


class Transposed(torch.nn.Module):
    """Its parameter is not contiguous, and large enough for bits to depend on that."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(TOKENS, 32), torch.nn.Linear(64, 1)
        self.weight = torch.nn.Parameter(torch.randn(64, 32).t())

    def forward(self, features):
        return self.last(torch.tanh(self.first(features[:, 0]) @ self.weight))


class Sparse(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.narrow = torch.nn.Embedding(TOKENS, WIDTH, sparse=True, dtype=torch.bfloat16)
        self.wide = torch.nn.Embedding(TOKENS, WIDTH, sparse=True)

    def forward(self, features):
        tokens = features.argmax(-1)
        return self.narrow(tokens).float() + self.wide(tokens)


@pytest.mark.parametrize("model", [Transposed, Sparse])
def test_parameters_of_any_layout(model):
    program = program_of(build_around(model), plain_loss)
    assert train(started(program, 1), 0, STEPS) == train(started(program, 3), 0, STEPS)


def test_any_default_type():
    torch.set_default_dtype(torch.float64)
    try:
        build = build_around(lambda: torch.nn.Linear(TOKENS, LENGTH, dtype=torch.float32))
        histories = [train(started(program_of(build, plain_loss), world), 0, 2) for world in (1, 2)]
    finally:
        torch.set_default_dtype(torch.float32)
    assert histories[0] == histories[1]
