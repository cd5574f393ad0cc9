"""A small language model on the bytes of a text, in plain PyTorch.

    python kjv.py TEXT [STEPS [CHECKPOINTS]]     trains here, in this process
    pytorch-kjv.yaml                             trains on as many nodes as there are, the same bits
"""

import pathlib
import sys

import rubato
import torch
from torch import nn
from torch.nn import functional

LENGTH, WIDTH, HEADS, LAYERS = 64, 64, 4, 2


class Text(torch.utils.data.Dataset):
    def __init__(self, path):
        self.bytes = torch.tensor(list(pathlib.Path(path).read_bytes()), dtype=torch.uint8)

    def __len__(self):
        return (len(self.bytes) - 1) // LENGTH

    def __getitem__(self, index):
        piece = self.bytes[index * LENGTH:(index + 1) * LENGTH + 1].long()
        return piece[:-1], piece[1:]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.1, batch_first=True,
                                                               norm_first=True) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        for table in (self.bytes, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, inputs):
        length = inputs.shape[1]
        hidden = self.bytes(inputs) + self.places(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        return self.norm(hidden) @ self.bytes.weight.T


def build():
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return rubato.State(model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1500, eta_min=1e-4))


def loss(model, batch):
    inputs, targets = batch
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


text, steps, checkpoints = (*sys.argv[1:], None, None)[:3]
torch.set_num_threads(1)  # equal on every node
job = rubato.Job(build, rubato.Indexed(Text(text), micro_batch=2, micro_batches=8), loss, max_grad_norm=1.0, seed=1,
                 steps=int(steps or 100), checkpoint=checkpoints)
for step in job:
    if step.is_reporter:
        print(f"step {step.number}: loss {step.loss:.4f}, {step.world_size} workers", flush=True)
