"""What goes wrong in the user's program, as the engine is told of it."""

import os
import sysconfig
import traceback

_TEXT_MAX = 800  # characters: a condition of the job shows them
_NOT_THE_USERS = (os.path.dirname(os.path.abspath(__file__)) + os.sep, sysconfig.get_path("stdlib") + os.sep, "<")


class Refused(Exception):
    """The program cannot be trained with equal bits on any number of workers. The text names the way out."""

    def __init__(self, reason, text, scope="job"):
        super().__init__(text)
        self.reason = reason
        self.scope = scope


class LoadingFailed(Exception):
    """What a loading process raised, with the error reply and the traceback that it has there."""

    def __str__(self):
        return f"in a loading process:\n{self.args[1]}"


def failure(exception):
    """The error reply for an exception."""
    if isinstance(exception, LoadingFailed):
        return exception.args[0]
    if isinstance(exception, Refused):
        return {"error": said(exception)[:_TEXT_MAX], "reason": exception.reason, "scope": exception.scope}
    place = _encodable(_place(exception))
    text = f"{type(exception).__name__}: {said(exception)}"[: _TEXT_MAX - len(place)] + place
    if _is_out_of_memory(exception):
        return {"error": text, "reason": "OutOfMemory", "scope": "worker"}
    return {"error": text, "reason": "ProgramFailed", "scope": "attempt"}


def said(value):
    """str() of what the user's code gave, as text that UTF-8 has: names of files may be none, and str() may raise."""
    try:
        return _encodable(str(value))
    except Exception:
        return f"<{type(value).__name__} without a text>"


def _encodable(text):
    return text.encode("utf-8", "replace").decode()


def _is_out_of_memory(exception):
    """PyTorch's allocator of host memory has no class of its own for this."""
    return (
        isinstance(exception, MemoryError)
        or type(exception).__name__ == "OutOfMemoryError"
        or (isinstance(exception, RuntimeError) and "can't allocate memory" in said(exception))
    )


def _place(exception):
    """The innermost frame that is the user's own, as " (file:line)". "": it was raised nowhere, as what the interactive
    interpreter says of a line that it cannot read.
    """
    frames = traceback.extract_tb(exception.__traceback__)
    own = [frame for frame in frames if _is_users(frame.filename)]
    return "".join(f" ({frame.filename}:{frame.lineno})" for frame in (own or frames)[-1:])


def _is_users(filename):
    packages = {"site-packages", "dist-packages"}
    return not filename.startswith(_NOT_THE_USERS) and packages.isdisjoint(filename.split(os.sep))
