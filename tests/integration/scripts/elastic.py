"""An elastic script as PyTorch's documentation has them: nothing in it knows Rubato, but for a line that tells how far
it is. Counts steps; each adds the ranks that took part; rank 0 writes a line of what happened, then a checkpoint, after
each step: a process that is stopped between the two says its step twice, and leaves none out.

    elastic.py FOLDER STEPS SECONDS_A_STEP

A file `fail` in the folder makes the last rank fail from the step on that it holds, a file `end` ends it.
"""

import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel


def is_to_end(folder):
    """All leave in the same step; the one before it is written."""
    over = torch.tensor(float((folder / "end").exists()))
    dist.all_reduce(over)
    return bool(over)


def note(folder, step):
    variables = {name: value for name, value in os.environ.items()
                 if name.startswith(("TORCHELASTIC_", "MASTER_")) or name.endswith(("RANK", "WORLD_SIZE"))}
    with open(folder / "steps.jsonl", "a") as out:
        print(json.dumps({"step": step, "at": time.time(), "pid": os.getpid(), "world": dist.get_world_size(),
                          "variables": variables}), file=out, flush=True)


def tell(done, loss):
    with open(os.environ["RUBATO_PROGRESS_FILE"], "w") as out:
        print(json.dumps({"step": done, "tokens": 64 * done, "loss": loss.item()}), file=out)


@record
def main():
    folder, steps, pause = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    checkpoint, first = folder / "state.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        first = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for step in range(first, steps):
        if is_to_end(folder):
            break
        if rank == world - 1 and (folder / "fail").exists() and step >= int((folder / "fail").read_text()):
            raise RuntimeError(f"told to fail in step {step}")
        loss = model(torch.full((2, 4), float(rank + 1))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            note(folder, step)
            hidden = folder / "state.new"
            torch.save({"step": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, hidden)
            hidden.rename(checkpoint)
            tell(step + 1, loss)
        time.sleep(pause)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
