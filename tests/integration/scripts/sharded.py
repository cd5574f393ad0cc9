"""As elastic.py, of a model that no process holds as a whole: FSDP shards it (fully_shard), each process writes its
part of a checkpoint (torch.distributed.checkpoint), which any number of them reads again, and the samples come from a
DistributedSampler, by a process of the DataLoader's. A step here is an epoch.

    sharded.py FOLDER STEPS SECONDS_A_STEP
"""

import pathlib
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoints
from elastic import is_to_end, note, tell
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class State:
    """What a checkpoint has: the names are the whole model's, whoever holds which part."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def made(world):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6))
    mesh = init_device_mesh("cpu", (world,))
    for module in (model[0], model[2], model):
        fully_shard(module, mesh=mesh)
        module.set_force_sum_reduction_for_comms(True)  # gloo has no average
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


@record
def main():
    folder, steps, pause = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model, optimizer = made(world)
    state, latest, first = {"state": State(model, optimizer)}, folder / "LATEST", 0
    if latest.exists():
        first = int(latest.read_text())
        checkpoints.load(state, checkpoint_id=folder / f"step-{first}")
    samples = TensorDataset(torch.randn(7, 4))
    sampler = DistributedSampler(samples)
    loader = DataLoader(samples, batch_size=2, sampler=sampler, num_workers=1, persistent_workers=True)
    for step in range(first, steps):
        if is_to_end(folder):
            break
        sampler.set_epoch(step)
        for (inputs,) in loader:
            loss = model(inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            note(folder, step)
        checkpoints.save(state, checkpoint_id=folder / f"step-{step + 1}")
        if rank == 0:
            hidden = folder / "LATEST.new"
            hidden.write_text(str(step + 1))
            hidden.rename(latest)
            shutil.rmtree(folder / f"step-{step}", ignore_errors=True)
            tell(step + 1, loss)
        time.sleep(pause)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
