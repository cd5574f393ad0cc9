"""RubatoTrainer: transformers.Trainer whose steps are Rubato's.

    from rubato.huggingface import RubatoTrainer as Trainer

Model, data, collator, loss, optimizer, callbacks, logs and evaluation are the Trainer's own. Which samples a step has,
the sum of gradients, clipping, checkpoints and who computes what are the engine's.
"""

import copy
import itertools
import logging
import math
import pathlib
import time
import warnings

import torch
import transformers
from transformers.trainer_callback import DefaultFlowCallback, ExportableState, TrainerState

from .chance import seeded
from .data import Indexed, Weighted
from .engine import is_in_pod
from .errors import Refused
from .job import Job
from .state import State

_CHECKPOINTS = "rubato"  # folder in output_dir, of a script that runs alone
_CHECKPOINTS_KEPT = 3
_ROUNDING = 1e-6  # relative
_NEVER_CALLED = {  # what a subclass may override, and what to override instead
    "training_step": "override compute_loss",
    "get_batch_samples": "override compute_loss, or give a data_collator",
}

_log = logging.getLogger(__name__)


class _Flow(DefaultFlowCallback):
    """Of save_steps and save_strategy the engine knows: who sets control.should_save is a callback of the user's."""

    def on_step_end(self, args, state, control, **more):
        control = super().on_step_end(args, state, control, **more)
        control.should_save = False
        return control

    def on_epoch_end(self, args, state, control, **more):
        should_save = control.should_save
        control = super().on_epoch_end(args, state, control, **more)
        control.should_save = should_save
        return control


class RubatoTrainer(transformers.Trainer):
    """Where a manifest and the arguments both say something, the manifest holds in a pod: when to end, batch, seed and
    checkpoints. Schedules of the learning rate reach as far as max_steps or num_train_epochs say, wherever a job ends.
    A script that runs alone takes max_steps or num_train_epochs, per_device_train_batch_size,
    gradient_accumulation_steps, seed and save_steps; its checkpoints lie in output_dir/rubato, and
    train(resume_from_checkpoint=True) goes on from them. In a pod a job goes on by itself.

    Callbacks hear of a step when it is committed, on_step_begin too; nobody calls on_substep_end, on_optimizer_step and
    on_pre_optimizer_step. What writes (logs, TensorBoard, save_model, a checkpoint that a callback asks for by
    control.should_save) does so on one worker: the reporter. is_world_process_zero() says who that is. After train()
    the given model has the trained weights.
    """

    _is_reporter = True  # until a step says who is

    def train(self, resume_from_checkpoint=None, trial=None, ignore_keys_for_eval=None):
        if isinstance(resume_from_checkpoint, str):
            raise ValueError(
                f"train(resume_from_checkpoint={resume_from_checkpoint!r}): the job goes on from its own checkpoints. "
                "To begin with the weights of that folder, give Trainer(model=...from_pretrained(folder))."
            )
        earlier = pathlib.Path(self.args.output_dir, _CHECKPOINTS)
        if not (resume_from_checkpoint or is_in_pod()) and earlier.is_dir() and any(earlier.iterdir()):
            raise ValueError(
                f"{earlier} has checkpoints of an earlier run: go on from them by train(resume_from_checkpoint=True), "
                "remove the folder, or give another output_dir."
            )
        return super().train(None, trial, ignore_keys_for_eval)

    def save_model(self, output_dir=None, _internal_call=False):
        if self._is_reporter:
            super().save_model(output_dir, _internal_call)

    def is_world_process_zero(self):
        return self._is_reporter

    def is_local_process_zero(self):
        return self._is_reporter

    def _save_checkpoint(self, model, trial):
        if self._is_reporter:
            super()._save_checkpoint(model, trial)

    def _inner_training_loop(
        self, batch_size=None, args=None, resume_from_checkpoint=None, trial=None, ignore_keys_for_eval=None
    ):
        loader = self.get_train_dataloader()
        has_index = not isinstance(loader.dataset, torch.utils.data.IterableDataset)  # else the job refuses it
        self._samples = len(loader.dataset) if has_index else 0
        self._sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
        if self._created_lr_scheduler:  # of an earlier train()
            self.lr_scheduler, self._created_lr_scheduler = None, False
        self._given = self.model, self.optimizer, self.lr_scheduler
        self._normalises = None
        self._is_first = True
        self._is_search = trial is not None
        loading_processes, args.dataloader_num_workers = loader.num_workers, 0  # evaluation must not fork now
        self._job = Job(
            self._build, self._data(loader), self._loss, max_grad_norm=args.max_grad_norm or 0.0, **self._run_alone()
        )
        try:
            for step in self._job:
                if self._is_first:
                    self._begin(step.number - 1, step.is_reporter)
                self._commit(step, ignore_keys_for_eval)
                if self.control.should_training_stop and not step.is_last:
                    self._job.finish()
        finally:
            args.dataloader_num_workers = loading_processes
        if self._is_first:  # the checkpoint was the last one
            self._begin(self._steps(), is_reporter=not is_in_pod())
        self._give_back()
        samples = self.state.max_steps * self._samples_of_a_step()
        return self._finalize_training(trial, samples, self._began)

    # ---- What the job asks ----

    def _data(self, loader):
        return Indexed(loader.dataset, collate=loader.collate_fn, workers=loader.num_workers, **self._batch_alone())

    def _batch_alone(self):
        if is_in_pod():
            return {}
        return {
            "micro_batch": self.args.per_device_train_batch_size,
            "micro_batches": self.args.gradient_accumulation_steps,
        }

    def _run_alone(self):
        args = self.args
        if is_in_pod():
            return {}
        every = {"steps": args.save_steps, "epoch": self._steps_of_an_epoch()}.get(args.save_strategy, 0)
        steps = self._horizon()
        return {
            "steps": steps,
            "seed": args.seed,
            "checkpoint": None if args.save_strategy == "no" else f"{args.output_dir}/{_CHECKPOINTS}",
            "checkpoint_every": math.ceil(steps * every) if every < 1 else int(every),
            "checkpoint_keep": args.save_total_limit or _CHECKPOINTS_KEPT,
        }

    def _build(self):
        self._refuse_what_cannot_be()
        model, self.optimizer, self.lr_scheduler = copy.deepcopy(self._given)
        warnings.filterwarnings("ignore", "Seems like `optimizer.step", UserWarning)  # of a copied scheduler
        model.train()
        self.model = self.model_wrapped = model
        self.create_optimizer_and_scheduler(self._horizon())
        self._prepare(model)
        return State(model, self.optimizer, self.lr_scheduler)

    def _prepare(self, model):
        """Autocast, as the arguments say. Evaluation finds the model prepared."""
        self.accelerator.free_memory()
        self.accelerator.prepare_model(model, device_placement=False, evaluation_mode=True)

    def _loss(self, model, batch):
        inputs = self._prepare_inputs(batch)
        items = self._get_num_items_in_batch([inputs], self.args.device)
        if items is None or self._is_normalised(model, inputs, int(items)) is False:
            return self.compute_loss(model, inputs)
        items = int(items)
        if items == 0:  # no part in the step. Nothing is multiplied by 0: a loss over no items may be NaN, and stays so
            return Weighted(torch.zeros((), requires_grad=True), 0)
        # sum / items + rest, times items: the step's loss has the sums over all its items, and the mean of the rests.
        return Weighted(self.compute_loss(model, inputs, num_items_in_batch=items) * items, items)

    def _is_normalised(self, model, inputs, items):
        """Whether the loss has a sum over num_items_in_batch: some models take the word and give a mean. None: this
        batch does not tell.

        A sum over no items says nothing, so a batch without any is tried with other labels. It must be known now: what
        a micro-batch gives may not depend on those that this worker computed before."""
        if self._normalises is None:
            tried = inputs if items else _labelled(inputs)
            whole, half = (self._loss_of(model, tried, number) for number in (1, 2))
            if not items and not whole:
                return None  # these labels are no items either
            self._normalises = not math.isclose(whole, half, rel_tol=_ROUNDING)
            if self._normalises and not math.isclose(whole, 2 * half, rel_tol=_ROUNDING):
                _log.warning(
                    "A part of the loss is not divided by num_items_in_batch (an auxiliary loss, say). RubatoTrainer "
                    "takes its mean over the step's micro-batches, by their tokens; transformers.Trainer adds them up. "
                    "So do not divide it by gradient_accumulation_steps."
                )
        return self._normalises

    def _loss_of(self, model, inputs, items):
        with seeded(0), torch.no_grad():
            return float(self.compute_loss(model, dict(inputs), num_items_in_batch=items))

    def _refuse_what_cannot_be(self):
        args = self.args
        for cannot, what, way_out in (
            (args.fp16, "fp16", "use bf16=True, which needs no scaler"),
            (args.device.type != "cpu", f"the device {args.device}", "set use_cpu=True"),
            (self.is_deepspeed_enabled or self.is_fsdp_enabled, "DeepSpeed or FSDP", "a replica holds the whole model"),
            (args.torch_compile, "torch_compile", "compile parts of the model yourself: module.compile()"),
            (args.auto_find_batch_size, "auto_find_batch_size", "say the batch"),
            (args.load_best_model_at_end, "load_best_model_at_end", "the job ends with its last step"),
            (
                args.train_sampling_strategy != "random",
                f"train_sampling_strategy={args.train_sampling_strategy}",
                "samples come in a random order",
            ),
            (
                args.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy"),
                f"lr_scheduler_type={args.lr_scheduler_type.value}",
                "take a schedule of the step",
            ),
            (self._is_search, "hyperparameter_search", "make a job of each trial"),
            (
                args.save_strategy == "best",
                "save_strategy=best",
                "take steps or epoch, and call save_model() in on_evaluate of a callback",
            ),
            (args.eval_on_start, "eval_on_start", "call evaluate() before train()"),
            (
                args.include_num_input_tokens_seen != "no",
                f"include_num_input_tokens_seen={args.include_num_input_tokens_seen}",
                "no worker sees all samples; leave it out",
            ),
            (
                self.loss_is_scaled_for_ga,
                "loss_is_scaled_for_ga=True",
                "return the mean of the micro-batch, or a sum over num_items_in_batch, and leave it None",
            ),
            (
                not isinstance(self._sampler, torch.utils.data.RandomSampler) or self._sampler.replacement,
                f"the sampler {type(self._sampler).__name__} of get_train_dataloader()",
                "samples come in a random order, each once an epoch; give a dataset that has them as often as wanted",
            ),
            *(
                (
                    getattr(type(self), name) is not getattr(transformers.Trainer, name),
                    f"{type(self).__name__}.{name}()",
                    f"nobody calls it; {instead}",
                )
                for name, instead in _NEVER_CALLED.items()
            ),
        ):
            if cannot:
                raise Refused("UnsupportedTrainer", f"RubatoTrainer does not do {what}: {way_out}.")

    # ---- The Trainer's own books ----

    def _horizon(self):
        """Steps that the arguments say. A schedule must not depend on when the job ends, which may change."""
        of_epochs = math.ceil(self.args.num_train_epochs * self._steps_of_an_epoch())
        return self.args.max_steps if self.args.max_steps > 0 else of_epochs

    def _steps_of_an_epoch(self):
        return max(self._samples // self._samples_of_a_step(), 1)

    def _samples_of_a_step(self):
        if is_in_pod():
            return self._job.training["batch"]["global"]
        return self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps

    def _begin(self, done, is_reporter):
        """With the first step that this worker has: only then is it known where the job stands. done: steps before."""
        self._is_first = False
        self._began = time.time()
        self._initial_num_input_tokens_seen = 0
        self._initial_global_step = self._globalstep_last_logged = done
        self._total_loss_scalar = 0.0
        self._tr_loss = torch.zeros((), dtype=torch.float64)
        state = self._job.state
        self.model = self.model_wrapped = state.model
        self.optimizer, self.lr_scheduler = state.optimizer, state.scheduler
        self._show_callbacks_the_model()
        self.callback_handler.callbacks = [
            _Flow() if type(each) is DefaultFlowCallback else each for each in self.callback_handler.callbacks
        ]
        exportable = [*self.callback_handler.callbacks, self.control]
        self.state = TrainerState(stateful_callbacks=[each for each in exportable if isinstance(each, ExportableState)])
        self.state.train_batch_size = self._train_batch_size
        self.state.compute_steps(self.args, self._horizon())
        epochs = math.ceil(self._steps() / self._steps_of_an_epoch())
        self.state.init_training_references(self, self._steps(), epochs, None)
        self.state.global_step = done
        self._report(is_reporter)
        self.control = self.callback_handler.on_train_begin(self.args, self.state, self.control)
        self.control = self.callback_handler.on_epoch_begin(self.args, self.state, self.control)

    def _steps(self):
        return self._job.training["stop"]["steps"]

    def _report(self, is_reporter):
        self._is_reporter = is_reporter
        self.state.is_world_process_zero = self.state.is_local_process_zero = is_reporter

    def _give_back(self):
        """The given model takes the trained values, and the Trainer goes on with it, as after its own train()."""
        trained, given = self.model, self._given[0]
        places = {}
        for theirs, ours in zip(_tensors(trained), _tensors(given), strict=True):
            ours.data.copy_(theirs)
            places[id(theirs)] = ours
        self.model = self.model_wrapped = given
        self.optimizer, self.lr_scheduler = copy.deepcopy((self.optimizer, self.lr_scheduler), places)
        self._show_callbacks_the_model()
        self._prepare(given)

    def _show_callbacks_the_model(self):
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))

    def _commit(self, step, ignore_keys):
        was_reporter = self._is_reporter
        self._report(step.is_reporter)
        if step.is_reporter and not was_reporter:
            for callback in self.callback_handler.callbacks:  # they open their logs now; a person's heard it before
                if type(callback).__module__.startswith("transformers."):
                    callback.on_train_begin(self.args, self.state, self.control, model=self.model)
        before = step.number - 1
        if before % self._steps_of_an_epoch() == 0 and before > self._initial_global_step:
            self.control = self.callback_handler.on_epoch_begin(self.args, self.state, self.control)
        self.control = self.callback_handler.on_step_begin(self.args, self.state, self.control)
        self.state.global_step, self.state.max_steps = step.number, self._steps()
        self.state.epoch = step.number / self._steps_of_an_epoch()
        self._tr_loss += step.loss
        self.control = self.callback_handler.on_step_end(self.args, self.state, self.control)
        self._log_and_evaluate(step, ignore_keys)
        is_last = step.is_last or self.control.should_training_stop
        if is_last or step.number % self._steps_of_an_epoch() == 0:
            self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
            self._log_and_evaluate(step, ignore_keys)

    def _log_and_evaluate(self, step, ignore_keys):
        self._maybe_log_save_evaluate(
            self._tr_loss,
            step.gradient_norm,
            self.model,
            None,
            self.state.epoch,
            ignore_keys,
            self._began,
            learning_rate=step.learning_rate,
        )
        self.control.should_evaluate = False


def _labelled(inputs):
    """The batch with items: each label is 0."""
    labels = {key: inputs[key] for key in ("labels", "shift_labels") if isinstance(inputs.get(key), torch.Tensor)}
    return {**inputs, **{key: torch.zeros_like(value) for key, value in labels.items()}}


def _tensors(model):
    return itertools.chain(model.parameters(), model.buffers())
