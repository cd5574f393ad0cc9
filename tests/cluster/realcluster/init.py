"""Process 1 of a machine: a host, in mount, network, process, host name and IPC namespaces of its own.

Its kernel objects live as long as it does. SIGKILL of this one process is a power cut: the kernel kills
all others of the namespace, and with the last of them go mounts, network and containers.

It runs the services that services.json names, starts again what ends (after a second, as an ordinary
service manager would), adopts and reaps orphans, and writes what it sees to status.json. SIGHUP: read
services.json again. Standard library only; it holds some 10 MB.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import uuid

RESTART_DELAY_S = 1.0
STOP_LIMIT_S = 5.0  # then SIGKILL: an API server waits long for open watches
TICK_S = 0.5
SIGNALS = {signal.SIGHUP, signal.SIGCHLD, signal.SIGTERM}


def mount(*words: object) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


def furnish(spec: dict) -> None:
    """A disk and a memory of its own: what a host has that its neighbours do not see."""
    mount("--make-rshared", "/")  # kubelet shares mounts with containers; nothing leaves this machine
    disk = pathlib.Path(spec["disk"])
    for part in ("lib", "log"):
        (disk / part).mkdir(parents=True, exist_ok=True)
        mount("--bind", disk / part, f"/var/{part}")
    mount("-t", "tmpfs", "-o", "mode=755,size=64m", "run", "/run")
    own = {"/proc/sys/kernel/random/boot_id": str(uuid.uuid4()),  # a power cut is a reboot
           "/etc/machine-id": uuid.uuid5(uuid.NAMESPACE_DNS, spec["identity"]).hex}
    for path, text in own.items():
        if os.path.exists(path):
            copy = pathlib.Path("/run") / path.rsplit("/", 1)[1]
            copy.write_text(text + "\n")
            mount("--bind", copy, path)
    socket.sethostname(spec["hostname"])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


class Service:
    def __init__(self, name: str) -> None:
        self.name = name
        self.child: subprocess.Popen | None = None
        self.wanted: dict | None = None
        self.exits = 0
        self.last_exit: int | None = None
        self.not_before = 0.0
        self.kill_at: float | None = None

    def is_running(self) -> bool:
        return self.child is not None

    def start(self) -> None:
        assert self.wanted is not None
        environment = {**os.environ, **self.wanted.get("env", {})}
        with open(self.wanted["log"], "ab") as log:
            self.child = subprocess.Popen(
                self.wanted["command"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                pass_fds=self.wanted.get("fds", ()), start_new_session=True,
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS))

    def ended(self, status: int) -> None:
        self.child, self.kill_at = None, None
        self.exits, self.last_exit = self.exits + 1, os.waitstatus_to_exitcode(status)
        self.not_before = time.monotonic() + RESTART_DELAY_S

    def step(self, wanted: dict | None, now: float) -> None:
        """One look: starts, stops or leaves it."""
        self.wanted = wanted
        runs = wanted is not None and wanted.get("run", True)
        if runs and self.child is None and now >= self.not_before:
            self.start()
        elif not runs and self.child is not None:
            if self.kill_at is None:
                self.kill_at = now + STOP_LIMIT_S
                self.child.send_signal(signal.SIGTERM)
            elif now >= self.kill_at:
                self.child.kill()
        if not runs:
            self.not_before = 0.0


class Init:
    def __init__(self, spec: dict) -> None:
        self.folder = pathlib.Path(spec["folder"])
        self.services: dict[str, Service] = {}
        self.written = ""

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for service in self.services.values():
                if service.child is not None and service.child.pid == pid:
                    service.child.returncode = os.waitstatus_to_exitcode(status)
                    service.ended(status)

    def look(self) -> None:
        wanted = json.loads((self.folder / "services.json").read_text())
        now = time.monotonic()
        for name in {**self.services, **wanted}:
            self.services.setdefault(name, Service(name)).step(wanted.get(name), now)

    def report(self) -> None:
        text = json.dumps({name: {"pid": s.child.pid if s.child else None, "exits": s.exits,
                                  "lastExit": s.last_exit}
                           for name, s in self.services.items()})
        if text == self.written:
            return
        hidden = self.folder / "status.json.new"
        hidden.write_text(text)
        hidden.rename(self.folder / "status.json")
        self.written = text

    def run(self) -> None:
        while True:
            self.reap()
            self.look()
            self.report()
            seen = signal.sigtimedwait(SIGNALS, TICK_S)
            if seen is not None and seen.si_signo == signal.SIGTERM:
                return  # the kernel ends everybody else


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    spec = json.loads(pathlib.Path(sys.argv[1]).read_text())
    furnish(spec)
    Init(spec).run()


if __name__ == "__main__":
    main()
