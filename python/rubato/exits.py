"""What the script exits with: CPython tells atexit handlers of exceptions that it prints, and not of sys.exit()."""

import builtins
import functools
import sys
import threading

from .errors import Refused, said

_is_watching = False
_status = None  # of the last call


def watch():
    """From now on sys.exit(), exit() and quit() are noted; again: nothing."""
    global _is_watching
    if _is_watching:
        return
    _is_watching = True
    for owner, name in ((sys, "exit"), (builtins, "exit"), (builtins, "quit")):
        if hasattr(owner, name):  # python -S has no exit() and quit() of its own
            setattr(owner, name, functools.partial(_note, getattr(owner, name)))


def forget():
    """The script goes on: it caught what sys.exit() raised."""
    global _status
    _status = None


def failed():
    """The failure that the script exits with, or None."""
    if _status is None or (isinstance(_status, int) and _status == 0):
        return None
    text = _status if isinstance(_status, int) else f"1: {said(_status)}"
    return Refused("ProgramFailed", f"the script exited with status {text}", "attempt")


def _note(leave, *status, **named):
    global _status
    if threading.current_thread() is threading.main_thread():  # elsewhere it ends its thread alone
        _status = (*status, *named.values(), None)[0]  # exit(code=1) has a name
    leave(*status, **named)
