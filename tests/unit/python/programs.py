"""Programs to train: a model with all that makes a state awkward, and plain ones."""

import random

import rubato
import torch
from fake_engine import FakeWorker
from rubato.program import Program
from torch import nn

MICRO_BATCHES = 4
STEPS = 5
TRAINING = {
    "batch": {"micro": 2, "global": 2 * MICRO_BATCHES},
    "stop": {"steps": STEPS},
    "seed": 7,
    "evaluateEvery": 0,
    "checkpoint": {"every": 0, "path": "/nowhere", "keep": 1, "giveUpAfter": 1},
}
TOKENS, WIDTH, LENGTH, IGNORED = 16, 8, 6, 0


class Tiny(nn.Module):
    """All that makes a state awkward: tied, frozen, unused, bf16 and empty parameters, buffers of both kinds."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.dropout = nn.Dropout(0.2)
        self.narrow = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)
        self.norm = nn.LayerNorm(WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH)
        self.frozen.requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(3))
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("shift", torch.linspace(0, 1, WIDTH).expand(1, -1))
        self.register_buffer("empty", torch.zeros(0, 3), persistent=False)

    def forward(self, tokens):
        hidden = self.dropout(self.embedding(tokens)) + self.shift
        hidden = hidden + self.narrow(hidden.bfloat16()).float()
        return self.head(self.norm(hidden + self.frozen(hidden)))


class Sequences(torch.utils.data.Dataset):
    def __len__(self):
        return 13

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        tokens = [(index * 5 + place * (index + 3)) % TOKENS for place in range(LENGTH)]
        return {"tokens": torch.tensor(tokens), "noise": random.random()}


def weighted_loss(model, batch):
    tokens = batch["tokens"]
    logits, targets = model(tokens[:, :-1]), tokens[:, 1:]
    loss = nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    noise = batch["noise"].float().sum() * model.norm.bias.sum()
    return rubato.Weighted(loss + noise, int((targets != IGNORED).sum()))


def cosine(optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)


def warmup(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 3))


def milestones(optimizer):
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])


def unscheduled(optimizer):
    return None


class Rateless(torch.optim.Optimizer):
    """Finds its learning rate itself."""

    def step(self):
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter.data.sub_(parameter.grad, alpha=0.1)


def muon_and_adamw(parameters):
    """Muon takes matrices alone."""
    parameters = list(parameters)
    matrices = [parameter for parameter in parameters if parameter.ndim == 2]
    others = [parameter for parameter in parameters if parameter.ndim != 2]
    return rubato.Optimizers(torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW(others, lr=1e-3))


class Blocked(torch.optim.Optimizer):
    """Keeps tensors in lists and dictionaries, as some do that follow Shampoo, and replaces them."""

    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group["lr"], self.state[parameter])

    @staticmethod
    def _move(parameter, lr, state):
        gradient = parameter.grad.float()
        none = [torch.zeros(()), {"mean": [torch.zeros_like(gradient)]}, None, {"rank": gradient.ndim}]
        count, means, *rest = state.get("blocks", none)
        means = {"mean": [0.9 * means["mean"][0] + gradient]}
        state.update(blocks=[count + 1, means, *rest], age=count.clone())
        parameter.data.sub_(means["mean"][0] / (1 + count), alpha=lr)


OPTIMIZERS = {
    "AdamW": (lambda p: torch.optim.AdamW(p, lr=1e-2), cosine),
    "SGD": (lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True), warmup),
    "Adafactor": (lambda p: torch.optim.Adafactor(p, lr=1e-2), cosine),
    "NAdam": (lambda p: torch.optim.NAdam(p, lr=1e-2), warmup),
    "RMSprop": (lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5, centered=True), cosine),
    "amsgrad": (lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True), milestones),
    "Adagrad": (lambda p: torch.optim.Adagrad(p, lr=1e-2, initial_accumulator_value=0.1), warmup),
    "lr=None": (lambda p: Rateless(p, {"lr": None}), unscheduled),
    "Muon and AdamW": (muon_and_adamw, cosine),
    "tensors in lists": (lambda p: Blocked(p, {"lr": 1e-2}), cosine),
    "no lr": (lambda p: Rateless(p, {}), unscheduled),
}


def build_with(optimizer, scheduler):
    def build():
        model = Tiny()
        chosen = optimizer(model.parameters())
        return rubato.State(model, chosen, scheduler(chosen))

    return build


def program_of(build, loss=weighted_loss, dataset=None, workers=0, **more):
    return Program(build, rubato.Indexed(dataset or Sequences(), workers=workers), loss, **more)


def started(program, world):
    workers = [FakeWorker(program, TRAINING) for _ in range(world)]
    for worker in workers:
        worker.ask("init")
    return workers


def plain_loss(model, batch):
    return model(torch.nn.functional.one_hot(batch["tokens"], TOKENS).float()).square().mean()


def build_around(*modules, optimizer=torch.optim.SGD):
    def build():
        model = nn.Sequential(*(make() for make in modules))
        return rubato.State(model, optimizer(model.parameters(), lr=0.1))

    return build


def linear():
    return nn.Linear(TOKENS, LENGTH)
