"""Does a little of what the tests do with their packages, so that Python writes the bytecode of the modules that they
load, many of them late: pip compiles nothing (--no-compile), as all 10 000 files would take minutes.
"""

import tempfile

import accelerate  # noqa: F401
import numpy  # noqa: F401
import pytest
import torch
import torch.distributed.elastic.multiprocessing.errors
import transformers
import yaml  # noqa: F401
from safetensors.torch import save
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

SAMPLES = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 2


def train(model):
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return save(model.state_dict())


def train_by_trainer(model, folder):
    arguments = transformers.TrainingArguments(output_dir=folder, max_steps=1, use_cpu=True, report_to="none")
    transformers.Trainer(model=model, args=arguments, train_dataset=SAMPLES).train()


def main():
    train(torch.nn.Linear(2, 2))
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    train(DistributedDataParallel(torch.nn.Linear(2, 2)))
    distributed.destroy_process_group()
    size = {"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    with tempfile.TemporaryDirectory() as folder:
        train_by_trainer(transformers.LlamaForCausalLM(transformers.LlamaConfig(**size, intermediate_size=8)), folder)
        train_by_trainer(transformers.GPT2LMHeadModel(transformers.GPT2Config(**size)), folder)
    del size["vocab_size"]
    transformers.ViTForImageClassification(transformers.ViTConfig(**size, intermediate_size=8))
    pytest.main(["--version"])


main()
