"""Optimizers: several optimizers as the one that a State has."""

import torch


class Optimizers(torch.optim.Optimizer):
    """Its groups are those of all of them, and its step is theirs. A scheduler of it moves each group from that group's
    own learning rate.
    """

    def __init__(self, *optimizers):
        self.optimizers = optimizers
        super().__init__([group for each in optimizers for group in each.param_groups], {})
        for each in optimizers:
            self.state.update(each.state)
            each.state = self.state

    def step(self, closure=None):
        if closure is not None:
            raise TypeError("Optimizers.step() takes no closure: each optimizer would compute the loss anew.")
        for each in self.optimizers:
            each.step()
