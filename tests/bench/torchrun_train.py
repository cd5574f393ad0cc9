"""A GPT trained with PyTorch's DistributedDataParallel under torchrun elastic, written as its manual says:
every (re)start loads the newest checkpoint. The shape and the batch are those of examples/gpt-kjv.yaml.
For torchrun_elastic.py: after each step rank 0 appends "nanoseconds step world-size" to STEPS.
"""

import argparse
import ctypes
import datetime
import math
import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn

PR_SET_PDEATHSIG = 1
PRESETS = {  # layers, heads, hidden, vocabulary, sequence, sequences of a step
    "kjv": (4, 4, 192, 257, 128, 16),
    "gpt2-124m": (12, 12, 768, 50257, 128, 4),
}


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.mlp = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(approximate="tanh"),
                                 nn.Linear(4 * hidden, hidden))

    def forward(self, x):
        batch, length, hidden = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, hidden // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, layers, heads, hidden, vocabulary, length):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, hidden), nn.Embedding(length, hidden)
        self.blocks = nn.Sequential(*(Block(hidden, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, tokens):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        return self.norm(self.blocks(x)) @ self.token.weight.T


def save(path, model, optimizer, step):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
               path + ".new")
    os.replace(path + ".new", path)


def main():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # no orphan when the agent is killed
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="kjv", choices=PRESETS)
    parser.add_argument("--steps-file", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--group-timeout", type=float, default=0)
    args = parser.parse_args()
    layers, heads, hidden, vocabulary, length, batch = PRESETS[args.preset]
    torch.set_num_threads(1)
    limits = {"timeout": datetime.timedelta(seconds=args.group_timeout)} if args.group_timeout else {}
    dist.init_process_group("gloo", **limits)
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(1)
    model = Gpt(layers, heads, hidden, vocabulary, length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=True)
    step = 0
    if os.path.exists(args.checkpoint):
        saved = torch.load(args.checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    model = nn.parallel.DistributedDataParallel(model)
    local = math.ceil(batch / world)
    log = os.open(args.steps_file, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    while True:
        rows = torch.randint(0, vocabulary, (local, length + 1),
                             generator=torch.Generator().manual_seed(step * 1000 + rank))
        loss = nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if rank == 0:
            os.write(log, f"{time.time_ns()} {step} {world}\n".encode())
            if step % args.every == 0:
                save(args.checkpoint, model.module, optimizer, step)


if __name__ == "__main__":
    main()
