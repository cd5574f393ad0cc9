"""What pytorch_bits.py trains: a tiny model of a kind that people take, with dropout, clipping and a weighted loss.

    python pytorch_bits_train.py MODEL OPTIMIZER PAUSE                     in a pod; seconds between two steps
    …                            MODEL OPTIMIZER RANK WORLD STEPS OUT      plain DistributedDataParallel, as the control
"""

import hashlib
import pathlib
import sys
import time

import torch
import transformers
from torch import nn

MICRO_BATCH, MICRO_BATCHES = 2, 7  # no number of workers beyond one divides it
TOKENS, LENGTH, CLASSES = 48, 16, 4


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=TOKENS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=TOKENS, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attention_dropout=0.1, max_position_embeddings=LENGTH))


def vit():
    return transformers.ViTForImageClassification(transformers.ViTConfig(
        image_size=8, patch_size=4, num_channels=1, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, hidden_dropout_prob=0.1, num_labels=CLASSES))


def conv():
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.GELU(), nn.Dropout(0.1), nn.Flatten(),
                         nn.Linear(8 * 36, CLASSES))


MODELS = {"gpt2": gpt2, "llama": llama, "vit": vit, "conv": conv}
OPTIMIZERS = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=3e-3),
    "fused": lambda p: torch.optim.AdamW(p, lr=3e-3, fused=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=3e-3),
}


class Data(torch.utils.data.Dataset):
    def __init__(self, is_text):
        self.is_text = is_text

    def __len__(self):
        return 100

    def __getitem__(self, index):
        if not self.is_text:
            return torch.sin(torch.arange(64.0) * (index + 1)).view(1, 8, 8), index % CLASSES
        tokens = torch.tensor([(index * 7 + place * (index + 2)) % TOKENS for place in range(LENGTH)])
        labels = tokens.clone()
        labels[: index % 9] = -100
        return tokens, labels


def loss_of(model, batch):
    """(sum, weight)"""
    inputs, labels = batch
    out = model(inputs)
    logits = out if isinstance(out, torch.Tensor) else out.logits
    if labels.dim() == 2:
        logits, labels = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    loss = nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
    return loss, int((labels != -100).sum())


def elastic(name, optimizer, pause):
    import rubato

    def build():
        model = MODELS[name]()
        chosen = OPTIMIZERS[optimizer](model.parameters())
        return rubato.State(model, chosen, torch.optim.lr_scheduler.CosineAnnealingLR(chosen, 1000))

    data = rubato.Indexed(Data(name in ("gpt2", "llama")), MICRO_BATCH, MICRO_BATCHES, workers=1)
    for step in rubato.Job(build, data, lambda *given: rubato.Weighted(*loss_of(*given)), max_grad_norm=1.0):
        if step.is_reporter:
            print(f"step {step.number}: loss {step.loss:.4f}, {step.world_size} workers", flush=True)
        time.sleep(pause)


def plain(name, optimizer, rank, world, steps, out):
    torch.manual_seed(1)
    path = pathlib.Path(out)
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}.store", rank=rank, world_size=world)
    model = nn.parallel.DistributedDataParallel(MODELS[name]())
    chosen, data = OPTIMIZERS[optimizer](model.parameters()), Data(name in ("gpt2", "llama"))
    for step in range(steps):
        chosen.zero_grad()
        for micro in range(rank, MICRO_BATCHES, world):
            first = (step * MICRO_BATCHES + micro) * MICRO_BATCH
            batch = torch.utils.data.default_collate([data[i % len(data)] for i in range(first, first + MICRO_BATCH)])
            torch.manual_seed(step * MICRO_BATCHES + micro)
            with model.no_sync():
                loss_of(model, batch)[0].backward()
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            torch.distributed.all_reduce(parameter.grad)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        chosen.step()
    digest = hashlib.blake2b(b"".join(p.detach().numpy().tobytes() for p in model.parameters()), digest_size=8)
    if rank == 0:
        path.write_text(digest.hexdigest())


torch.set_num_threads(1)
if len(sys.argv) > 4:
    plain(*sys.argv[1:3], *map(int, sys.argv[3:6]), sys.argv[6])
else:
    elastic(*sys.argv[1:3], float(sys.argv[3]))
