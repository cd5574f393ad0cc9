"""What cannot be trained with equal bits is refused before the first step, and the way out is named."""

import contextlib
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
from rubato.trainer import _Looks
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


class Follower(nn.Module):
    """A momentum encoder, as in MoCo and BYOL: it begins as a copy of what is trained."""

    def __init__(self, follow):
        super().__init__()
        self.leader = linear()
        self.follower = linear().requires_grad_(False)
        self.follower.load_state_dict(self.leader.state_dict())
        self.follow = follow

    def forward(self, features):
        for ours, theirs in zip(self.follower.parameters(), self.leader.parameters()):
            self.follow(ours, theirs)
        return self.leader(features) + self.follower(features)


def assigned(ours, theirs):
    ours.data = ours.data.lerp(theirs.data, 0.01)


def counted(ours, theirs):
    with torch.no_grad():
        ours.lerp_(theirs, 0.01)


@pytest.mark.parametrize("follow", [counted, assigned, lambda ours, theirs: ours.data.lerp_(theirs.data, 0.01)])
def test_a_parameter_that_the_forward_pass_writes_is_refused(follow):
    reason, text = refusal(program_of(build_around(lambda: Follower(follow)), plain_loss))
    assert reason == "StatefulForward" and "0.follower.weight (Linear)" in text and "loop's body" in text


class Kept:
    """An extra whose state_dict() makes new tensors."""

    def __init__(self):
        self.values, self.count = {"mean": torch.zeros(2)}, 0

    def state_dict(self):
        return {"values": {name: value.clone() for name, value in self.values.items()}, "count": self.count}

    def load_state_dict(self, state):
        self.values, self.count = state["values"], state["count"]


def add_to_tensor(state):
    state.extra["kept"].values["mean"] += 1


def add_to_count(state):
    state.extra["kept"].count += 1


def add_to_module(state):
    with torch.no_grad():
        state.extra["module"].weight += 1


def add_to_rate(state):
    state.optimizer.param_groups[0]["lr"] += 1


@pytest.mark.parametrize(
    "write, name",
    [
        (add_to_tensor, "extra.kept.values.mean."),
        (add_to_count, "extra.kept."),
        (add_to_module, "extra.module.weight (Linear)"),
        (add_to_rate, "optimizer.param_groups."),
    ],
)
@pytest.mark.parametrize("is_early", [True, False])
def test_the_rest_of_the_state_is_not_for_the_loss_to_write(write, name, is_early):
    def build():
        state = build_around(linear)()
        state.extra = {"kept": Kept(), "module": linear()}
        state.model.state = lambda: state
        return state

    def loss(model, batch):
        if is_writing:
            write(model.state())
        return plain_loss(model, batch)

    is_writing = is_early
    program = program_of(build, loss, evaluate=rubato.Indexed(Sequences()))
    if is_early:
        assert f"changes {name}" in refusal(program)[1]
        return
    worker, other = started(program, 2)
    train([worker, other], 0, 1)
    is_writing = True
    for ask in (lambda: worker.ask("validate", micro=0), lambda: train([other], 1, 2)):
        with pytest.raises(rubato.Refused) as caught:
            ask()
        assert f"changes {name}" in str(caught.value)


def test_nondeterminism_is_refused():
    drawn = random.Random(5)
    reason, text = refusal(program_of(build_around(linear), lambda m, b: plain_loss(m, b) * drawn.random()))
    assert reason == "NotDeterministic" and "use_deterministic_algorithms" in text
    state = build_around(linear)()
    reason, text = refusal(program_of(lambda: state, plain_loss))
    assert reason == "NotDeterministic" and "build()" in text


@pytest.mark.parametrize("workers", [0, 2])
def test_what_differs_in_later_steps_is_found_then(workers):
    calls = []

    def loss(model, batch):
        calls.append(batch)
        return plain_loss(model, batch) * (len(calls) if is_counting else 1)

    is_counting = False
    started_workers = started(program_of(build_around(linear), loss, workers=workers), 2)
    train(started_workers, 0, 1)
    is_counting = True
    looks = started_workers[0].trainer._looks
    looks._computed = 1000  # or the job is too young for its second look
    with pytest.raises(rubato.Refused, match=r"^Micro-batch \d of step 2 gave another loss"):
        train(started_workers, 1, 2)
    started_workers[0].trainer._program.close()


@pytest.mark.parametrize("micro_batches", [1, 8])
def test_looks_cost_less_than_a_hundredth(micro_batches):
    looks = _Looks()
    steps = [step for step in range(1, 401) if sum(looks.is_due(step) for _ in range(micro_batches))]
    assert steps == ([1, 256] if micro_batches == 1 else [1, 64, 128, 256])
    assert len(steps) < 0.01 * 400 * micro_batches
    assert [step for step in range(1000, 1100) if _Looks().is_due(step)][0] == 1000, "one that joins late looks, too"


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


def test_optimizers_that_do_not_step_on_one_dense_gradient_are_refused():
    for optimizer in (torch.optim.LBFGS, torch.optim.SparseAdam):
        reason, text = refusal(program_of(build_around(linear, optimizer=optimizer), plain_loss))
        assert reason == "UnsupportedOptimizer" and optimizer.__name__ in text and "AdamW" in text


@pytest.mark.parametrize("is_foreign", [True, False])
def test_a_parameter_group_that_is_added_later_is_refused(is_foreign):
    def build():
        model = nn.Sequential(linear(), linear())
        return rubato.State(model, torch.optim.SGD(model[0].parameters(), lr=0.1))

    (worker,) = started(program_of(build, lambda m, b: plain_loss(m[0], b)), 1)
    train([worker], 0, 1)
    state = worker.trainer.state
    more = linear() if is_foreign else state.model[1]
    state.optimizer.add_param_group({"params": list(more.parameters())})
    with pytest.raises(rubato.Refused, match="param_groups are others than build"):
        worker.trainer.keep_changes()


def test_tensors_that_share_memory_are_refused():
    def build():
        model = nn.Sequential(linear(), linear())
        model[1].weight = nn.Parameter(model[0].weight.data)
        return rubato.State(model, torch.optim.SGD(model.parameters()))

    reason, text = refusal(program_of(build, lambda m, b: plain_loss(m[0], b)))
    assert reason == "OverlappingTensors" and "0.weight and 1.weight" in text


def test_a_slice_of_another_parameter_is_refused():
    def build():
        model = nn.Sequential(linear(), linear())
        model[1].bias = nn.Parameter(model[0].weight.data[0, :LENGTH])
        return rubato.State(model, torch.optim.SGD(model.parameters()))

    reason, text = refusal(program_of(build, lambda m, b: plain_loss(m[0], b)))
    assert reason == "OverlappingTensors" and "slice" in text and "clone()" in text


def replaced(state):
    state.model[0].weight = nn.Parameter(torch.zeros_like(state.model[0].weight))


def assigned_whole(state):
    state.model.load_state_dict({k: v.clone() for k, v in state.model.state_dict().items()}, assign=True)


def frozen(state):
    state.model[0].weight.requires_grad_(False)


@pytest.mark.parametrize(
    "change, text",
    [
        (replaced, r"0\.weight was replaced by another Parameter.*without assign=True"),
        (assigned_whole, r"0\.weight was replaced by another Parameter"),
        (frozen, r"requires_grad of 0\.weight changed.*lr=0"),
    ],
)
def test_what_is_trained_stays_the_parameters_of_build(change, text):
    (worker,) = started(program_of(build_around(linear), plain_loss), 1)
    train([worker], 0, 1)
    change(worker.trainer.state)
    with pytest.raises(rubato.Refused, match=text):
        worker.trainer.keep_changes()


def rated(state):
    state.model[1].p = 0.0


def activated(state):
    state.model[2] = nn.ReLU()


def hooked(state):
    state.model[0].register_forward_hook(lambda module, inputs, output: output * 2)


def hooked_step(state):
    state.optimizer.register_step_post_hook(lambda *_: None)


def scheduled(state):
    state.scheduler = torch.optim.lr_scheduler.StepLR(state.optimizer, 2)


def exchanged(state):
    state.model = nn.Sequential(*state.model)


@pytest.mark.parametrize(
    "change, text",
    [
        (rated, r"changed model\.1\.p, which"),
        (activated, r"changed model\.2, "),
        (hooked, r"changed hooks of model\.0, which"),
        (hooked_step, "changed hooks of the optimizer, which"),
        (scheduled, r"changed state\.scheduler, which"),
        (exchanged, r"changed state\.model, model, which"),
    ],
)
def test_modules_stay_those_of_build(change, text):
    (worker,) = started(program_of(build_around(linear, nn.Dropout, lambda: nn.ELU(inplace=False)), plain_loss), 1)
    train([worker], 0, 1)
    worker.trainer.keep_changes()
    change(worker.trainer.state)
    with pytest.raises(rubato.Refused, match=text) as caught:
        worker.trainer.keep_changes()
    assert caught.value.reason == "StateChanged" and "buffer" in str(caught.value)


class Rated(nn.Dropout):
    """What changes while the job trains is in a buffer; and it notes what it saw last."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rate", torch.tensor(0.5))
        self.seen = self._last = None
        self.unset = float("nan")  # which equals nothing

    def forward(self, features):
        self.p, self.seen, self._last = float(self.rate), features.max().item(), features.ndim
        return super().forward(features)


def test_what_a_forward_pass_keeps_is_no_change_and_a_buffer_reaches_a_newcomer():
    program = program_of(build_around(linear, Rated), plain_loss)
    histories = []
    for world in (1, 2):
        workers = started(program, world)
        train(workers, 0, 2)
        for worker in workers:
            model = worker.trainer.state.model
            model(torch.ones(TOKENS))  # an evaluation of the body's
            model[1].rate.fill_(0.0)
            worker.trainer.keep_changes()
        newcomer = FakeWorker(program, TRAINING)
        newcomer.load_from(workers[0], 2)
        histories.append(train([*workers, newcomer], 2, 4))
        assert workers[0].trainer.state.model[1].p == 0.0
    assert histories[0] == histories[1]


def test_what_is_no_state_is_refused_by_name():
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 2)]
    for wrong, text in [
        ((optimizer, model), r"State\(model=\) is a SGD.*State\(model, optimizer, scheduler\)"),
        ((model, [optimizer, optimizer]), r"State\(optimizer=\) is a list.*rubato\.Optimizers\("),
        ((model, optimizer, schedulers), r"State\(scheduler=\) is a list.*Chained"),
    ]:
        with pytest.raises(rubato.Refused, match=text):
            rubato.State(*wrong)


def test_complex_buffers_are_refused_and_real_ones_the_way_out():
    def build():
        state = build_around(linear)()
        turns = torch.polar(torch.ones(2), torch.arange(2.0))
        state.model.register_buffer("turns", torch.view_as_real(turns).clone() if is_real else turns)
        return state

    is_real = False
    reason, text = refusal(program_of(build, plain_loss))
    assert reason == "UnsupportedTensor" and "turns" in text and "torch.view_as_real()" in text
    is_real = True
    train(started(program_of(build, plain_loss), 2), 0, 1)


class OfParts(torch.Tensor):
    """Made of other tensors, as quantized ones are."""

    @staticmethod
    def __new__(cls, part):
        return torch.Tensor._make_wrapper_subclass(cls, part.shape, dtype=part.dtype)

    def __init__(self, part):
        self.part = part

    def __tensor_flatten__(self):
        return ["part"], None

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(function)


def test_tensors_without_memory_of_their_own_are_refused():
    def lazy():
        return nn.LazyLinear(LENGTH)

    def called():
        module = lazy()
        module(torch.zeros(1, TOKENS))
        return module

    def of_parts():
        module = linear()
        module.register_buffer("scales", OfParts(torch.ones(2)))
        return module

    reason, text = refusal(program_of(build_around(lazy), plain_loss))
    assert reason == "UnsupportedTensor" and "0.weight" in text and "first call" in text
    train(started(program_of(build_around(called), plain_loss), 2), 0, 1)
    reason, text = refusal(program_of(build_around(of_parts), plain_loss))
    assert reason == "UnsupportedTensor" and "0.scales is a OfParts" in text


class Keeping(torch.optim.SGD):
    """Its state has more after a step."""

    more = {}

    def step(self, closure=None):
        super().step(closure)
        self.state[self.param_groups[0]["params"][0]].update(self.more)


@pytest.mark.parametrize(
    "more, wanted",
    [
        ({"blocks": [("a", [torch.zeros(1)])]}, "blocks.0 in a tuple: keep its tensors in a list"),
        ({"blocks.0": torch.zeros(1), "blocks": [torch.zeros(1)]}, "named blocks.0.0.weight: rename one"),
    ],
)
def test_tensors_that_have_no_place_in_an_optimizer_are_refused(monkeypatch, more, wanted):
    monkeypatch.setattr(Keeping, "more", more)
    reason, text = refusal(program_of(build_around(linear, optimizer=Keeping), plain_loss))
    assert reason == "UnsupportedState" and wanted in text


def test_optimizers_that_do_not_fit_are_refused_among_several():
    def optimizer(parameters, lr):
        return rubato.Optimizers(torch.optim.LBFGS(list(parameters), lr=lr))

    assert refusal(program_of(build_around(linear, optimizer=optimizer), plain_loss))[0] == "UnsupportedOptimizer"


def test_weights_that_a_step_cannot_add_up_are_refused():
    def loss(model, batch):
        return rubato.Weighted(plain_loss(model, batch), weight)

    weight = (2**31 - 1) // MICRO_BATCHES
    train(started(program_of(build_around(linear), loss), 1), 0, 1)
    weight += 1
    reason, text = refusal(program_of(build_around(linear), loss))
    assert reason == "BatchMismatch" and str(weight - 1) in text and "in place of pixels" in text


def test_a_list_that_grows_is_refused_in_the_first_body():
    def build():
        state = build_around(linear)()
        state.extra["kept"] = Kept()
        state.extra["kept"].count = [0.0]
        return state

    (worker,) = started(program_of(build, plain_loss), 1)
    train([worker], 0, 1)
    worker.trainer.state.extra["kept"].count[0] = 5.5
    worker.trainer.keep_changes()
    worker.trainer.state.extra["kept"].count.append(1.0)
    with pytest.raises(rubato.Refused, match="lists and dictionaries in optimizer, scheduler or extra"):
        worker.trainer.keep_changes()


def test_float64_is_not_trained_but_may_be_there():
    wide = nn.Linear(TOKENS, LENGTH, dtype=torch.float64)

    def build():
        state = build_around(linear)()
        state.model.register_buffer("wide", torch.zeros(2, dtype=torch.float64))
        return state

    train(started(program_of(build, plain_loss), 2), 0, 1)
    reason, text = refusal(program_of(build_around(lambda: wide.requires_grad_()), plain_loss))
    assert reason == "UnsupportedTensor" and "0.weight is trained in float64" in text and "model.float()" in text


@pytest.mark.parametrize("place", ["loop", "loss"])
def test_autocast_is_entered_in_the_loss(place):
    def loss(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return plain_loss(model, batch)

    program = program_of(build_around(linear), loss)
    with torch.autocast("cpu", torch.bfloat16) if place == "loop" else contextlib.nullcontext():
        if place == "loop":
            reason, text = refusal(program)
            assert reason == "HiddenState" and "torch.autocast" in text and "`loss`" in text
        else:
            train(started(program, 2), 0, 2)


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


def test_what_cannot_be_trained_at_all_is_refused():
    reason, text = refusal(program_of(build_around(linear), plain_loss, Sequences(), evaluate=rubato.Indexed([])))
    assert reason == "DatasetEmpty" and "(list) has no samples" in text

    reason, text = refusal(program_of(build_around(lambda: linear().requires_grad_(False)), plain_loss))
    assert reason == "NothingToTrain" and "requires_grad" in text

    reason, text = refusal(program_of(build_around(lambda: nn.Linear(TOKENS, LENGTH, device="meta")), plain_loss))
    assert reason == "UnsupportedDevice" and "0.weight is on meta" in text and "build it there" in text


def test_a_parameter_of_no_module_is_refused():
    def build():
        model = nn.Sequential(linear())
        return rubato.State(model, torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(2))], lr=0.1))

    reason, text = refusal(program_of(build, plain_loss))
    assert reason == "UnknownParameter" and "param_groups[0]" in text and "part of the model" in text


def test_what_cannot_be_sent_to_a_newcomer_is_refused():
    def built_with(thing):
        def build():
            state = build_around(linear)()
            state.extra = {"kept": thing}
            return state

        return program_of(build, plain_loss)

    reason, text = refusal(built_with(object()))
    assert reason == "UnsupportedState" and "'kept': object" in text and "state_dict and load_state_dict" in text

    holding = Kept()
    holding.count = object()
    reason, text = refusal(built_with(holding))
    assert reason == "UnsupportedState" and "extra.kept.count is a object" in text


def test_batch_shape():
    assert data.batch_shape(TRAINING, rubato.Indexed([], 2, MICRO_BATCHES)) == (2, MICRO_BATCHES)
    assert data.batch_shape({}, rubato.Indexed([], 3, 5)) == (3, 5)
    with pytest.raises(rubato.Refused, match="Neither"):
        data.batch_shape({}, rubato.Indexed([], 3))
