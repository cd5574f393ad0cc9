"""report() and should_checkpoint(): what a script that has no Job tells Rubato, and is told."""

import json
import os
import signal

_is_told = None  # to end; None: SIGTERM is not listened to


def report(step, loss=None, tokens=None):
    """Of runtimes torchrun and command, from any one process: after this many steps, and tokens or samples in all.

    Elsewhere it does nothing, and a Job needs none.
    """
    path = os.environ.get("RUBATO_PROGRESS_FILE")
    if path:
        given = {"step": (int, step), "loss": (float, loss), "tokens": (int, tokens)}
        told = {name: number(value) for name, (number, value) in given.items() if value is not None}
        with open(path, "w") as out:
            print(json.dumps(told), file=out)


def should_checkpoint():
    """Whether this process was told to end (SIGTERM): it is to write its checkpoint now, and to end itself then.

    To be called by the main thread, once before the first step and after each one: from the first call on SIGTERM ends
    the process no more, but a handler that the script had set is still called. A Job needs none: the engine writes.
    """
    global _is_told
    if _is_told is None:
        _listen(signal.getsignal(signal.SIGTERM))
    return _is_told


def _listen(before):
    global _is_told

    def note(number, frame):
        global _is_told
        _is_told = True
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGTERM, note)  # raises in another thread
    _is_told = False
    os.register_at_fork(after_in_child=lambda: _forget(note, before))


def _forget(note, before):
    """A child, a loading process say, is none of those that are asked: it ends by SIGTERM as ever."""
    global _is_told
    _is_told = None
    if signal.getsignal(signal.SIGTERM) is note:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
