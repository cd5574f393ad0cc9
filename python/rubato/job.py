"""Job: the loop over committed steps."""

import atexit
import dataclasses
import os
import sys

from . import engine as engines
from .data import integer, require_indexed
from .errors import Refused, failure

_WAIT_MS = 200  # between two looks for Ctrl-C
_ENDED_EARLY = (
    "The script ended before the job's last step, which is training.stop.steps of the manifest: iterate over the job to "
    "its end, and call job.finish() to end it sooner."
)


@dataclasses.dataclass(frozen=True)
class Step:
    number: int  # of committed steps: 1 after the first
    loss: float  # the mean over the whole batch, before the step
    gradient_norm: float
    learning_rate: float | None  # of the first group; None: its optimizer names none
    world_size: int
    rank: int
    is_reporter: bool  # one worker of all: for logs and other effects outside
    is_last: bool


class Job:
    """Iterating trains. Each step is handed out when it is committed, on every worker that has it.

    build: makes a new State in each call. loss(model, batch): of one micro-batch, a tensor of one element or Weighted.
    max_grad_norm: 0 or infinity is no clipping. evaluate: an Indexed whose samples are a fixed list. seed: of all
    random numbers and of the order of the samples; 0 by default. checkpoint: the folder of checkpoints. In a pod the
    manifest says steps, checkpoint, checkpoint_every, evaluate_every, seed and checkpoint_keep (how many checkpoints
    stay); a job that runs alone takes the arguments. The body of the loop may change the state (job.state), if it does
    so alike on every worker. Modules are trained in the mode that build() leaves them in.
    """

    def __init__(
        self,
        build,
        data,
        loss,
        max_grad_norm=0.0,
        evaluate=None,
        steps=None,
        checkpoint=None,
        checkpoint_every=0,
        evaluate_every=0,
        seed=None,
        checkpoint_keep=3,
        _engine=None,
    ):
        from .program import Program
        from .trainer import Trainer

        require_indexed(data, "data")
        if evaluate is not None:
            require_indexed(evaluate, "evaluate")
        if not max_grad_norm >= 0:
            raise ValueError(f"Job(max_grad_norm={max_grad_norm!r}): give a number above 0, or 0 for no clipping.")
        training = None
        if not engines.is_in_pod():
            training = _training(data, steps, checkpoint, checkpoint_every, evaluate_every, seed, checkpoint_keep)
        self._program = Program(build, data, loss, max_grad_norm, evaluate)
        self._trainer = Trainer(self._program)
        self._process = os.getpid()
        self._has_handed_out = False
        self._is_over = False
        self._is_finished = False
        self._has_last = False
        self._has_ended = False
        self._engine = _engine or engines.Engine(training)
        atexit.register(self._leave)

    @property
    def state(self):
        """The State as of the step that was handed out; None before the first."""
        return self._trainer.state

    @property
    def training(self):
        """What the manifest's `training` says (of a run alone: the arguments), from the first call of build() on."""
        return self._trainer.training

    def finish(self):
        """In the body of the loop: the step that was handed out is the job's last one, for all workers.

        One that calls it is enough. The loop ends after its body; nothing is computed that counts, and the last
        checkpoint is of this step."""
        if self.state is None:
            raise RuntimeError("job.finish(): no step is committed yet; call it in the body of the loop.")
        self._has_ended = True

    def __iter__(self):
        return self

    def __next__(self):
        if os.getpid() != self._process:
            raise RuntimeError("This process was forked from a worker, which alone has the job: end it by os._exit().")
        if self._is_over:
            raise StopIteration
        self._keep_changes()
        while True:
            request = self._engine.next(_WAIT_MS)
            if request is None:
                continue
            if request["kind"] == "end":
                self._end(request)
            reply = self._answer(request)
            if request["kind"] == "compute" and self._has_ended:
                reply = {**reply, "ends": True}
            self._engine.reply(reply)
            if request["kind"] == "apply":
                self._has_handed_out = True
                self._has_last = request["step"] + 1 == request["stop_steps"]
                self.training["stop"]["steps"] = request["stop_steps"]  # it may change while the job trains
                return self._step(request, reply)

    def _keep_changes(self):
        """Of the loop's body, before the engine reads the memory: it does not while the body runs."""
        if not self._has_handed_out:
            return
        self._has_handed_out = False
        try:
            self._trainer.keep_changes()
        except BaseException as exception:
            self._is_over = True
            self._engine.stop(failure(exception))  # no request is open that it could be the answer to
            raise

    def _answer(self, request):
        try:
            return self._trainer.answer(request)
        except BaseException as exception:  # Ctrl-C and sys.exit, too: the engine must not wait for them
            self._is_over = True
            self._engine.reply(failure(exception))
            raise

    def _step(self, request, reply):
        rank, number = request["rank"], request["step"] + 1
        return Step(
            number=number,
            loss=float(request["loss"]),
            gradient_norm=float(request["norm"]),
            learning_rate=reply["learning_rate"],
            world_size=request["world"],
            rank=rank,
            is_reporter=rank == 0,
            is_last=self._has_last,
        )

    def _leave(self):
        """When the script ends, by whatever it did outside of our requests. A forked child has no part in the job."""
        if os.getpid() != self._process:
            return
        raised = getattr(sys, "last_value", None)  # not of SystemExit, which the engine sees at exit()
        try:
            if (self._has_last or self._has_ended) and not raised:
                for _ in self:  # the loop was left there: what comes after the last step is the same
                    pass
        except BaseException as exception:
            raised = exception
            raise
        finally:
            self._stop(raised)

    def _stop(self, raised):
        """Whatever happens here, the engine is told: its threads would wait for a script that has ended."""
        try:
            self._program.close()
        finally:
            if self._is_over and not self._is_finished:
                self._engine.stop()  # it knows why
            elif raised:
                self._engine.stop(failure(raised))
            else:
                ended_early = Refused("ScriptEnded", _ENDED_EARLY, "worker")
                self._engine.leave(None if self._is_over else failure(ended_early))

    def _end(self, request):
        self._is_over = True
        self._is_finished = request["finished"]
        self._program.close()
        if self._is_finished and engines.is_in_pod():
            raise StopIteration  # what is behind the loop is part of the job: the engine stops in _leave()
        self._engine.stop()
        if self._is_finished:
            raise StopIteration
        if request["reason"] == "Retired":
            raise SystemExit(0)
        raise SystemExit(f"rubato: the job left this worker: {request['reason']}")


def _training(data, steps, checkpoint, checkpoint_every, evaluate_every, seed, checkpoint_keep):
    """Of a job that runs alone, as a manifest's `training` would say it."""
    if steps is None:
        raise ValueError("Job(steps=): say how many steps to train; only in a pod does the manifest say it.")
    if not (data.micro_batch and data.micro_batches):
        raise ValueError("Indexed(micro_batch=, micro_batches=): say both; only in a pod does the manifest say them.")
    if None not in (seed, data.seed) and seed != data.seed:
        raise ValueError(
            f"Job(seed={seed!r}) and Indexed(seed={data.seed}): a job has one seed, of which the order of the samples "
            "is made, too. Say it once."
        )
    training = {
        "batch": {"micro": data.micro_batch, "global": data.micro_batch * data.micro_batches},
        "stop": {"steps": integer(steps, "Job(steps)", 1)},
        "seed": integer(0 if seed is None else seed, "Job(seed)", 0) if data.seed is None else data.seed,
        "evaluateEvery": integer(evaluate_every, "Job(evaluate_every)", 0),
    }
    if checkpoint:
        training["checkpoint"] = {
            "path": os.path.abspath(os.path.expanduser(checkpoint)),  # the script may go elsewhere
            "every": integer(checkpoint_every, "Job(checkpoint_every)", 0),
            "keep": integer(checkpoint_keep, "Job(checkpoint_keep)", 1),
        }
    return training
