"""What tests/bench/pytorch_tax.py runs in each process: a model of transformers with random weights, trained by plain
PyTorch and by Rubato's engine, a step of one after a step of the other.

    pytorch_tax_train.py OUT MODEL TOKENS PAIRS

Alone in a process, plain PyTorch is a loop that accumulates gradients; in a pod it is DistributedDataParallel over gloo
between the pods' processes, with the gradients sent once a step. Both sides have equal shapes, samples, optimizer and
clipping. A step of the engine ends when the engine asks for the first micro-batch of the next one, so that nothing it
does between two steps hides behind the other side. Writes JSON to OUT, in a pod to OUT.RANK.
"""

import contextlib
import json
import os
import pathlib
import sys
import time

import rubato
import torch
from rubato.engine import Engine, is_in_pod
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

MICRO_BATCHES = 8
MAX_NORM = 1.0
WORDS = 16384
SAMPLES = 4096
WARM_UP = 1
MODELS = {
    "gpt2-30m": GPT2Config(vocab_size=WORDS, n_positions=1024, n_embd=512, n_layer=6, n_head=8, resid_pdrop=0,
                           embd_pdrop=0, attn_pdrop=0, use_cache=False, bos_token_id=0, eos_token_id=0),
    "llama-30m": LlamaConfig(vocab_size=WORDS, hidden_size=512, intermediate_size=1408, num_hidden_layers=6,
                             num_attention_heads=8, tie_word_embeddings=True, use_cache=False),
    "gpt2-124m": GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False),
}


class Tokens(torch.utils.data.Dataset):
    def __init__(self, words, length):
        self.tokens = torch.randint(words, (SAMPLES, length), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.tokens[index]


class TimedEngine:
    """Keeps the CPU seconds of this process, for each kind of request and from each reply to the engine's next request:
    "micro-batch" is what the engine does with the gradient of one, "decide" what it does between a step's last
    micro-batch and the optimizer, and "begin" what it does from there to the next step's first micro-batch.
    """

    PARTS = {("compute", "compute"): "micro-batch", ("compute", "apply"): "decide", ("apply", "compute"): "begin"}

    def __init__(self, training):
        self._engine = Engine(training)
        self._ahead = self._kind = None
        self._at = self._replied = 0.0
        self.seconds = {}

    def next(self, timeout_ms):
        request, self._ahead = self._ahead, None
        if request is None and (request := self._engine.next(timeout_ms)):
            self._arrived(request["kind"])
        self._at = time.process_time()
        return request

    def look_ahead(self):
        """Waits until the engine asks for the next thing."""
        while self._ahead is None:
            self._ahead = self._engine.next(200)
        self._arrived(self._ahead["kind"])

    def reply(self, reply):
        now = time.process_time()
        self._note(f"script: {self._kind}", now - self._at)
        self._replied = now
        self._engine.reply(reply)

    def _arrived(self, kind):
        if part := self.PARTS.get((self._kind, kind)):
            self._note(f"engine: {part}", time.process_time() - self._replied)
        self._kind = kind

    def _note(self, name, seconds):
        self.seconds.setdefault(name, []).append(seconds)

    def stop(self, *words):
        self._engine.stop(*words)


class Plain:
    """The other side: what a person writes without us."""

    def __init__(self, build, data, loss, world):
        state = build()
        self.model, self.optimizer = state.model, state.optimizer
        self.wrapped = DistributedDataParallel(self.model) if world > 1 else self.model
        self.data, self.loss, self.world = data, loss, world
        self.samples = iter(range(SAMPLES))

    def step(self):
        mine = MICRO_BATCHES // self.world
        self.optimizer.zero_grad()
        for micro in range(mine):
            is_open = self.world > 1 and micro < mine - 1
            with self.wrapped.no_sync() if is_open else contextlib.nullcontext():
                (self.loss(self.wrapped, self.data.load([next(self.samples)])) / mine).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self.optimizer.step()


def timed(action, world):
    """(seconds, CPU seconds of this process) of it, begun by all at once."""
    if world > 1:
        distributed.barrier()
    wall, used = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - used


def main():
    out, name, tokens, pairs = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    config = MODELS[name]
    torch.set_num_threads(1)

    def build():
        model = AutoModelForCausalLM.from_config(config)
        return rubato.State(model, torch.optim.AdamW(model.parameters(), lr=1e-4))

    def loss(model, batch):
        return model(input_ids=batch, labels=batch).loss

    data = rubato.Indexed(Tokens(config.vocab_size, tokens), micro_batch=1, micro_batches=MICRO_BATCHES)
    steps = WARM_UP + pairs
    training = None if is_in_pod() else {"batch": {"micro": 1, "global": MICRO_BATCHES}, "stop": {"steps": steps}}
    engine = TimedEngine(training)
    job = rubato.Job(build, data, loss, max_grad_norm=MAX_NORM, steps=steps, _engine=engine)
    rows = []

    def engine_step():
        step = next(job)
        engine.look_ahead()
        return step

    step = engine_step()
    world = step.world_size
    if world > 1:
        store = pathlib.Path(out).with_suffix(".rendezvous")
        distributed.init_process_group("gloo", init_method=f"file://{store}", rank=step.rank, world_size=world)
    plain = Plain(build, data, loss, world)
    plain.step()
    engine.seconds.clear()
    path = pathlib.Path(out if world == 1 else f"{out}.{step.rank}")
    parameters = sum(parameter.numel() for parameter in plain.model.parameters())
    for _ in range(pairs):
        rows.append({"plain": timed(plain.step, world), "engine": timed(engine_step, world)})
        print(f"  {name}, {tokens} tokens: {rows[-1]}", file=sys.stderr, flush=True)
        hidden = path.with_suffix(path.suffix + ".new")
        hidden.write_text(json.dumps({"parameters": parameters, "rows": rows, "parts": engine.seconds}))
        hidden.rename(path)
    for _ in job:
        pass


if __name__ == "__main__":
    main()
