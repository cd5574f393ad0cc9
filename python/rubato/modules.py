"""What the modules of a state are beside their tensors: which ones they are, their hooks, and their public attributes
that are numbers, texts or functions. Nothing of it reaches a new worker, so the loop's body leaves it as it is.
"""

import numbers
import types

from .errors import Refused

_NAMES_MAX = 4
_PLAIN = (numbers.Number, str, type(None), types.FunctionType, types.BuiltinFunctionType)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


class Modules:
    """remember() before the loop's body, check() after it.

    What changes between two bodies is written by forward passes or by the optimizer's step, and looked at no more. A
    name that begins with _ is for what a forward pass keeps.
    """

    def __init__(self, state):
        self._state = state
        self._others = set()  # names of what is written outside of the body
        self._seen = self._read()

    def remember(self):
        seen = self._read()
        self._others.update(_changed(self._seen, seen))
        self._seen = seen

    def check(self):
        changed = [name for name in _changed(self._seen, self._read()) if name not in self._others]
        if changed:
            more = f" and {len(changed) - _NAMES_MAX} more" if changed[_NAMES_MAX:] else ""
            raise Refused(
                "StateChanged",
                f"The loop's body changed {', '.join(changed[:_NAMES_MAX])}{more}, which a new worker would not have. "
                "Make modules and hooks in build(). What changes while the job trains is kept in a buffer: the body "
                "writes it (model.rate.fill_(0)), and `loss` or forward() reads it there "
                "(model.dropout.p = float(model.rate)).",
            )

    def _read(self):
        state = self._state
        seen = {f"state.{name}": getattr(state, name) for name in ("model", "optimizer", "scheduler")}
        for name, module in state.model.named_modules(prefix="model"):
            values = vars(module)
            seen[name] = module
            seen[f"hooks of {name}"] = _keys(values, _HOOKS)
            for key, value in values.items():
                if isinstance(value, _PLAIN) and key != "training" and not key.startswith("_"):
                    seen[f"{name}.{key}"] = value
        seen["hooks of the optimizer"] = _keys(vars(state.optimizer), _OPTIMIZER_HOOKS)
        return seen


def _keys(values, names):
    return [list(values.get(name) or ()) for name in names]


def _changed(before, after):
    """Names in order."""
    missing = object()

    def is_same(name):
        was, now = before.get(name, missing), after.get(name, missing)
        return was is now or was == now  # NaN is itself

    return [name for name in {**before, **after} if not is_same(name)]
