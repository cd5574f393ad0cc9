"""State: all that training changes."""


class State:
    """What `build` returns.

    extra: name -> object with state_dict() and load_state_dict() of tensors and plain values, or a Module; an EMA of
    the weights, say. Whatever changes it must do so alike on every worker: a step hook of the optimizer, or the loop.
    """

    def __init__(self, model, optimizer, scheduler=None, extra=None):
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.extra = dict(extra or {})
