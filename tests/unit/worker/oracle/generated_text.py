"""rubato-generate against transformers: a Hugging Face folder as save_pretrained() leaves it (bf16, in shards, with a
tokenizer.json), and the likeliest tokens, one after the other, in float32. Part of oracle.py.
"""

import subprocess
import tempfile

import torch
from tokenizers_oracle import END, SCRIPTS, train
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

TOKENS, PROMPT = 30, "the word was"
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)


def models(vocabulary):
    ids = dict(vocab_size=vocabulary, bos_token_id=None, eos_token_id=None)
    yield "llama3", LlamaForCausalLM(LlamaConfig(
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=64, intermediate_size=96,
        max_position_embeddings=4096, rope_parameters=LLAMA3, **ids))
    yield "gpt2", GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, n_positions=64, **ids))


def compare_text(program, checks):
    print("generated text")
    torch.manual_seed(1)
    text = "in the beginning was the word and the word was with god " * 200 + SCRIPTS
    tokenizers = {kind: train(kind, text) for kind in ("llama3", "gpt2")}
    for kind, model in models(max(t.get_vocab_size() for t in tokenizers.values())):
        tokenizer = tokenizers[kind]
        with torch.no_grad():
            for p in model.parameters():
                p.normal_(1.0 if p.dim() == 1 else 0.0, 0.3)
        model = model.to(torch.bfloat16)
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save(folder + "/tokenizer.json")
            model.save_pretrained(folder, max_shard_size="40KB")
            ours = subprocess.run([program, "--checkpoint", folder, "--tokenizer", folder, "--prompt", PROMPT,
                                   "--tokens", str(TOKENS), "--temperature", "0"], check=True,
                                  capture_output=True).stdout.decode(errors="replace")
            # Loaded anew: in the model at hand the frequencies of the positions were rounded to bf16, too.
            model = type(model).from_pretrained(folder, dtype=torch.float32)
        tokens = torch.tensor([tokenizer.encode(PROMPT, add_special_tokens=False).ids])
        with torch.no_grad():
            for _ in range(TOKENS):
                likeliest = model(tokens).logits[:, -1:].argmax(-1)
                if likeliest.item() == tokenizer.token_to_id(END):
                    break
                tokens = torch.cat([tokens, likeliest], 1)
        want = tokenizer.decode(tokens[0].tolist(), skip_special_tokens=False) + "\n"
        differ = sum(a != b for a, b in zip(ours, want)) + abs(len(ours) - len(want))
        checks.at_most(f"characters of {kind} that differ", differ, 0)
