"""What still exists of a cluster that is down: nothing, if all is well."""

from __future__ import annotations

import contextlib
import os
import pathlib

from realcluster import cgroups
from realcluster.machine import start_time
from realcluster.state import State


def leftovers(group_id: str) -> list[str]:
    """What still exists of a cluster that is down: processes, control groups, mounts, devices."""
    group = cgroups.Group(group_id)
    found = [f"process {pid}" for pid in group.processes()] if group.exists() else []
    found += [f"control group {folder}" for folder in group.folders() if folder.exists()]
    mine = group_id.removeprefix("rubato-").rsplit("-", 1)[0]
    root = str(State(mine).folder)
    found += [f"mount {line}" for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()
              if f" {root}/" in line]
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                if f"{root}/".encode() in words and start_time(int(entry.name)) is not None:
                    found.append(f"process {entry.name}: {words.decode(errors='replace').replace(chr(0), ' ')}")
    return found
