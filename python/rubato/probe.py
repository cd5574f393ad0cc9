"""What is found out of a program before its first step, by running it: which tensors its state has, whether equal
states give equal bits, and a fingerprint of its arithmetic.

    1. build; micro-batch 0, then 1, then 0 again: the same bits, and nothing of the state changes.
    2. Two steps of the optimizer. The first makes its tensors; the state after it is kept.
    3. build again: the same bits. Given the state after the first step, it goes on as the first one did.
"""

import dataclasses
import hashlib
import json
import re
import struct

import torch

from .errors import Refused
from .gradients import Gradients
from .replica import Replica
from .tensors import digest
from .watch import Watch

_OPTIMIZER_FLAGS = ("foreach", "fused", "capturable")
_FINGERPRINT_MAX = 183  # characters before the hash
_WEIGHTS_MOST = 2**31 - 1  # of all micro-batches of a step
_NUMBER_BYTES = 32  # no number is longer in JSON


@dataclasses.dataclass
class Findings:
    replica: Replica  # its values are of no use until they are loaded
    layout: list
    optimizer_keys: dict
    rewritten: set  # tensors that a forward pass writes, with equal values
    built: tuple  # (tensors of the model, plain values) as build() left them
    fingerprint: str
    extra_bytes: int
    extra_numbers: int


def examine(program, seed, micro_batch, micro_batches, steps):
    """Refuses a program that cannot be trained with equal bits."""
    if torch.is_autocast_enabled("cpu") and torch.is_autocast_cache_enabled():
        raise Refused(
            "HiddenState",
            "torch.autocast is entered around the loop. It keeps what it casts the weights to until it is left, so that "
            "later steps would compute with old weights: enter it in `loss`.",
        )
    samples = len(program.data)
    batches = [[(micro * micro_batch + index) % samples for index in range(micro_batch)] for micro in range(2)]
    first = program.replica(seed)
    before = first.layout()
    first.make_contiguous()
    built_digest = _bytes_of(first, 0)
    gradients = _gradients_of(first)
    watch = Watch(first)
    loss, computed = _repeat(program, first, watch, gradients, seed, batches, _WEIGHTS_MOST // micro_batches)
    rewritten = watch.written()

    program.advance(first, gradients, seed, 0, 1.0, loss)
    layout = first.layout()
    model_layout = [entry for entry in layout if entry.group != "optimizer"]
    if model_layout != [entry for entry in before if entry.group != "optimizer"]:
        raise Refused("StateChanged", "The first step adds, drops or reshapes the model's tensors: do so in build().")
    optimizer_keys = first.optimizer_keys()
    held = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in first.tensors()]
    coded = first.coded(1)
    fingerprint = _fingerprint(first, layout, computed + _bytes_of(first, 1))
    has_second_step = steps is None or steps > 1
    second_step = has_second_step and _second_step(program, first, gradients, seed, batches)
    del first, gradients, watch

    replica = program.replica(seed)
    if _bytes_of(replica, 0) != built_digest:
        raise Refused(
            "NotDeterministic",
            "build() gave other values when it was called again with equal random numbers. It must make a new model "
            "and optimizer in each call, and draw only from the global generators of Python, NumPy and PyTorch.",
        )
    built = model_values(replica), replica.coded(0)
    if has_second_step:
        replica.bind(layout, held)
        replica.load(1, coded, optimizer_keys)
        if _second_step(program, replica, _gradients_of(replica), seed, batches) != second_step:
            raise Refused(
                "HiddenState",
                "A new model and optimizer that were given the state after a step went on with other bits: the "
                "optimizer, the scheduler or the model keeps something that is neither in optimizer.state and "
                "param_groups, nor in scheduler.state_dict(), nor a buffer, nor in State(extra=...). If they keep "
                "nothing, an operation is not deterministic: torch.compile, say, adds up in any order unless "
                "torch.use_deterministic_algorithms(True) is called.",
            )
    extra_numbers = count_numbers(coded)
    extra_bytes = len(serialised(coded)) + _NUMBER_BYTES * extra_numbers + 1024
    return Findings(replica, layout, optimizer_keys, rewritten, built, fingerprint, extra_bytes, extra_numbers)


def model_values(replica):
    """Copies of all tensors but the optimizer's."""
    trained, rest = replica.model_tensors()
    return [tensor.detach().clone() for tensor in (*trained.values(), *rest.values())]


def serialised(coded):
    """The plain values as they lie in `extra`: a length, then JSON."""
    text = json.dumps(coded, sort_keys=True, separators=(",", ":")).encode()
    return struct.pack("<I", len(text)) + text


def _gradients_of(replica):
    trained, _ = replica.model_tensors()
    if not trained:
        raise Refused("NothingToTrain", "No parameter of the model has requires_grad.")
    for name, parameter in trained.items():
        if parameter.dtype is torch.float64:
            raise Refused(
                "UnsupportedTensor",
                f"{name} is trained in float64, and gradients are summed in float32: call model.float() in build(), or "
                "freeze it by requires_grad_(False).",
            )
    return Gradients.apart(list(trained.values()))


def outcome(loss, weight, gradients):
    """The bits of a micro-batch."""
    return struct.pack("<dQ", loss, weight) + digest([gradients.flat])


def require_same(first, again, micro_batch):
    """Of two computations of one micro-batch."""
    if first == again:
        return
    part = "loss" if first[:8] != again[:8] else "gradient"
    raise Refused(
        "NotDeterministic",
        f"{micro_batch} gave another {part} when it was computed again from the same state and random numbers. "
        "Call torch.use_deterministic_algorithms(True) to find the operation; draw random numbers only from the "
        "global generators of Python, NumPy and PyTorch; keep nothing from one micro-batch to the next.",
    )


def _repeat(program, replica, watch, gradients, seed, batches, weight_most):
    """(loss, bits) of micro-batch 0; its gradient is left."""
    outcomes = []
    watch.remember()
    for micro in (0, 1, 0):
        loss, weight = program.compute(replica, gradients, seed, 0, micro, batches[micro])
        watch.check()
        if weight > weight_most:
            raise Refused(
                "BatchMismatch",
                f"Micro-batch {micro} has the weight {weight}, and with so many micro-batches in a step it may be "
                f"{weight_most} at most: count larger things in rubato.Weighted, images or rows in place of pixels.",
            )
        outcomes.append(outcome(loss, weight, gradients))
    require_same(outcomes[0], outcomes[2], "Micro-batch 0")
    return loss, outcomes[0]


def _second_step(program, replica, gradients, seed, batches):
    watch = Watch(replica)  # again: only now does an average differ from the weights that it follows
    watch.remember()
    loss, _ = program.compute(replica, gradients, seed, 1, 0, batches[1])
    watch.check()
    program.advance(replica, gradients, seed, 1, 1.0, loss)
    return _bytes_of(replica, 2)


def _bytes_of(replica, step):
    """Digest of the whole state before this step."""
    return digest(replica.tensors()) + hashlib.blake2b(serialised(replica.coded(step))).digest()


def _fingerprint(replica, layout, outcome):
    optimizer = replica.state.optimizer
    options = optimizer.param_groups[0]
    flags = [f"{flag}={options[flag]}" for flag in _OPTIMIZER_FLAGS if flag in options]
    parts = [
        f"torch-{torch.__version__}",
        f"cpu-{torch.backends.cpu.get_cpu_capability()}",
        f"threads={torch.get_num_threads()}",
        ",".join([type(optimizer).__name__, *flags]),
        f"deterministic={int(torch.are_deterministic_algorithms_enabled())}",
        f"mkldnn={int(torch.backends.mkldnn.enabled)}",
        f"matmul={torch.get_float32_matmul_precision()}",
    ]
    text = "/".join(re.sub(r"[^\w.+=,-]", "_", part) for part in parts)[:_FINGERPRINT_MAX]
    return f"{text}-{hashlib.blake2b(repr(layout).encode() + outcome, digest_size=8).hexdigest()}"


def count_numbers(coded):
    """How many plain values there are that are no texts."""
    if isinstance(coded, dict):
        coded = list(coded.values())
    if isinstance(coded, list):
        return sum(count_numbers(item) for item in coded)
    return not isinstance(coded, str)  # None may become a number
