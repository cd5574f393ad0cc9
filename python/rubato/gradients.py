"""The gradients of a replica, in one flat memory of f32 that the engine sums."""

import torch


class Gradients:
    """p.grad of an f32 parameter is a view of the memory; another type has a gradient of its own, which is widened.

    The program may unbind them, with zero_grad() say: each use binds them again.
    """

    def __init__(self, parameters, views, flat):
        self.flat = flat
        self._views = list(zip(parameters, views))

    @classmethod
    def apart(cls, parameters):
        """In memory of their own."""
        flat = torch.zeros(sum(parameter.numel() for parameter in parameters), dtype=torch.float32)
        pieces = flat.split([parameter.numel() for parameter in parameters])
        return cls(parameters, [piece.view(p.shape) for piece, p in zip(pieces, parameters)], flat)

    def clear(self):
        """Before a backward pass."""
        self.flat.zero_()
        for parameter, view in self._views:
            parameter.grad = view if parameter.dtype is torch.float32 else None

    def collect(self):
        """After it: puts what autograd left elsewhere into the memory. None is zeros."""
        for parameter, view in self._views:
            gradient = parameter.grad
            if gradient is view:
                continue
            if gradient is None:
                view.zero_()
            else:
                view.copy_(gradient if gradient.layout is torch.strided else gradient.to_dense())

    def give(self, factor):
        """Before an optimizer's step: multiplies, and gives every parameter its gradient."""
        if factor != 1:
            self.flat.mul_(factor)
        for parameter, view in self._views:
            parameter.grad = view.to(parameter.dtype)  # f32: the view itself
