"""Sees that a forward pass leaves the state as it is: the tensors of the model and of `extra`, and the plain values."""

import json

import torch

from .errors import Refused
from .replica import read_extra
from .tensors import digest

_NAMES_MAX = 4
_WAY_OUT = (
    "They would depend on which worker computed which micro-batch. What follows the weights or counts (an average, a "
    "momentum encoder, the iteration of spectral_norm) is written after the step, in the loop's body; of RubatoTrainer "
    "in on_step_end of a callback. Instead of running statistics (BatchNorm, InstanceNorm) use GroupNorm, LayerNorm or "
    "track_running_stats=False, or call eval() on these modules in build(): SyncBatchNorm, momentum=None do not help."
)


class Watch:
    def __init__(self, replica, rewritten=None):
        """rewritten: names whose bytes must be compared, as written() said after a forward pass; None: of all.

        For the others address and version counter are enough. But batch norm does not count its writes to running_mean,
        and nobody those to parameter.data, so the first passes are looked at by bytes.
        """
        self._replica = replica
        self._rewritten = rewritten
        extra = replica.state.extra
        modules = {name: thing for name, thing in extra.items() if isinstance(thing, torch.nn.Module)}
        self._others = {name: thing for name, thing in extra.items() if name not in modules}
        self._places = {
            f"{prefix}.{key}" if prefix else key: (tensors, key, type(module).__name__)
            for name, root in {"": replica.state.model, **{f"extra.{name}": modules[name] for name in modules}}.items()
            for prefix, module in root.named_modules(prefix=name)
            for tensors in (module._parameters, module._buffers)
            for key, tensor in tensors.items()
            if tensor is not None
        }

    def remember(self):
        self._plain = self._plain_values()
        self._tensors = self._read()  # held, so that no other tensor gets their addresses
        self._marks = _marks(self._tensors)
        self._digests = {
            name: digest([tensor])
            for name, tensor in self._tensors.items()
            if self._rewritten is None or name in self._rewritten
        }

    def written(self):
        """Names of tensors that were written or replaced since remember(), be it with equal values."""
        return self._moved(self._read())

    def check(self):
        """Refuses what has other values than at remember()."""
        tensors, plain = self._read(), self._plain_values()
        moved = self._moved(tensors)
        changed = [
            name
            for name, tensor in tensors.items()
            if (digest([tensor]) != self._digests[name] if name in self._digests else name in moved)
        ]
        changed += [name for name, value in plain.items() if value != self._plain[name]]
        if changed:
            more = f" and {len(changed) - _NAMES_MAX} more" if changed[_NAMES_MAX:] else ""
            names = ", ".join(map(self._label, changed[:_NAMES_MAX])) + more
            raise Refused("StatefulForward", f"The forward pass changes {names}. {_WAY_OUT}")

    def _read(self):
        """Tensors by name. The state_dict() of an extra may make other ones in each call."""
        places = self._places.items()
        tensors = {name: tensors[key] for name, (tensors, key, _) in places if tensors.get(key) is not None}
        for name, thing in self._others.items():
            tensors.update(read_extra(name, thing)[0])
        return tensors

    def _plain_values(self):
        coded = self._replica.coded_outside()
        named = {"optimizer.param_groups": coded["groups"], "scheduler": coded["scheduler"]}
        named.update((f"extra.{name}", value) for name, value in coded["extra"].items())
        return {name: json.dumps(value) for name, value in named.items()}

    def _moved(self, tensors):
        return {name for name, mark in _marks(tensors).items() if mark != self._marks.get(name)}

    def _label(self, name):
        return f"{name} ({self._places[name][2]})" if name in self._places else name


def _marks(tensors):
    return {name: (tensor.data_ptr(), tensor._version) for name, tensor in tensors.items()}
