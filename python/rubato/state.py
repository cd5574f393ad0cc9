"""State: all that training changes."""

from .errors import Refused


class State:
    """What `build` returns.

    extra: name -> object with state_dict() and load_state_dict() of tensors and plain values, or a Module; an EMA of
    the weights, say. Whatever changes it must do so alike on every worker: a step hook of the optimizer, or the loop.
    """

    def __init__(self, model, optimizer, scheduler=None, extra=None):
        _check(model, optimizer, scheduler)
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.extra = dict(extra or {})


def _check(model, optimizer, scheduler):
    from torch import nn

    if not isinstance(model, nn.Module):
        raise _refused("model", model, "a torch.nn.Module; the order is State(model, optimizer, scheduler)")
    if not _has(optimizer, "param_groups", "state", "step"):
        raise _refused("optimizer", optimizer, "one optimizer; rubato.Optimizers(muon, adamw) makes one of several")
    if scheduler is not None and not _has(scheduler, "step", "state_dict", "load_state_dict"):
        raise _refused(
            "scheduler", scheduler, "one scheduler or None; torch.optim.lr_scheduler has ChainedScheduler for several"
        )


def _has(thing, *names):
    return all(hasattr(thing, name) for name in names)


def _refused(name, thing, wanted):
    return Refused("UnsupportedState", f"State({name}=) is a {type(thing).__name__}: give {wanted}.")
