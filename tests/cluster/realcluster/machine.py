"""A machine: a host in namespaces of its own, made by unshare(1), with init.py as its process 1.

Nothing of it has a name outside of its folder and its control group, so nothing can be left behind by
name: when process 1 dies, the kernel takes the rest.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from realcluster import cgroups
from realcluster.errors import ClusterError, run, wait_for

INIT = pathlib.Path(__file__).with_name("init.py")
BOOT_LIMIT_S = 60.0
SERVICE_LIMIT_S = 60.0
LOG_TAIL_LINES = 15
# Enters the groups named before "--", then becomes what stands after it.
ENTER = 'while [ "$1" != -- ]; do echo $$ >"$1" || exit 1; shift; done; shift; exec "$@"'

Services = dict[str, dict[str, Any]]


def start_time(pid: int) -> int | None:
    """Ticks since boot at which the process began: with its id, its name for life. None: gone."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    words = stat.rsplit(")", 1)[1].split()
    return None if words[0] in "ZX" else int(words[19])


class Machine:
    def __init__(self, folder: pathlib.Path, group: cgroups.Group, name: str, identity: str) -> None:
        self.name, self.folder, self.group, self.identity = name, folder, group, identity
        self.logs, self.disk = folder / "logs", folder / "disk"

    # ---- power ----

    @property
    def pid(self) -> int | None:
        """Process 1, as the host counts. None: without power."""
        try:
            seen = json.loads((self.folder / "machine.json").read_text())
        except FileNotFoundError:
            return None
        return seen["pid"] if start_time(seen["pid"]) == seen["start"] else None

    def is_on(self) -> bool:
        return self.pid is not None

    def switch_on(self, fds: Sequence[int] = ()) -> None:
        """Boots it without services and without a cable. `fds` may be handed on to services."""
        if self.is_on():
            return
        for folder in (self.logs, self.disk):
            folder.mkdir(parents=True, exist_ok=True)
        for name in ("status.json", "machine.json"):
            (self.folder / name).unlink(missing_ok=True)
        self._write("services.json", {})
        self._write("spec.json", {"folder": str(self.folder), "disk": str(self.disk), "hostname": self.name,
                                  "identity": f"{self.identity}.{self.name}"})
        system = self.group.child("system")
        system.create()
        with open(self.logs / "init.log", "ab") as log:
            shell = subprocess.Popen(
                ["sh", "-c", ENTER, "enter", *system.enter_files(), "--",
                 "unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child",
                 "--mount-proc", "--propagation", "private",
                 sys.executable, "-I", "-S", str(INIT), str(self.folder / "spec.json")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=fds, start_new_session=True)
        pid = wait_for(lambda: self._only_child(shell), BOOT_LIMIT_S, f"machine {self.name}")
        self._write("machine.json", {"pid": pid, "start": start_time(pid)})
        wait_for(lambda: (self.folder / "status.json").exists() or self._fail_if_dead(shell), BOOT_LIMIT_S,
                 f"machine {self.name} furnished")

    def power_cut(self) -> None:
        """Everything on it ends at once; its disk stays. Pull its cable first, or its sockets say goodbye."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        self.group.kill()
        self.group.remove()
        (self.folder / "machine.json").unlink(missing_ok=True)

    def freeze(self) -> None:
        self.group.freeze()

    def thaw(self) -> None:
        self.group.thaw()

    # ---- services ----

    def services(self) -> Services:
        return json.loads((self.folder / "services.json").read_text())

    def serve(self, services: Mapping[str, Mapping[str, Any]]) -> None:
        """Adds services, or changes them; returns at once."""
        wanted = self.services()
        for name, service in services.items():
            wanted[name] = {"log": str(self.logs / f"{name}.log"), **service}
        self._write("services.json", wanted)
        self._tell()

    def stop_service(self, name: str, *, kill: bool = False) -> None:
        """Ends a service and keeps it down: SIGTERM first, or SIGKILL as a crash would."""
        wanted = self.services()
        if name not in wanted:
            raise ClusterError(f"{self.name} has no service {name}; it has: {', '.join(wanted)}")
        pid = self.service_pid(name)
        wanted[name]["run"] = False
        self._write("services.json", wanted)
        if kill and pid is not None:
            os.kill(pid, signal.SIGKILL)
        self._tell()
        wait_for(lambda: self.status()[name]["pid"] is None, SERVICE_LIMIT_S, f"{name} of {self.name} ended")

    def start_service(self, name: str) -> None:
        wanted = self.services()
        wanted[name]["run"] = True
        self._write("services.json", wanted)
        self._tell()
        wait_for(lambda: self.status()[name]["pid"] is not None, SERVICE_LIMIT_S,
                 f"{name} of {self.name} started")

    def status(self) -> dict[str, dict[str, Any]]:
        """{service: {pid (as the machine counts), exits, lastExit}}."""
        try:
            return json.loads((self.folder / "status.json").read_text())
        except FileNotFoundError:
            return {}

    def service_pid(self, name: str) -> int | None:
        """As the host counts."""
        inner = self.status().get(name, {}).get("pid")
        if inner is None:
            return None
        for pid in self.group.processes():
            if self._inner_pid(pid) == inner:
                return pid
        return None

    def tails(self) -> str:
        """The ends of all its logs."""
        parts = []
        for log in sorted(self.logs.glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
            parts.append(f"---- {self.name} {log.stem}\n" + "\n".join(lines))
        return "\n".join(parts)

    # ---- inside ----

    def inside(self, *words: object, spaces: str = "mnpui") -> list[str]:
        """The command that runs another one inside: all namespaces, or only those given (n: network)."""
        pid = self.pid
        if pid is None:
            raise ClusterError(f"machine {self.name} is off")
        return ["nsenter", "-t", str(pid), *(f"-{space}" for space in spaces), "--", *map(str, words)]

    def run(self, *words: object, spaces: str = "mnpui", **settings: Any) -> str:
        return run(self.inside(*words, spaces=spaces), **settings).stdout

    def _write(self, name: str, content: object) -> None:
        hidden = self.folder / f"{name}.new"
        hidden.write_text(json.dumps(content, indent=1))
        hidden.rename(self.folder / name)

    def _tell(self) -> None:
        if (pid := self.pid) is not None:
            os.kill(pid, signal.SIGHUP)

    def _only_child(self, shell: subprocess.Popen) -> int | None:
        """Process 1 is the child of unshare, which took the place of the shell."""
        self._fail_if_dead(shell)
        try:
            children = pathlib.Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().split()
        except FileNotFoundError:
            return None
        return int(children[0]) if children else None

    def _fail_if_dead(self, shell: subprocess.Popen) -> bool:
        if shell.poll() is not None:
            raise ClusterError(f"machine {self.name} did not boot:\n{self.tails()}")
        return False

    @staticmethod
    def _inner_pid(pid: int) -> int | None:
        try:
            for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("NSpid:"):
                    return int(line.split()[2]) if len(line.split()) == 3 else None
        except (FileNotFoundError, ProcessLookupError):
            pass
        return None
