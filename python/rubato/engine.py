"""The C++ step engine, librubato_pytorch.so, by ctypes."""

import ctypes
import json
import os
import pathlib

from .version import VERSION

AGENT_FD = "RUBATO_AGENT_FD"  # set in a pod: the socket to the agent
_TAKEN = "taken"


def is_in_pod():
    return AGENT_FD in os.environ


def leave_agent():
    """In a forked child: the socket is its parent's alone, and so is the Job."""
    descriptor = os.environ.get(AGENT_FD, _TAKEN)
    if descriptor != _TAKEN:
        os.close(int(descriptor))
        os.environ[AGENT_FD] = _TAKEN


class Engine:
    """One job of the engine. All calls from one thread; none holds the interpreter's lock while it waits."""

    def __init__(self, training):
        """training: of a job that runs alone; None in a pod, where the manifest's comes by `configure`."""
        if os.environ.get(AGENT_FD) == _TAKEN:
            raise RuntimeError("This worker has its Job already: a pod's script trains one, and its child processes none.")
        self._library = _load()
        self._job = self._library.rubato_start(json.dumps({"training": training}).encode())
        if not self._job:
            raise RuntimeError(f"The engine did not start: {self._library.rubato_error().decode()}")
        self._process = os.getpid()
        if is_in_pod():
            os.environ[AGENT_FD] = _TAKEN

    def next(self, timeout_ms):
        """The next request, or None when none came in time."""
        text = self._library.rubato_next(self._job, timeout_ms)
        return json.loads(text) if text else None

    def reply(self, reply):
        self._library.rubato_reply(self._job, json.dumps(reply, allow_nan=False).encode())

    def stop(self, failure=None):
        """Leaves the job. A forked child has none of its threads, so there it does nothing.

        failure: an error reply that says why the script ends before the job does.
        """
        job, self._job = self._job, None
        if job and os.getpid() == self._process:
            self._library.rubato_stop(job, _told(failure))

    def leave(self, failure=None):
        """As stop(), when the process exits: a status other than 0 is a failure, though this one says none."""
        job, self._job = self._job, None
        if job and os.getpid() == self._process:
            self._library.rubato_leave(job, _told(failure))


def _told(failure):
    return json.dumps(failure).encode() if failure else b""


def _load():
    beside = pathlib.Path(__file__).parent / "librubato_pytorch.so"
    path = os.environ.get("RUBATO_LIBRARY") or str(beside)
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"The engine cannot be loaded from {path}: {error}. Install the wheel of rubato for this platform, or set "
            "RUBATO_LIBRARY to a librubato_pytorch.so."
        ) from error
    library.rubato_version.restype = ctypes.c_char_p
    if (found := library.rubato_version().decode()) != f"rubato {VERSION}":
        raise ImportError(f"This is the Python package of rubato {VERSION}, but {path} is that of {found}.")
    signatures = {
        "rubato_start": (ctypes.c_void_p, [ctypes.c_char_p]),
        "rubato_error": (ctypes.c_char_p, []),
        "rubato_next": (ctypes.c_char_p, [ctypes.c_void_p, ctypes.c_int]),
        "rubato_reply": (None, [ctypes.c_void_p, ctypes.c_char_p]),
        "rubato_stop": (None, [ctypes.c_void_p, ctypes.c_char_p]),
        "rubato_leave": (None, [ctypes.c_void_p, ctypes.c_char_p]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
