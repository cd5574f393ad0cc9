"""What the script exits with: CPython tells atexit handlers of exceptions that it prints, and not of sys.exit()."""

import sys
import threading

from .errors import Refused

_exit = None  # as it was before watch()
_status = None  # of the last call


def watch():
    """From now on sys.exit() is noted; again: nothing."""
    global _exit
    if _exit is None:
        _exit, sys.exit = sys.exit, _noting_exit


def forget():
    """The script goes on: it caught what sys.exit() raised."""
    global _status
    _status = None


def failed():
    """The failure that the script exits with, or None."""
    if _status is None or (isinstance(_status, int) and _status == 0):
        return None
    text = _status if isinstance(_status, int) else f"1: {_status}"
    return Refused("ProgramFailed", f"the script exited with status {text}", "attempt")


def _noting_exit(status=None, /):
    global _status
    if threading.current_thread() is threading.main_thread():  # elsewhere it ends its thread alone
        _status = status
    _exit(status)
