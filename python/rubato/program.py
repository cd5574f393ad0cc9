"""Program: what the user gave, and its single actions: build, one micro-batch, one step of the optimizer."""

import dataclasses
import typing

import torch

from .chance import mix, seeded
from .data import Indexed, Weighted
from .errors import Refused
from .replica import Replica
from .state import State

# What is drawn for, beside micro-batches: keeps their seeds apart.
_STEP, _VALIDATION = -1, -2


@dataclasses.dataclass
class Program:
    build: typing.Callable
    data: Indexed
    loss: typing.Callable
    max_grad_norm: float = 0.0
    evaluate: Indexed | None = None

    def replica(self, seed):
        with seeded(seed):
            state = self.build()
        if not isinstance(state, State):
            raise Refused("NoState", f"build() returned {type(state).__name__}; return rubato.State(model, optimizer).")
        return Replica(state)

    def compute(self, replica, gradients, seed, step, micro, ids):
        """Leaves the gradient of one micro-batch; returns (loss, weight)."""
        replica.restore_modes()
        gradients.clear()
        with seeded(mix(seed, step, micro)), torch.enable_grad():
            loss, weight = _parts(self.loss(replica.state.model, self.data.load(ids)))
            loss.backward()
        gradients.collect()
        return float(loss.detach()), weight

    def advance(self, replica, gradients, seed, step, factor, loss):
        """One step on the gradients; returns the learning rate of it, of the first group."""
        state = replica.state
        rate = state.optimizer.param_groups[0]["lr"]
        gradients.give(factor)
        with seeded(mix(seed, step, _STEP)):
            state.optimizer.step()
            if isinstance(state.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                state.scheduler.step(loss)
            elif state.scheduler:
                state.scheduler.step()
        return float(rate)

    def validate(self, replica, seed, micro, ids):
        """The mean loss of one micro-batch of `evaluate`, in evaluation mode."""
        model = replica.state.model
        model.eval()
        try:
            with seeded(mix(seed, _VALIDATION, micro)), torch.no_grad():
                loss, weight = _parts(self.loss(model, self.evaluate.load(ids)))
        finally:
            replica.restore_modes()
        return float(loss) / weight if weight else 0.0


def _parts(loss):
    """(tensor of one element, weight) of what the user's loss returned."""
    weight = 1
    if isinstance(loss, Weighted):
        loss, weight = loss.loss_sum, loss.weight
        if isinstance(weight, torch.Tensor) and weight.numel() == 1:
            weight = weight.item()
        if not isinstance(weight, int) or weight < 0:
            raise TypeError(f"Weighted(loss_sum, weight): the weight is {weight!r}; give an integer of 0 or more.")
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise TypeError(f"The loss is {loss!r:.80}; return a tensor of one element, or Weighted(loss_sum, weight).")
    return loss, weight
