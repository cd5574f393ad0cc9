"""Elastic training of any PyTorch model: the same bits for any number of workers.

    job = rubato.Job(build, data, loss)
    for step in job:  # one committed step each
        print(step.number, step.loss)

Importing this package imports neither torch nor the engine; the first Job, or Optimizers, does.
"""

from .data import Indexed, Weighted
from .errors import Refused
from .job import Job, Step
from .progress import report, should_checkpoint
from .state import State

__all__ = ["Indexed", "Job", "Optimizers", "Refused", "State", "Step", "Weighted", "report", "should_checkpoint"]


def __getattr__(name):
    if name != "Optimizers":
        raise AttributeError(f"module 'rubato' has no attribute {name!r}")
    from .optimizers import Optimizers  # a torch.optim.Optimizer

    return Optimizers
