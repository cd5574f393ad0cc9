"""Loading of micro-batches: in the main thread, or ahead of it in processes of their own. The bits are the same.

A task says all that a micro-batch depends on, so what was loaded ahead is right or is not asked for.
"""

import collections
import ctypes
import os
import select
import signal
import sys
import traceback
import typing
import weakref

import torch

from . import engine as engines
from . import transport
from .chance import seeded
from .errors import LoadingFailed, failure

_AHEAD_OF_EACH = 2  # micro-batches that a process has loaded or is to load
_LOOK_MS = 200  # between two looks whether a process lives
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None)
_links = weakref.WeakSet()  # this process's ends


class Task(typing.NamedTuple):
    chance: int  # the seed of its random numbers
    ids: tuple


def loading_of(data):
    """Of an Indexed."""
    return Processes(data) if data.workers else MainThread(data)


class MainThread:
    ahead = 0  # tasks that load() has a use for beside the one

    def __init__(self, data):
        self._data = data

    def load(self, task, ahead):
        return _load(self._data, task)

    def close(self):
        pass


class Processes:
    """They are forked here, so the engine must not run yet. They have the dataset as it is now."""

    def __init__(self, data):
        torch.set_num_threads(torch.get_num_threads())  # as _load() in the main thread does: MKL no longer chooses
        self.ahead = _AHEAD_OF_EACH * data.workers
        self._owner = os.getpid()
        self._processes = [_Process(data) for _ in range(data.workers)]
        self._outcomes = {}  # of tasks that are not needed yet

    def load(self, task, ahead):
        """Waits for this one, and has those `ahead` loaded meanwhile. What was loaded and is neither is dropped."""
        for process in self._processes:
            while process.asked and process.has_answered(0):
                self._take(process)
        wanted = [task, *ahead[: self.ahead]]
        self._outcomes = {each: outcome for each, outcome in self._outcomes.items() if each in wanted}
        requested = {*self._outcomes, *(each for process in self._processes for each in process.asked)}
        for each in wanted:
            if each not in requested and (each == task or len(requested) <= self.ahead):
                min(self._processes, key=lambda process: len(process.asked)).ask(each)
                requested.add(each)
        while task not in self._outcomes:
            self._take(next(process for process in self._processes if task in process.asked))
        outcome = self._outcomes.pop(task)
        if isinstance(outcome, LoadingFailed):
            raise outcome
        return outcome

    def _take(self, process):
        outcome = process.answer()
        self._outcomes[process.asked.popleft()] = outcome

    def close(self):
        """A forked child has none of these processes, so there it does nothing."""
        if os.getpid() == self._owner:
            for process in self._processes:
                process.close()


class _Process:
    def __init__(self, data):
        self.asked = collections.deque()  # tasks whose outcomes are not received
        self._link, theirs = transport.link()
        _links.add(self._link)
        parent = os.getpid()
        sys.stdout.flush()  # or what is in them would be written twice
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            _run(data, theirs, parent)
        theirs.close()

    def ask(self, task):
        self.asked.append(task)
        try:
            transport.send(self._link, transport.pack(task))
        except ConnectionError:
            raise RuntimeError(self._end()) from None

    def has_answered(self, limit_ms):
        """Or is gone."""
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        return bool(poll.poll(limit_ms))

    def answer(self):
        """Waits for the batch, or LoadingFailed, of the first task that was asked."""
        while not self.has_answered(_LOOK_MS):
            if self._is_gone():  # and a process that it started has the other end of the link
                raise RuntimeError(self._end())
        try:
            return transport.receive(self._link)
        except (EOFError, ConnectionError):
            raise RuntimeError(self._end()) from None

    def close(self):
        self._link.close()
        if self._pid:
            if not self._is_gone():
                os.kill(self._pid, signal.SIGKILL)
            self._end()

    def _is_gone(self):
        try:
            return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # the script waits for all of its children
            return True

    def _end(self):
        """Waits for it to end, and says how it did."""
        pid, self._pid = self._pid, None
        try:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except ChildProcessError:
            return "A loading process has ended."
        if code >= 0:
            return f"A loading process exited with status {code}."
        if code == -signal.SIGKILL:
            return (
                "A loading process was killed by SIGKILL, as happens when memory runs out: each holds up to "
                f"{_AHEAD_OF_EACH} micro-batches ahead. Indexed(workers=) says how many processes there are."
            )
        return f"A loading process was ended by signal {-code} ({signal.strsignal(-code)})."


def _load(data, task):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # wherever it is done: they change bits
    try:
        with seeded(task.chance), torch.enable_grad():
            return data.load(task.ids)
    finally:
        torch.set_num_threads(threads)


# ---- In a loading process ----


def _run(data, link, parent):
    """Does not return: nothing of the script's own may run here, such as its atexit handlers."""
    status = 1
    try:
        _serve(data, link, parent)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _serve(data, link, parent):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main thread's, which ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    for other in list(_links):
        other.close()
    engines.leave_agent()
    torch.set_num_threads(1)  # OpenMP's other threads were not forked
    try:
        while True:
            transport.send(link, _outcome(data, transport.receive(link)))
    except (EOFError, ConnectionError):
        pass  # the script is gone


def _outcome(data, task):
    try:
        return transport.pack(_load(data, task))
    except BaseException as exception:  # sys.exit, too
        return transport.pack(LoadingFailed(failure(exception), traceback.format_exc()))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
