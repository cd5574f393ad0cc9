"""Training speed of PyTorch's GPT-2 on one thread, in float32 or under autocast in bfloat16, on the shapes of
tokens_per_second.

    pytorch_baseline.py [--preset kjv|gpt2-124m] [--micro 8] [--sequence N] [--steps 20] [--compile] [--bf16]

A step is as ours: micro-batches with accumulated gradients, clipping, fused AdamW. transformers'
GPT2LMHeadModel with its default attention (scaled_dot_product_attention).
"""

import argparse
import statistics
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

PRESETS = {
    "kjv": dict(n_layer=4, n_head=4, n_embd=192, vocab_size=257, n_positions=128),
    "gpt2-124m": dict(n_layer=12, n_head=12, n_embd=768, vocab_size=50257, n_positions=1024),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="kjv", choices=PRESETS)
    parser.add_argument("--micro", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=0)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)

    shape = dict(PRESETS[args.preset])
    if args.sequence:
        shape["n_positions"] = args.sequence
    length = shape["n_positions"]
    model = GPT2LMHeadModel(GPT2Config(**shape, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                                       bos_token_id=None, eos_token_id=None, use_cache=False))
    groups = [dict(params=[p for p in model.parameters() if p.dim() >= 2], weight_decay=0.1),
              dict(params=[p for p in model.parameters() if p.dim() < 2], weight_decay=0.0)]
    adamw = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)
    tokens = torch.randint(0, shape["vocab_size"], (args.micro, length + 1))

    def loss_of(rows):
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            logits = model(rows[:, :-1]).logits
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())

    forward = torch.compile(loss_of) if args.compile else loss_of
    seconds, cpu_begin = [], 0.0
    for step in range(args.steps + 2):
        if step == 2:
            cpu_begin = time.process_time()
        begin = time.perf_counter()
        adamw.zero_grad()
        for _ in range(args.micro_batches):
            (forward(tokens) / args.micro_batches).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        if step >= 2:  # the first steps allocate and compile
            seconds.append(time.perf_counter() - begin)
    cpu = time.process_time() - cpu_begin
    per_step = args.micro_batches * args.micro * length
    print(f"pytorch {torch.__version__} {'compiled' if args.compile else 'eager'} "
          f"{'bf16' if args.bf16 else 'f32'} {args.preset} "
          f"{torch.backends.cpu.get_cpu_capability()}: micro-batch {args.micro} x {length}\n"
          f"  {per_step / statistics.median(seconds):.0f} tokens/s (median of {args.steps} steps; "
          f"best {per_step / min(seconds):.0f}; per CPU second {per_step * args.steps / cpu:.0f})")


if __name__ == "__main__":
    main()
