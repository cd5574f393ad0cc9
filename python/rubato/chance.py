"""Random numbers that depend on what is computed, and not on who computes it or on what came before."""

import contextlib
import random
import sys

import torch

_WORD = (1 << 64) - 1


def mix(*words):
    """A 64-bit hash of integers: a chain of splitmix64."""
    state = 0
    for word in words:
        state = (state + (word & _WORD) + 0x9E3779B97F4A7C15) & _WORD
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _WORD
        state ^= state >> 31
    return state


@contextlib.contextmanager
def seeded(seed):
    """Python's, NumPy's and PyTorch's generators start from `seed` inside, and go on outside as if nothing had been
    drawn: what the user's loop draws does not depend on the share of this worker.
    """
    numpy = sys.modules.get("numpy")
    before = random.getstate(), numpy and numpy.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    if numpy:
        numpy.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes ms: it formats the stack for each device
    try:
        yield
    finally:
        random.setstate(before[0])
        if numpy:
            numpy.random.set_state(before[1])
        torch.set_rng_state(before[2])
