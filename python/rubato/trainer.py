"""Trainer: answers the engine's requests, one method for each kind. It knows neither processes nor the loop."""

import ctypes
import json
import math
import struct

import torch

from . import tensors as memory
from .data import batch_shape
from .errors import Refused
from .gradients import Gradients
from .probe import count_numbers, examine, model_values, outcome, require_same, serialised
from .watch import Watch

_MICRO_BATCHES_OF_A_LOOK = 256


class Trainer:
    def __init__(self, program):
        self.replica = None
        self.training = None
        self.step = 0  # committed
        self._program = program
        self._looks = _Looks()
        self._extra = None  # (address, bytes)

    @property
    def state(self):
        return self.replica and self.replica.state

    def answer(self, request):
        """The reply. Raises what the user's program raises, and Refused."""
        return getattr(self, f"_{request['kind']}")(request)

    def keep_changes(self):
        """After the loop's body, which may have set a learning rate or fed an average."""
        self.replica.modules.check()
        self._keep()

    def _keep(self):
        self.replica.make_plain()
        self.replica.gather(self.step)
        self._write_extra()

    # ---- Requests ----

    def _configure(self, request):
        program, training = self._program, request["training"]
        self.training = training
        program.data.check()
        self._samples = len(program.data)
        self._micro_batch, micro_batches = batch_shape(training, program.data)
        self._seed = training.get("seed", 0)
        steps = training.get("stop", {}).get("steps")
        found = examine(program, self._seed, self._micro_batch, micro_batches, steps)
        self.replica = found.replica
        self._layout, self._optimizer_keys, self._built = found.layout, found.optimizer_keys, found.built
        self._watch = Watch(self.replica, found.rewritten)
        self._extra_bytes, self._extra_numbers = found.extra_bytes, found.extra_numbers
        self._validation_count = self._validation_micro_batches()
        config = getattr(self.state.model, "config", None)
        named = self.replica.names_in_state_dict()
        return {
            "micro_batch": self._micro_batch,
            "micro_batches": micro_batches,
            "samples": self._samples,
            "tokens_per_step": self._micro_batch * micro_batches,
            "seed": self._seed,
            "ahead": program.loading.ahead,
            "validation_micro_batches": self._validation_count,
            "max_grad_norm": program.max_grad_norm if math.isfinite(program.max_grad_norm) else 0.0,
            "extra_bytes": found.extra_bytes,
            "fingerprint": found.fingerprint,
            "config": config.to_json_string() if hasattr(config, "to_json_string") else "",
            "tensors": [
                {
                    "name": entry.name,
                    "dtype": memory.DTYPE_NAMES[entry.dtype],
                    "shape": list(entry.shape),
                    "group": entry.group,
                    "in_state_dict": entry.group != "optimizer" and entry.name in named,
                }
                for entry in self._layout
            ],
        }

    def _bind(self, request):
        homes = [
            memory.view(address, entry.dtype, entry.shape) for address, entry in zip(request["tensors"], self._layout)
        ]
        trained = [entry for entry in self._layout if entry.group == "trained"]
        views = [
            memory.view(address, torch.float32, entry.shape)
            for address, entry in zip(request["gradients"], trained)
        ]
        flat = memory.view(request["gradient"], torch.float32, (request["gradient_count"],))
        self.replica.bind(self._layout, homes)
        self._homes = homes
        self._gradients = Gradients([self.replica.parameters[entry.name] for entry in trained], views, flat)
        self._extra = request["extra"], self._extra_bytes
        return {}

    def _init(self, _):
        values, coded = self._built or self._build_again()
        for home, value in zip(self._homes, values):
            home.copy_(value)
        self.replica.clear_optimizer_memory()
        self._take_over(0, coded)
        self._write_extra()
        return {}

    def _loaded(self, request):
        address, size = self._extra
        held = ctypes.string_at(address, size)
        (length,) = struct.unpack_from("<I", held)
        self._take_over(request["step"], json.loads(held[4 : 4 + length]))
        return {}

    def _compute(self, request):
        if len(self._program.data) != self._samples:
            raise Refused(
                "DatasetChanged",
                f"The dataset had {self._samples} samples at the start and has {len(self._program.data)} now: which "
                "samples a micro-batch has would change. Fix its length for the job.",
            )
        step, micro = request["step"], request["micro"]
        ahead = [(each["step"], each["micro"], each["ids"]) for each in request["ahead"]]
        self._watch.remember()
        loss, weight = self._compute_watched(step, micro, request["ids"], ahead)
        if self._looks.is_due(step + 1):
            first = outcome(loss, weight, self._gradients)
            again = outcome(*self._compute_watched(step, micro, request["ids"], ahead), self._gradients)
            require_same(first, again, f"Micro-batch {micro} of step {step + 1}")
        return {"loss": _json_number(loss), "weight": weight}

    def _apply(self, request):
        step = request["step"]
        rate = self._program.advance(
            self.replica, self._gradients, self._seed, step, request["factor"], float(request["loss"])
        )
        self.step = step + 1
        self._keep()
        self.replica.modules.remember()
        return {"learning_rate": rate}

    def _validate(self, request):
        micro, end = request["micro"], request["micro"] + 1 + self._program.evaluate_loading.ahead
        ahead = [(each, self._validation_ids(each)) for each in range(micro + 1, min(end, self._validation_count))]
        self._watch.remember()
        loss = self._program.validate(self.replica, self._seed, micro, self._validation_ids(micro), ahead)
        self._watch.check()
        return {"loss": _json_number(loss)}

    # ---- Parts ----

    def _compute_watched(self, step, micro, ids, ahead):
        result = self._program.compute(self.replica, self._gradients, self._seed, step, micro, ids, ahead)
        self._watch.check()
        return result

    def _validation_micro_batches(self):
        """Whole micro-batches of the list: samples beyond the last are left out, unless it is shorter than one."""
        evaluate = self._program.evaluate
        if evaluate is None:
            return 0
        evaluate.check()
        self._validation_micro_batch = evaluate.micro_batch or self._micro_batch
        whole = max(1, len(evaluate) // self._validation_micro_batch)
        return min(whole, evaluate.micro_batches or whole)

    def _validation_ids(self, micro):
        first = micro * self._validation_micro_batch
        return range(first, min(first + self._validation_micro_batch, len(self._program.evaluate)))

    def _build_again(self):
        fresh = self._program.replica(self._seed)
        return model_values(fresh), fresh.coded(0)

    def _take_over(self, step, coded):
        self._built = None
        self.step = step
        self.replica.load(step, coded, self._optimizer_keys)

    def _write_extra(self):
        address, size = self._extra
        coded = self.replica.coded(self.step)
        held, count = serialised(coded), count_numbers(coded)
        if count > self._extra_numbers or len(held) > size:
            raise Refused(
                "StateChanged",
                f"The plain values of the state grew to {count} numbers, {len(held)} bytes, and the workers have room "
                f"for {self._extra_numbers} and {size}: lists and dictionaries in optimizer, scheduler or extra must "
                "keep the length that they have after the first step. Make them full in build(), or keep what grows "
                "outside of State.",
            )
        ctypes.memmove(address, held.ljust(size, b"\0"), size)


class _Looks:
    """Which micro-batches are computed twice: the first ones of steps 1, 2, 4, 8 and so on of this worker, and of n
    micro-batches no more than 1 + n / 256.
    """

    def __init__(self):
        self._computed = self._taken = self._next = 0

    def is_due(self, number):
        """Is told of each micro-batch, with the number of its step."""
        self._computed += 1
        if number < self._next:
            return False
        self._next = 1 << number.bit_length()
        is_due = self._taken * _MICRO_BATCHES_OF_A_LOOK <= self._computed
        self._taken += is_due
        return is_due


def _json_number(value):
    return value if math.isfinite(value) else "NaN"
