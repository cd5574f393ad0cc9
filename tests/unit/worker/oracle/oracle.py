"""transformers' GPT-2 and Llama (GPT2LMHeadModel, LlamaForCausalLM) as the oracle of our models.

    oracle.py DUMP GENERATE EXPORT [ISA ...]

For a few shapes, random weights go to both, as save_pretrained() leaves them on disk. PyTorch computes in float64, so
what differs is our rounding. Compared are the logits, the loss, every gradient, and the losses,
gradient norms and final weights of 20 AdamW steps with warm-up, cosine, clipping and decay; and
transformers loads the checkpoint. The same run in PyTorch's float32 is printed beside ours as a yardstick.

The ISA "bf16": logits, loss and gradients in bf16 differ from those in float64 by at most 1.5 times what PyTorch's own
do under autocast; where the processor has no bf16, this is said and left out. "cuda-bf16": the same of a GPU's kernels,
where DUMP has a GPU, an emulated one say; then the rest is left out.
"""

import math
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from generated_text import compare_text
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

STEPS, MICRO_BATCHES = 20, 3
LEARNING_RATE, FLOOR, WARMUP = 2e-3, 2e-4, 5

# Largest allowed |ours - exact| / |exact|, by Frobenius norm of the tensor.
LOGITS, GRADIENT, LOSS_ABSOLUTE, CURVE_ABSOLUTE, NORM = 3e-6, 5e-6, 1e-6, 5e-6, 3e-6
BF16_TIMES = 1.5
# Adam turns the sign of a gradient that is zero but for rounding (the bias of the attention keys has
# no effect in exact arithmetic) into a full step, so weights are held to a multiple of what
# PyTorch's own float32 differs by, or to the bound of a gradient where that is more: Llama has no such
# parameters, and two float32 computations may then agree better than either deserves.
WEIGHTS_TIMES = 3

GPT2 = [  # the last: nothing round
    dict(n_layer=2, n_head=2, n_embd=32, vocab_size=61, n_positions=16, micro=3),
    dict(n_layer=2, n_head=4, n_embd=192, vocab_size=257, n_positions=128, micro=4),  # the demo's
    dict(n_layer=1, n_head=3, n_embd=60, vocab_size=100, n_positions=77, micro=1),
]
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=64)
LLAMA = [
    dict(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=64,
         intermediate_size=96, vocab_size=61, max_position_embeddings=16, micro=3,
         tie_word_embeddings=True),
    dict(num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, hidden_size=96,
         intermediate_size=256, vocab_size=257, max_position_embeddings=80, micro=2,
         tie_word_embeddings=False, rope_parameters=LLAMA3),
    dict(num_hidden_layers=1, num_attention_heads=3, num_key_value_heads=1, hidden_size=48,
         intermediate_size=80, vocab_size=100, max_position_embeddings=77, micro=1,
         tie_word_embeddings=False, rms_norm_eps=1e-5),
]


def rate(step):
    if step < WARMUP:
        return LEARNING_RATE * (step + 1) / WARMUP
    if step >= STEPS:
        return FLOOR
    part = (step - WARMUP) / (STEPS - WARMUP)
    return FLOOR + 0.5 * (1 + math.cos(math.pi * part)) * (LEARNING_RATE - FLOOR)


def make_model(shape, seed):
    torch.manual_seed(seed)
    sizes = {k: v for k, v in shape.items() if k != "micro"}
    common = dict(attn_implementation="eager", bos_token_id=None, eos_token_id=None)
    if "n_embd" in shape:
        model = GPT2LMHeadModel(GPT2Config(**sizes, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
                                           activation_function="gelu_new", **common))
    else:
        model = LlamaForCausalLM(LlamaConfig(**sizes, **common))
    with torch.no_grad():  # livelier than the usual start, so that every term matters
        for name, p in model.named_parameters():
            p.normal_(1.0 if p.dim() == 1 and name.endswith("weight") else 0.0, 0.1)
    return model


def rmsnorm(self, x):
    """Of transformers, but in float64 where the model is."""
    return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


LlamaRMSNorm.forward = rmsnorm


def loss_of(model, rows):
    logits = model(rows[:, :-1].long()).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten().long())


def train(model, tokens):
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    adamw = torch.optim.AdamW([dict(params=decayed, weight_decay=0.1),
                               dict(params=plain, weight_decay=0.0)], betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    for step in range(STEPS):
        for group in adamw.param_groups:
            group["lr"] = rate(step)
        adamw.zero_grad()
        loss = sum(loss_of(model, tokens[step, m]) for m in range(MICRO_BATCHES)) / MICRO_BATCHES
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        adamw.step()
        losses.append(loss.item())
    return torch.tensor(losses), torch.tensor(norms)


def relative(ours, exact):
    return ((ours.double() - exact.double()).norm() / exact.double().norm().clamp_min(1e-30)).item()


class Checks:
    def __init__(self):
        self.failed = 0

    def at_most(self, what, error, bound, yardstick=None):
        good = error <= bound
        self.failed += not good
        beside = "" if yardstick is None else f"   (PyTorch float32: {yardstick:.1e})"
        print(f"  {'ok  ' if good else 'FAIL'} {what:<34} {error:.1e} <= {bound:.2g}{beside}")


def compare(program, export, isa, shape, checks):
    micro = shape["micro"]
    length = shape["n_positions" if "n_embd" in shape else "max_position_embeddings"]
    print(f"{isa}: {shape}")
    model = make_model(shape, seed=5)
    generator = torch.Generator().manual_seed(6)
    tokens = torch.randint(0, shape["vocab_size"], (STEPS, MICRO_BATCHES, micro, length + 1),
                           generator=generator, dtype=torch.int32)
    with tempfile.TemporaryDirectory() as directory:
        # As transformers saves it: config.json and some shards with their index.
        model.save_pretrained(directory, max_shard_size="60KB")
        save_file({"tokens": tokens}, directory + "/tokens.safetensors")
        subprocess.run([program, directory, str(micro), str(MICRO_BATCHES), str(STEPS), isa],
                       check=True)
        ours = load_file(directory + "/out.safetensors")
        # transformers must load what we save, whole and in shards, and find the same weights in it
        latest = Path(directory, "checkpoints", "LATEST").read_text().strip()
        subprocess.run([export, "--checkpoint", directory + "/checkpoints", "--out", directory + "/out",
                        "--shard-bytes", "50000"], check=True, stderr=subprocess.DEVNULL)
        for folder in (Path(directory, "checkpoints", latest), Path(directory, "out")):
            saved = type(model).from_pretrained(folder)
            different = [name for name, p in saved.named_parameters()
                         if not torch.equal(p, ours["final." + name])]
            checks.at_most(f"{folder.name} in transformers", len(different), 0)
        for name, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16)):
            subprocess.run([export, "--checkpoint", directory + "/checkpoints", "--out", f"{directory}/{name}",
                            "--dtype", name], check=True, stderr=subprocess.DEVNULL)
            saved = type(model).from_pretrained(f"{directory}/{name}", dtype="auto")
            different = [key for key, p in saved.named_parameters()
                         if p.dtype != dtype or not torch.equal(p, ours["final." + key].to(dtype))]
            checks.at_most(f"{name} in transformers", len(different), 0)

    exact, single = model.double(), make_model(shape, seed=5)
    rows = tokens[0, 0]
    for reference in (exact, single):
        reference.zero_grad()
        loss_of(reference, rows).backward()
    with torch.no_grad():
        first = rows[:1, :-1].long()
        logits, logits32 = exact(first).logits[0], single(first).logits[0]
        loss = loss_of(exact, rows).item()
    checks.at_most("logits", relative(ours["logits"], logits), LOGITS, relative(logits32, logits))
    checks.at_most("loss", abs(ours["loss"][0].item() - loss), LOSS_ABSOLUTE)
    checks.at_most("loss by evaluate", abs(ours["loss"][1].item() - loss), LOSS_ABSOLUTE)
    singles = dict(single.named_parameters())
    worst = max((relative(ours["gradient." + name], p.grad), name)
                for name, p in exact.named_parameters())
    worst32 = max(relative(singles[name].grad, p.grad) for name, p in exact.named_parameters())
    count = sum(1 for _ in exact.named_parameters())
    assert count == sum(name.startswith("gradient.") for name in ours)
    print(f"       {count} gradients, the worst is {worst[1]}")
    checks.at_most("worst gradient", worst[0], GRADIENT, worst32)

    losses, norms = train(exact, tokens)
    losses32, norms32 = train(single, tokens)
    checks.at_most("20 losses, largest difference", (ours["losses"] - losses).abs().max().item(),
                   CURVE_ABSOLUTE, (losses32 - losses).abs().max().item())
    checks.at_most("20 gradient norms", relative(ours["norms"], norms), NORM,
                   relative(norms32, norms))
    final = max(relative(ours["final." + name], p.detach()) for name, p in exact.named_parameters())
    final32 = max(relative(singles[name].detach(), p.detach())
                  for name, p in exact.named_parameters())
    checks.at_most("worst final weight", final, max(WEIGHTS_TIMES * final32, GRADIENT), final32)


def in_bf16(program, shape, checks, isa):
    micro = shape["micro"]
    length = shape["n_positions" if "n_embd" in shape else "max_position_embeddings"]
    print(f"{isa}: {shape}")
    exact, autocast = make_model(shape, seed=5).double(), make_model(shape, seed=5)
    tokens = torch.randint(0, shape["vocab_size"], (1, 1, micro, length + 1),
                           generator=torch.Generator().manual_seed(6), dtype=torch.int32)
    with tempfile.TemporaryDirectory() as directory:
        autocast.save_pretrained(directory)
        save_file({"tokens": tokens}, directory + "/tokens.safetensors")
        done = subprocess.run([program, directory, str(micro), "1", "1", isa], stderr=subprocess.PIPE, text=True)
        if "no instructions for bf16" in done.stderr:
            print("  left out: " + done.stderr.strip())
            return
        assert done.returncode == 0, done.stderr
        ours = load_file(directory + "/out.safetensors")
    rows = tokens[0, 0]
    loss_of(exact, rows).backward()
    with torch.autocast("cpu", torch.bfloat16):
        loss_of(autocast, rows).backward()
    with torch.no_grad():
        logits = exact(rows[:1, :-1].long()).logits[0]
        with torch.autocast("cpu", torch.bfloat16):
            theirs = autocast(rows[:1, :-1].long()).logits[0]

    def compare_errors(what, got, other, wanted):
        errors = [(x.double() - wanted).abs().flatten() for x in (got, other)]
        for name, size in (("", lambda e: e.square().mean().sqrt()), (", p99.9", lambda e: e.quantile(0.999))):
            mine, yardstick = (size(e).item() for e in errors)
            checks.at_most(what + name, mine / max(yardstick, 1e-30), BF16_TIMES)

    compare_errors("logits", ours["logits"], theirs, logits)
    grads = dict(autocast.named_parameters())
    for name, p in exact.named_parameters():
        if p.grad.norm() > 1e-6:  # else it is rounding alone, as of the bias of the keys
            compare_errors(name, ours["gradient." + name], grads[name].grad, p.grad)


def main():
    torch.set_num_threads(1)
    checks = Checks()
    isas = sys.argv[4:] or ["auto"]
    if "cuda-bf16" not in isas:
        compare_text(sys.argv[2], checks)
    for isa in isas:
        for shape in GPT2 + LLAMA:
            if isa in ("bf16", "cuda-bf16"):
                in_bf16(sys.argv[1], shape, checks, isa)
                continue
            compare(sys.argv[1], sys.argv[3], isa, shape, checks)
    sys.exit(1 if checks.failed else 0)


if __name__ == "__main__":
    main()
