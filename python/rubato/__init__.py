"""Elastic training of any PyTorch model: the same bits for any number of workers.

    job = rubato.Job(build, data, loss)
    for step in job:  # one committed step each
        print(step.number, step.loss)

Importing this package imports neither torch nor the engine; the first Job does.
"""

from .data import Indexed, Weighted
from .errors import Refused
from .job import Job, Step
from .state import State

__all__ = ["Indexed", "Job", "Refused", "State", "Step", "Weighted"]
