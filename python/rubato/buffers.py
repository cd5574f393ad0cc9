"""Sees that the forward pass leaves the model's buffers as they are."""

from .tensors import digest

_NAMES_MAX = 4


class Buffers:
    def __init__(self, model, rewritten=None):
        """rewritten: names whose bytes must be compared, as written() said after a forward pass; None: of all.

        For the others their version counters are enough. Batch norm does not count its writes to running_mean, so
        the first passes are looked at by bytes.
        """
        self._places = [
            (f"{prefix}.{key}" if prefix else key, type(module).__name__, module._buffers, key)
            for prefix, module in model.named_modules()
            for key, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._rewritten = {name for name, *_ in self._places} if rewritten is None else rewritten
        self._before = []

    def remember(self):
        self._before = [
            (buffers[key], buffers[key]._version, digest([buffers[key]]) if name in self._rewritten else None)
            for name, _, buffers, key in self._places
        ]

    def written(self):
        """Names of buffers that were written or replaced since remember(), be it with equal values."""
        return {
            name
            for (name, _, buffers, key), (tensor, version, _) in zip(self._places, self._before)
            if buffers[key] is not tensor or tensor._version != version
        }

    def changed(self):
        """Names, with the class of their module, of buffers that have other values than at remember()."""
        written = self.written()
        return [
            f"{name} ({kind})"
            for (name, kind, buffers, key), (_, _, before) in zip(self._places, self._before)
            if (name in written if before is None else digest([buffers[key]]) != before)
        ]


def way_out(changed):
    names = ", ".join(changed[:_NAMES_MAX]) + (f" and {len(changed) - _NAMES_MAX} more" if changed[_NAMES_MAX:] else "")
    return (
        f"The forward pass changes buffers: {names}. They would depend on which worker computed which micro-batch. Use "
        "GroupNorm or LayerNorm instead of BatchNorm, or track_running_stats=False, or call eval() on these modules in "
        "build(). SyncBatchNorm and momentum=None do not help."
    )
