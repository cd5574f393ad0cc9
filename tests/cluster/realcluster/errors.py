"""What goes wrong, and the two things that everything here does: run a program, wait for a condition."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TypeVar

POLL_S = 0.05
RUN_LIMIT_S = 60.0
# A slow machine (an emulated one, uml/README.md) gets every limit so many times.
PATIENCE = float(os.environ.get("RUBATO_CLUSTER_PATIENCE", "1"))

T = TypeVar("T")


class ClusterError(Exception):
    """Said to a person as it is: what, and where to look."""


def run(words: Sequence[object], *, data: bytes | None = None, stdin: IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None, check: bool = True,
        limit_s: float = RUN_LIMIT_S) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, with `data` or the file `stdin` as its input. With check, a failure raises
    with what it said."""
    command, limit_s = [str(word) for word in words], limit_s * PATIENCE
    source = {"input": data} if data is not None else {"stdin": stdin or subprocess.DEVNULL}
    try:
        done = subprocess.run(command, **source, env=environment, capture_output=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{shlex.join(command)}: not done within {limit_s:.0f} s") from None
    except FileNotFoundError:
        raise ClusterError(f"{command[0]}: not installed; run scripts/setup cluster") from None
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    if check and done.returncode != 0:
        raise ClusterError(f"{shlex.join(command)}: {(err or out).strip()}")
    return subprocess.CompletedProcess(command, done.returncode, out, err)


def wait_for(condition: Callable[[], T], limit_s: float, what: str, poll_s: float = POLL_S) -> T:
    """Polls until condition() is true and returns what it returned; raises after limit_s seconds."""
    limit_s *= PATIENCE
    deadline = time.monotonic() + limit_s
    while True:
        if found := condition():
            return found
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not within {limit_s:.0f} s")
        time.sleep(poll_s)
