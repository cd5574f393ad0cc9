"""Program: what the user gave, and its single actions: build, one micro-batch, one step of the optimizer."""

import dataclasses
import typing

import torch

from .chance import mix, seeded
from .data import Indexed, Weighted, integer
from .errors import Refused
from .loading import Task, loading_of
from .replica import Replica
from .state import State

# What is drawn for, beside micro-batches: keeps their seeds apart.
_STEP, _VALIDATION, _LOAD = -1, -2, -3


@dataclasses.dataclass
class Program:
    build: typing.Callable
    data: Indexed
    loss: typing.Callable
    max_grad_norm: float = 0.0
    evaluate: Indexed | None = None

    def __post_init__(self):
        self.loading = loading_of(self.data)
        self.evaluate_loading = self.evaluate and loading_of(self.evaluate)

    def close(self):
        """Ends the processes that load."""
        self.loading.close()
        if self.evaluate_loading:
            self.evaluate_loading.close()

    def replica(self, seed):
        with seeded(seed):
            state = self.build()
        if not isinstance(state, State):
            raise Refused("NoState", f"build() returned {type(state).__name__}; return rubato.State(model, optimizer).")
        return Replica(state)

    def compute(self, replica, gradients, seed, step, micro, ids, ahead=()):
        """Leaves the gradient of one micro-batch; returns (loss, weight). ahead: (step, micro, ids) of the next."""
        replica.restore_modes()
        gradients.clear()
        batch = self.loading.load(_task(seed, step, micro, ids), [_task(seed, *each) for each in ahead])
        with seeded(mix(seed, step, micro)), torch.enable_grad():
            loss, weight = _parts(self.loss(replica.state.model, batch))
            loss.backward()
        gradients.collect()
        return float(loss.detach()), weight

    def advance(self, replica, gradients, seed, step, factor, loss):
        """One step on the gradients; returns the learning rate of it, of the first group. None: it names none."""
        state = replica.state
        rate = _learning_rate(state.optimizer)
        gradients.give(factor)
        with seeded(mix(seed, step, _STEP)):
            state.optimizer.step()
            if isinstance(state.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                state.scheduler.step(loss)
            elif state.scheduler:
                state.scheduler.step()
        replica.make_plain()
        return rate

    def validate(self, replica, seed, micro, ids, ahead=()):
        """The mean loss of one micro-batch of `evaluate`, in evaluation mode. ahead: (micro, ids) of the next."""
        task, *next_tasks = [_task(seed, _VALIDATION, *each) for each in ((micro, ids), *ahead)]
        batch = self.evaluate_loading.load(task, next_tasks)
        model = replica.state.model
        model.eval()
        try:
            with seeded(mix(seed, _VALIDATION, micro)), torch.no_grad():
                loss, weight = _parts(self.loss(model, batch))
        finally:
            replica.restore_modes()
        return float(loss) / weight if weight else 0.0


def _task(seed, step, micro, ids):
    return Task(mix(seed, step, micro, _LOAD), tuple(ids))


def _learning_rate(optimizer):
    """Some find it themselves: transformers.Adafactor has lr=None then, others have no such option."""
    rate = optimizer.param_groups[0].get("lr")
    return None if rate is None else float(rate)


def _parts(loss):
    """(tensor of one element, weight) of what the user's loss returned."""
    weight = 1
    if isinstance(loss, Weighted):
        loss, weight = loss.loss_sum, loss.weight
        if isinstance(weight, torch.Tensor) and weight.numel() == 1:
            weight = weight.item()
        weight = integer(weight, "Weighted(loss_sum, weight): weight", 0)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise TypeError(f"The loss is {loss!r:.80}; return a tensor of one element, or Weighted(loss_sum, weight).")
    return loss, weight
