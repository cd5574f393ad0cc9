"""The engine's side of the border, in Python: memory of its own for each worker, exact integer sums of gradients."""

import torch
from rubato.tensors import DTYPE_NAMES
from rubato.trainer import Trainer

ITEM_BYTES = {name: dtype.itemsize for dtype, name in DTYPE_NAMES.items()}
SCALE = 2.0**40  # of the fixed-point sums


class FakeWorker:
    """A worker whose requests the test sends itself."""

    def __init__(self, program, training):
        self.trainer = Trainer(program)
        self.found = self.ask("configure", training=training)
        self.memory = FakeMemory(self.found)
        self.ask("bind", **self.memory.addresses())

    def ask(self, kind, **request):
        return self.trainer.answer({"kind": kind, **request})

    def load_from(self, other, step):
        self.memory.copy_from(other.memory)
        self.ask("loaded", step=step)


class FakeMemory:
    def __init__(self, found):
        tensors = found["tensors"]
        counts = [torch.Size(tensor["shape"]).numel() for tensor in tensors]
        sizes = [count * ITEM_BYTES[tensor["dtype"]] for count, tensor in zip(counts, tensors)]
        self.tensors = [torch.full((size,), 0xA5, dtype=torch.uint8) for size in sizes]
        self.extra = torch.full((found["extra_bytes"],), 0xA5, dtype=torch.uint8)
        self.offsets, end = [], 0
        for count, tensor in zip(counts, tensors):
            if tensor["group"] == "trained":
                self.offsets.append(end)
                end += -(-count // 16) * 16 + 16  # always a gap
        self.gradient = torch.zeros(end, dtype=torch.float32)

    def addresses(self):
        return {
            "tensors": [memory.data_ptr() for memory in self.tensors],
            "gradients": [self.gradient.data_ptr() + 4 * offset for offset in self.offsets],
            "gradient": self.gradient.data_ptr(),
            "gradient_count": self.gradient.numel(),
            "extra": self.extra.data_ptr(),
        }

    def copy_from(self, other):
        for mine, theirs in zip([*self.tensors, self.extra], [*other.tensors, other.extra]):
            mine.copy_(theirs)

    def bytes(self):
        return [bytes(memory.tolist()) for memory in [*self.tensors, self.extra]]


class Sum:
    """Of the micro-batches of a step."""

    def __init__(self):
        self.gradient, self.loss, self.weight, self.count = 0, 0, 0, 0

    def add(self, reply, memory):
        self.gradient = self.gradient + (memory.gradient.double() * SCALE).round().to(torch.int64)
        self.loss += round(reply["loss"] * SCALE)
        self.weight += reply["weight"]
        self.count += 1

    def request(self, step):
        """The request `apply`; the gradient is mean()."""
        factor = self.count / self.weight
        return {"step": step, "factor": factor, "loss": self.loss / SCALE / self.weight, "norm": 1.0}

    def mean(self):
        return (self.gradient.double() / SCALE / self.count).float()


def ids_of(found, step, micro):
    first = (step * found["micro_batches"] + micro) * found["micro_batch"]
    return [(first + index) % found["samples"] for index in range(found["micro_batch"])]


def compute_request(found, step, micro, world):
    """With what its worker computes next, as train() deals it out."""
    places = [(s, m) for s in (step, step + 1) for m in range(found["micro_batches"]) if (s, m) > (step, micro)]
    own = [(s, m) for s, m in places if (s + m - step - micro) % world == 0]
    ahead = [{"step": s, "micro": m, "ids": ids_of(found, s, m)} for s, m in own[: found["ahead"]]]
    return {"step": step, "micro": micro, "ids": ids_of(found, step, micro), "ahead": ahead}


def train(workers, first, last):
    """Steps first to last - 1. Returns the bytes of all memory after each, which must be equal on all workers."""
    history = []
    found = workers[0].found
    for step in range(first, last):
        total = Sum()
        for micro in range(found["micro_batches"]):
            rank = (micro + step) % len(workers)
            reply = workers[rank].ask("compute", **compute_request(found, step, micro, len(workers)))
            total.add(reply, workers[rank].memory)
        for worker in workers:
            worker.memory.gradient.copy_(total.mean())
            worker.ask("apply", **total.request(step), rank=0, world=len(workers))
        history.append(workers[0].memory.bytes())
        for worker in workers[1:]:
            assert worker.memory.bytes() == history[-1]
    return history


class FakeEngine:
    """What a Job is given in place of the library. `story` yields requests and is sent the replies."""

    def __init__(self, story):
        self._story = story
        self._reply = None
        self._has_waited = False
        self.replies = []
        self.is_stopped = False
        self.waits_for_exit = False
        self.failure = None

    def next(self, timeout_ms):
        assert timeout_ms > 0
        self._has_waited = not self._has_waited
        return None if self._has_waited else self._story.send(self._reply)

    def reply(self, reply):
        self._reply = reply
        self.replies.append(reply)

    def stop(self, failure=None):
        if not self.is_stopped:  # the first one holds, as in rubato.engine.Engine
            self.is_stopped, self.failure = True, failure

    def leave(self, failure=None):
        self.waits_for_exit = not self.is_stopped
        self.stop(failure)


def alone(training, steps, memories=None):
    """The story of a job with one worker. With `memories`, the loop's body is waited for and the memory appended. What
    `evaluate` has is evaluated after the last step."""
    found = yield {"kind": "configure", "training": training}
    memory = FakeMemory(found)
    yield {"kind": "bind", **memory.addresses()}
    yield {"kind": "init"}
    for step in range(steps):
        total = Sum()
        for micro in range(found["micro_batches"]):
            reply = yield {"kind": "compute", **compute_request(found, step, micro, 1)}
            total.add(reply, memory)
        memory.gradient.copy_(total.mean())
        yield {"kind": "apply", **total.request(step), "rank": 0, "world": 1, "stop_steps": steps}
        if memories is not None:
            memories.append(memory.bytes())
    for micro in range(found["validation_micro_batches"]):
        yield {"kind": "validate", "micro": micro}
    yield {"kind": "end", "finished": True, "reason": ""}
