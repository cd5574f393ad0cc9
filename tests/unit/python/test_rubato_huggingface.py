"""RubatoTrainer: what a script of transformers.Trainer does with one import changed."""

import pytest
import rubato.huggingface
import torch
import transformers
from fake_engine import FakeWorker, train
from programs import MICRO_BATCHES, STEPS, TRAINING
from rubato.huggingface import RubatoTrainer
from rubato.program import Program

TOKENS, LENGTH, IGNORED = 48, 12, -100


def gpt2(dropout=0.1):
    torch.manual_seed(5)
    config = transformers.GPT2Config(
        vocab_size=TOKENS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, resid_pdrop=dropout, embd_pdrop=dropout,
        attn_pdrop=dropout, bos_token_id=0, eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def llama():
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=TOKENS, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH,
    )
    return transformers.LlamaForCausalLM(config)


def vit():
    torch.manual_seed(5)
    config = transformers.ViTConfig(
        image_size=8, patch_size=4, num_channels=1, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_labels=4,
    )
    return transformers.ViTForImageClassification(config)


class Text(torch.utils.data.Dataset):
    """Sequences with fewer and fewer labels; `note` is nothing that the model takes."""

    def __len__(self):
        return 26

    def __getitem__(self, index):
        tokens = torch.tensor([(index * 7 + place * (index + 2)) % TOKENS for place in range(LENGTH)])
        labels = tokens.clone()
        labels[: index % 5] = IGNORED
        return {"input_ids": tokens, "labels": labels, "note": index}


class Same(Text):
    def __getitem__(self, index):
        return super().__getitem__(3)


class FirstWithoutLabels(Text):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return sample if index else {**sample, "labels": torch.full((LENGTH,), IGNORED)}


class Images(Text):
    def __getitem__(self, index):
        return {"pixel_values": torch.full((1, 8, 8), index / 26), "labels": index % 4}


def arguments(folder, **more):
    values = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 3,
        "max_steps": 6,
        "learning_rate": 3e-3,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return transformers.TrainingArguments(**(values | more))


def logged(trainer, key):
    return [entry[key] for entry in trainer.state.log_history if key in entry]


def bytes_of(model):
    return {name: tensor.detach().numpy().tobytes() for name, tensor in model.state_dict().items()}


def test_it_trains_as_the_trainer_does(tmp_path):
    """On equal samples without dropout, so that neither order nor random numbers matter."""
    trainers = [
        kind(model=gpt2(dropout=0), args=arguments(tmp_path / kind.__name__), train_dataset=Same())
        for kind in (transformers.Trainer, RubatoTrainer)
    ]
    theirs, ours = [trainer.train() for trainer in trainers]
    assert ours.global_step == theirs.global_step == 6
    assert ours.training_loss == pytest.approx(theirs.training_loss, rel=1e-5)
    for key in ("loss", "grad_norm", "learning_rate", "epoch", "step"):
        seen, expected = logged(trainers[1], key), logged(trainers[0], key)
        if key == "epoch":  # the last samples of an epoch that fill no step are left out
            expected = [number * 6 / 24 for number in (1, 2, 3, 4, 5, 6, 6)]
        assert seen == pytest.approx(expected, rel=2e-4), key
    for ours, theirs in zip(trainers[1].model.parameters(), trainers[0].model.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_a_micro_batch_without_labels_has_no_part_in_the_step(tmp_path):
    """It is the first one that a worker sees, and does not decide for the others."""
    shape = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 3}  # each step has all samples
    losses = []
    for kind in (transformers.Trainer, RubatoTrainer):
        args = arguments(tmp_path / kind.__name__, **shape)
        trainer = kind(model=gpt2(dropout=0), args=args, train_dataset=FirstWithoutLabels())
        trainer.train()
        losses.append(logged(trainer, "loss"))
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert trainer._normalises is True


def test_a_loss_of_ones_own_counts_a_micro_batch_without_labels(tmp_path):
    class Mine(RubatoTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(input_ids=inputs["input_ids"]).logits.square().mean()

    data, model = FirstWithoutLabels(), gpt2(dropout=0)
    means = [model(data[index]["input_ids"][None]).logits.square().mean().item() for index in range(3)]
    args = arguments(tmp_path, per_device_train_batch_size=1, gradient_accumulation_steps=3)
    trainer = Mine(model=model, args=args, train_dataset=data)
    trainer.train()
    assert logged(trainer, "loss")[0] == pytest.approx(sum(means) / 3, rel=1e-5)
    assert trainer._normalises is False


def program_of(monkeypatch, trainer):
    """What the trainer gives to a Job, and no training."""

    class Job:
        def __init__(self, build, data, loss, max_grad_norm, **_):
            self.program = Program(build, data, loss, max_grad_norm)
            self.training = TRAINING
            raise StopIteration(self)

    monkeypatch.setattr(rubato.huggingface, "Job", Job)
    with pytest.raises(StopIteration) as stopped:
        trainer.train()
    trainer._job = stopped.value.value
    program = trainer._job.program
    program.data.micro_batch, program.data.micro_batches = 2, MICRO_BATCHES
    return program


@pytest.mark.parametrize(
    "build, dataset, more",
    [(gpt2, Text, {}), (llama, Text, {"bf16": True}), (vit, Images, {"optim": "adafactor"})],
)
def test_any_number_of_workers_and_a_newcomer_have_the_same_bytes(monkeypatch, tmp_path, build, dataset, more):
    trainer = RubatoTrainer(model=build(), args=arguments(tmp_path, **more), train_dataset=dataset())
    program = program_of(monkeypatch, trainer)
    histories = []
    for world in (1, 3):
        workers = [FakeWorker(program, TRAINING) for _ in range(world)]
        for worker in workers:
            worker.ask("init")
        history = train(workers, 0, 2)
        newcomer = FakeWorker(program, TRAINING)
        newcomer.load_from(workers[0], 2)
        histories.append(history + train([*workers, newcomer], 2, STEPS))
    assert histories[0] == histories[1]
    assert len({repr(step) for step in histories[0]}) == STEPS


class Heard(transformers.TrainerCallback):
    def __init__(self):
        self.words = []

    def on_train_begin(self, args, state, control, **more):
        self.words.append("begin")

    def on_epoch_begin(self, args, state, control, **more):
        self.words.append("epoch")

    def on_epoch_end(self, args, state, control, **more):
        self.words.append("epoch over")

    def on_step_end(self, args, state, control, model, optimizer, **more):
        assert optimizer.param_groups[0]["params"][0] is next(model.parameters())
        self.words.append(state.global_step)

    def on_evaluate(self, args, state, control, metrics, **more):
        self.words.append("evaluated")

    def on_train_end(self, args, state, control, **more):
        self.words.append("end")


def test_a_callback_ends_the_training(tmp_path):
    class Enough(transformers.TrainerCallback):
        told = []

        def on_step_end(self, args, state, control, **_):
            control.should_training_stop = state.global_step == 3

        def on_epoch_end(self, args, state, control, **_):
            self.told.append(state.global_step)

        def on_train_end(self, args, state, control, **_):
            self.told.append("end")

    trainers = [
        kind(model=gpt2(dropout=0), args=arguments(tmp_path / kind.__name__), train_dataset=Same(), callbacks=[Enough])
        for kind in (transformers.Trainer, RubatoTrainer)
    ]
    theirs, ours = [trainer.train() for trainer in trainers]
    assert ours.global_step == theirs.global_step == 3
    assert Enough.told == [3, "end", 3, "end"]
    assert ours.training_loss == pytest.approx(theirs.training_loss, rel=1e-5)


def test_it_stops_early_where_the_trainer_does(tmp_path):
    steps = []
    for kind in (transformers.Trainer, RubatoTrainer):
        args = arguments(
            tmp_path / kind.__name__, max_steps=10, learning_rate=0.0, eval_strategy="steps", eval_steps=2,
            metric_for_best_model="eval_loss",
        )
        trainer = kind(
            model=gpt2(dropout=0), args=args, train_dataset=Same(), eval_dataset=Same(),
            callbacks=[transformers.EarlyStoppingCallback(early_stopping_patience=2)],
        )
        steps.append(trainer.train().global_step)
    assert steps == [6, 6]


def test_callbacks_and_evaluation(tmp_path):
    heard = Heard()
    loading = {"dataloader_num_workers": 2}
    args = arguments(tmp_path, max_steps=-1, num_train_epochs=1.5, eval_strategy="steps", eval_steps=4, **loading)
    trainer = RubatoTrainer(
        model=gpt2(), args=args, train_dataset=Text(), eval_dataset=Text(), callbacks=[heard],
        compute_metrics=lambda prediction: {"shape": float(prediction.predictions.shape[-1])},
    )
    trainer.train()
    over = ["evaluated", "epoch over"]
    assert heard.words == ["begin", "epoch", 1, 2, 3, 4, *over, "epoch", 5, 6, *over, "end"]
    assert logged(trainer, "eval_shape") == [TOKENS, TOKENS]
    assert logged(trainer, "eval_loss")[1] < logged(trainer, "eval_loss")[0]
    assert trainer.evaluate()["eval_loss"] == pytest.approx(logged(trainer, "eval_loss")[1])

    without = RubatoTrainer(model=gpt2(), args=arguments(tmp_path), train_dataset=Text())
    without.train()
    assert bytes_of(without.model) == bytes_of(trainer.model), "evaluation changes nothing"


def test_it_goes_on_from_its_checkpoint_and_both_kinds_are_read_by_from_pretrained(tmp_path):
    def trainer(folder, steps):
        more = {"save_strategy": "epoch", "lr_scheduler_type": "constant"}
        args = arguments(tmp_path / folder, max_steps=steps, **more)
        return RubatoTrainer(model=gpt2(), args=args, train_dataset=Text())

    whole, first, second = trainer("whole", 6), trainer("parts", 3), trainer("parts", 6)
    whole.train()
    first.train()
    with pytest.raises(ValueError, match="resume_from_checkpoint=True"):
        second.train()
    second.train(resume_from_checkpoint=True)
    assert logged(second, "loss") == logged(whole, "loss")[3:]
    whole.save_model(str(tmp_path / "saved"))
    states = tmp_path / "parts" / "rubato"
    assert [path.name for path in sorted(states.glob("step-*"))] == ["step-00000003", "step-00000004", "step-00000006"]
    for folder in (tmp_path / "saved", states / (states / "LATEST").read_text().strip()):
        read = transformers.GPT2LMHeadModel.from_pretrained(folder)
        assert bytes_of(read) == bytes_of(second.model)
    again = trainer("parts", 6)
    assert again.train(resume_from_checkpoint=True).global_step == 6, "nothing is left to do"


def test_an_optimizer_of_ones_own_and_a_loss_of_ones_own(tmp_path):
    model = gpt2(dropout=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    first = model(Same()[0]["input_ids"][None]).logits.square().mean()

    class Mine(RubatoTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(input_ids=inputs["input_ids"])
            loss = outputs.logits.square().mean()  # a mean, whatever the number of items
            return (loss, outputs) if return_outputs else loss

    trainer = Mine(model=model, args=arguments(tmp_path), train_dataset=Same(), optimizers=(optimizer, scheduler))
    trainer.train()
    assert logged(trainer, "learning_rate") == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025, 0.025])
    assert logged(trainer, "loss")[0] == pytest.approx(first.item(), rel=1e-5)


def test_an_optimizer_that_finds_its_own_learning_rate():
    def build():
        model = gpt2(dropout=0)
        return rubato.State(model, transformers.Adafactor(model.parameters()))

    def loss(model, batch):
        return model(input_ids=batch["input_ids"], labels=batch["labels"]).loss

    steps = list(rubato.Job(build, rubato.Indexed(Same(), micro_batch=2, micro_batches=3), loss, steps=6))
    assert [step.learning_rate for step in steps] == [None] * 6
    assert steps[-1].loss < steps[0].loss


def test_the_given_model_is_trained_and_a_second_train_goes_on_with_it(tmp_path):
    model = gpt2(dropout=0)
    trainer = RubatoTrainer(model=model, args=arguments(tmp_path), train_dataset=Same())
    before = bytes_of(model)
    trainer.train()
    assert trainer.model is model and bytes_of(model) != before
    assert bytes_of(model) == bytes_of(trainer._job.state.model)
    held = [parameter for group in trainer.optimizer.param_groups for parameter in group["params"]]
    assert set(held) == set(model.parameters())
    rates, last = logged(trainer, "learning_rate"), logged(trainer, "loss")[-1]
    trainer.train()
    assert trainer.model is model
    assert logged(trainer, "learning_rate") == rates
    assert logged(trainer, "loss")[0] <= last


def test_the_reporter_alone_writes(tmp_path):
    trainer = RubatoTrainer(model=gpt2(), args=arguments(tmp_path), train_dataset=Same())
    for is_reporter in (False, True):
        trainer._report(is_reporter)
        assert trainer.is_world_process_zero() == trainer.is_local_process_zero() == is_reporter
        trainer.save_state()
        trainer.save_metrics("train", {"loss": 1.0})
        trainer.save_model()
        trainer.create_optimizer_and_scheduler(1)
        trainer._save_checkpoint(trainer.model, None)
        assert bool(list(tmp_path.iterdir())) == is_reporter
    assert {"checkpoint-0", "model.safetensors", "trainer_state.json"} <= {path.name for path in tmp_path.iterdir()}


def test_a_callback_may_ask_for_a_checkpoint_of_the_trainer(tmp_path):
    class Asks(transformers.TrainerCallback):
        saved = []

        def on_step_end(self, args, state, control, **_):
            control.should_save = state.global_step == 3

        def on_save(self, args, state, control, **_):
            self.saved.append(state.global_step)

    args = arguments(tmp_path, save_strategy="steps", save_steps=2, save_total_limit=1)
    trainer = RubatoTrainer(model=gpt2(), args=args, train_dataset=Same(), callbacks=[Asks])
    trainer.train()
    assert Asks.saved == [3]
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-3", "rubato"}
    assert [path.name for path in (tmp_path / "rubato").glob("step-*")] == ["step-00000006"]


def with_penalty(kind):
    class Penalised(kind):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(**inputs, num_items_in_batch=num_items_in_batch)
            loss = outputs.loss + 0.01 * outputs.logits.square().mean()
            return (loss, outputs) if return_outputs else loss

    return Penalised


def test_a_part_of_the_loss_without_items_is_averaged(tmp_path, caplog):
    """As the Trainer does where a step is one micro-batch; with more of them it adds up."""
    losses = []
    for kind, micro_batches in ((transformers.Trainer, 1), (RubatoTrainer, 1), (RubatoTrainer, 3)):
        args = arguments(tmp_path / f"{kind.__name__}{micro_batches}", gradient_accumulation_steps=micro_batches)
        trainer = with_penalty(kind)(model=gpt2(dropout=0), args=args, train_dataset=Same())
        trainer.train()
        losses.append(logged(trainer, "loss"))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[2] == pytest.approx(losses[0], rel=1e-5)
    assert "not divided by num_items_in_batch" in caplog.text


def test_a_model_of_model_init_is_prepared_as_a_given_one(tmp_path):
    more = {"neftune_noise_alpha": 5.0}
    given = RubatoTrainer(model=gpt2(), args=arguments(tmp_path, **more), train_dataset=Same())
    made = RubatoTrainer(model_init=lambda: gpt2(), args=arguments(tmp_path, **more), train_dataset=Same())
    without = RubatoTrainer(model=gpt2(), args=arguments(tmp_path), train_dataset=Same())
    for trainer in (given, made, without):
        trainer.train()
    assert bytes_of(given.model) == bytes_of(made.model) != bytes_of(without.model)
    assert not given.model.get_input_embeddings()._forward_hooks


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(Text())


def test_a_stream_is_refused_as_everywhere(tmp_path):
    trainer = RubatoTrainer(model=gpt2(), args=arguments(tmp_path), train_dataset=Stream())
    with pytest.raises(rubato.Refused, match="Stream has no index"):
        trainer.train()


@pytest.mark.parametrize(
    "more, word",
    [
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
        ({"torch_compile": True}, r"torch_compile: compile parts of the model yourself: module.compile\(\)"),
        ({"train_sampling_strategy": "sequential"}, "random order"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps"}, "schedule of the step"),
        ({"save_strategy": "best", "eval_strategy": "steps", "metric_for_best_model": "loss"}, "call save_model"),
        ({"eval_on_start": True, "eval_strategy": "steps"}, r"call evaluate\(\) before train\(\)"),
        ({"include_num_input_tokens_seen": "all"}, "include_num_input_tokens_seen=all"),
    ],
)
def test_what_it_does_not_do_is_named(tmp_path, more, word):
    trainer = RubatoTrainer(model=gpt2(), args=arguments(tmp_path, **more), train_dataset=Text(), eval_dataset=Text())
    with pytest.raises(rubato.Refused, match=word) as refused:
        trainer.train()
    assert refused.value.reason == "UnsupportedTrainer"


class Steps(RubatoTrainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        return super().training_step(model, inputs, num_items_in_batch)


class Samples(RubatoTrainer):
    def _get_train_sampler(self, train_dataset=None):
        return torch.utils.data.WeightedRandomSampler([1.0] * 26, 26)


class Loads(RubatoTrainer):
    def get_train_dataloader(self):
        return torch.utils.data.DataLoader(self.train_dataset, batch_size=2, collate_fn=self.data_collator)


class Scaled(RubatoTrainer):
    loss_is_scaled_for_ga = True


@pytest.mark.parametrize(
    "kind, word",
    [
        (Steps, r"Steps.training_step\(\): nobody calls it; override compute_loss"),
        (Samples, "the sampler WeightedRandomSampler"),
        (Loads, "the sampler SequentialSampler"),
        (Scaled, "loss_is_scaled_for_ga=True"),
    ],
)
def test_what_a_subclass_says_in_vain_is_named(tmp_path, kind, word):
    with pytest.raises(rubato.Refused, match=word):
        kind(model=gpt2(), args=arguments(tmp_path), train_dataset=Text()).train()
