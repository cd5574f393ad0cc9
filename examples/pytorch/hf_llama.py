"""A small Llama on the bytes of a text: a script of transformers.Trainer in which one import is Rubato's.

    python hf_llama.py TEXT [STEPS [FOLDER]]     trains here, in this process
    hf-llama.yaml                                trains on as many nodes as there are, the same bits
"""

import pathlib
import sys

import torch
from rubato.huggingface import RubatoTrainer as Trainer
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments, set_seed

LENGTH = 64


class Text(torch.utils.data.Dataset):
    def __init__(self, path):
        self.bytes = torch.tensor(list(pathlib.Path(path).read_bytes()), dtype=torch.uint8)

    def __len__(self):
        return len(self.bytes) // LENGTH

    def __getitem__(self, index):
        piece = self.bytes[index * LENGTH:(index + 1) * LENGTH].long()
        return {"input_ids": piece, "labels": piece}


text, steps, folder = (*sys.argv[1:], None, None)[:3]
torch.set_num_threads(1)  # equal on every node
set_seed(1)  # before the model is made, as the Trainer's own examples do
model = LlamaForCausalLM(LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH))
arguments = TrainingArguments(
    output_dir=folder or str(pathlib.Path(text).parent / "llama"), max_steps=int(steps or 100), save_steps=50, seed=1,
    per_device_train_batch_size=2, gradient_accumulation_steps=8, learning_rate=1e-3, logging_steps=10,
    lr_scheduler_type="constant_with_warmup", warmup_steps=20, use_cpu=True, disable_tqdm=True, report_to="none")
trainer = Trainer(model=model, args=arguments, train_dataset=Text(text))
trainer.train(resume_from_checkpoint=True)
trainer.save_model()  # from_pretrained() reads it, and the job's checkpoints, too
