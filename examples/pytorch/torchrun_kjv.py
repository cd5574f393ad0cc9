"""A small language model on the bytes of a text: an elastic script of torchrun's, which starts from its newest
checkpoint, and leaves one behind when it gets SIGTERM.

    torchrun --nproc-per-node 2 torchrun_kjv.py TEXT STEPS FOLDER     trains here
    torchrun.yaml                                                     trains on as many nodes as there are
"""

import json
import os
import pathlib
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

LENGTH, WIDTH, BATCH, EVERY = 64, 64, 16, 50  # BATCH: of all processes together


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bytes, self.memory, self.next = nn.Embedding(256, WIDTH), nn.GRU(WIDTH, WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, inputs):
        return self.next(self.memory(self.bytes(inputs.T))[0])


def batch_of(text, step, rank, world):
    """The same samples of a step for any number of processes, each taking its share."""
    chance = torch.Generator().manual_seed(step)
    begins = torch.randint(len(text) - LENGTH, (BATCH,), generator=chance)[rank::world]
    pieces = torch.stack([text[begin:begin + LENGTH + 1] for begin in begins]).long()
    return pieces[:, :-1], pieces[:, 1:].T


def save(path, **state):
    hidden = path.with_suffix(".new")
    torch.save(state, hidden)
    hidden.rename(path)  # a process that dies here leaves the last one


@record
def main():
    text, steps, folder = pathlib.Path(sys.argv[1]).read_bytes(), int(sys.argv[2]), pathlib.Path(sys.argv[3])
    text, checkpoint, first = torch.tensor(list(text), dtype=torch.uint8), folder / "kjv.pt", 0
    is_told_to_go = False

    def go(*_):
        nonlocal is_told_to_go
        is_told_to_go = True

    signal.signal(signal.SIGTERM, go)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if checkpoint.exists():
        state = torch.load(checkpoint)
        first = state["step"]
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for step in range(first, steps):
        inputs, targets = batch_of(text, step, rank, world)
        loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        leavers = torch.tensor(float(is_told_to_go))
        dist.all_reduce(leavers)  # all leave behind the same step
        if rank == 0:
            print(f"step {step + 1}/{steps}: loss {loss.item():.4f}, {world} processes", flush=True)
            if "RUBATO_PROGRESS_FILE" in os.environ:
                with open(os.environ["RUBATO_PROGRESS_FILE"], "w") as out:
                    print(json.dumps({"step": step + 1, "loss": loss.item()}), file=out)
            if leavers or (step + 1) % EVERY == 0 or step + 1 == steps:
                save(checkpoint, step=step + 1, model=model.module.state_dict(), optimizer=optimizer.state_dict())
        if leavers:
            sys.exit(1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
