"""Control groups of a cluster, on cgroup v1 and v2: one folder per machine, below one per cluster.

A machine's own processes (init, kubelet, containerd, shims) are in MACHINE/system, its pods in
MACHINE/kubepods, which kubelet makes. So one write freezes all of a machine, and one look finds whatever
is left of it.
"""

from __future__ import annotations

import errno
import functools
import os
import pathlib
import signal
import time
from collections.abc import Iterator

from realcluster.errors import PATIENCE, ClusterError, wait_for

V2_ROOT = pathlib.Path("/sys/fs/cgroup")
V2_CONTROLLERS = ("cpuset", "cpu", "memory", "pids", "io", "hugetlb")
V2_NEEDED = ("cpu", "memory", "pids")  # a kernel for one processor has no cpuset, and kubelet does without
V1_NEEDED = ("cpu", "cpuacct", "cpuset", "memory", "pids", "freezer", "devices")
FREEZE_LIMIT_S = 60.0
REMOVE_LIMIT_S = 60.0 * PATIENCE


@functools.cache
def version() -> int:
    return 2 if (V2_ROOT / "cgroup.controllers").exists() else 1


@functools.cache
def hierarchies() -> tuple[pathlib.Path, ...]:
    """Where the hierarchies are mounted: one with v2, one per controller (and named ones) with v1."""
    if version() == 2:
        return (V2_ROOT,)
    found = []
    for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            found.append(pathlib.Path(where))
    return tuple(found)


@functools.cache
def _v1(controller: str) -> pathlib.Path:
    for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup" and controller in options.split(","):
            return pathlib.Path(where)
    raise ClusterError(f"cgroup v1 controller {controller} is not mounted")


def problems() -> list[str]:
    """What keeps a kubelet from running here, one sentence each."""
    if version() == 2:
        have = (V2_ROOT / "cgroup.controllers").read_text().split()
        missing = [c for c in V2_NEEDED if c not in have]
        return [f"cgroup v2 controllers not available: {' '.join(missing)}"] if missing else []
    missing = []
    for controller in V1_NEEDED:
        try:
            _v1(controller)
        except ClusterError:
            missing.append(controller)
    return [f"cgroup v1 controllers not mounted: {' '.join(missing)}"] if missing else []


class Group:
    """One group in every hierarchy, by its path below the roots (without a leading slash)."""

    def __init__(self, path: str) -> None:
        self.path = path

    def child(self, name: str) -> Group:
        return Group(f"{self.path}/{name}")

    def folders(self) -> list[pathlib.Path]:
        return [root / self.path for root in hierarchies()]

    def create(self) -> None:
        """Makes it and all groups above it, ready for processes below."""
        for root in hierarchies():
            above = root
            for part in self.path.split("/"):
                self._prepare_parent(above)
                here = above / part
                here.mkdir(exist_ok=True)
                self._copy_cpuset(above, here)
                above = here

    @staticmethod
    def _prepare_parent(folder: pathlib.Path) -> None:
        """v2: what is below may use the controllers."""
        control = folder / "cgroup.subtree_control"
        if version() == 1 or not control.exists():
            return
        have = (folder / "cgroup.controllers").read_text().split()
        for controller in V2_CONTROLLERS:
            if controller in have and controller not in control.read_text().split():
                try:
                    control.write_text(f"+{controller}")
                except OSError as error:
                    raise ClusterError(f"{control}: cannot enable {controller}: {error.strerror}; processes "
                                       "sit in that group: run inside a group of their own") from None

    @staticmethod
    def _copy_cpuset(above: pathlib.Path, here: pathlib.Path) -> None:
        """v1: a new cpuset is empty, and nothing can enter it."""
        for name in ("cpuset.cpus", "cpuset.mems"):
            file = here / name
            if version() == 1 and file.exists() and not file.read_text().strip():
                file.write_text((above / name).read_text())

    def enter_files(self) -> list[str]:
        """Whoever writes its process id into all of these is inside."""
        return [str(folder / "cgroup.procs") for folder in self.folders()]

    def processes(self) -> set[int]:
        found: set[int] = set()
        for folder in self.folders():
            for here in _bottom_up(folder):  # groups go while this looks
                try:
                    found.update(int(line) for line in (here / "cgroup.procs").read_text().split())
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
                        raise
        return found

    def freeze(self) -> None:
        """Everything in it stops where it is, at once; nothing closes, nothing answers."""
        if version() == 2:
            (V2_ROOT / self.path / "cgroup.freeze").write_text("1")
            events = V2_ROOT / self.path / "cgroup.events"
            wait_for(lambda: "frozen 1" in events.read_text(), FREEZE_LIMIT_S, f"{self.path} frozen")
            return
        state = _v1("freezer") / self.path / "freezer.state"
        state.write_text("FROZEN")
        wait_for(lambda: state.read_text().strip() == "FROZEN", FREEZE_LIMIT_S, f"{self.path} frozen")

    def thaw(self) -> None:
        root, name, word = _thawing()
        if (root / self.path / name).exists():
            (root / self.path / name).write_text(word)

    def _thaw_with_all_below(self) -> None:
        """A group that was frozen by itself stays so when the one above it thaws."""
        root, name, word = _thawing()
        for here in _bottom_up(root / self.path):
            try:
                (here / name).write_text(word)
            except OSError as error:  # groups go while this looks
                if error.errno not in (errno.ENOENT, errno.ENODEV):
                    raise

    def is_frozen(self) -> bool:
        try:
            if version() == 2:
                return (V2_ROOT / self.path / "cgroup.freeze").read_text().strip() == "1"
            return (_v1("freezer") / self.path / "freezer.state").read_text().strip() != "THAWED"
        except FileNotFoundError:
            return False

    def kill(self) -> None:
        """SIGKILL to all that is in it, until nothing is; frozen processes die once thawed."""
        deadline = time.monotonic() + REMOVE_LIMIT_S
        while victims := self.processes() - {os.getpid()}:
            for pid in victims:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self._thaw_with_all_below()
            if time.monotonic() > deadline:
                raise ClusterError(f"processes of {self.path} do not die: {sorted(victims)}")
            time.sleep(0.02)

    def remove(self) -> None:
        """Removes it with all below. Nothing may be inside."""
        deadline = time.monotonic() + REMOVE_LIMIT_S
        for folder in self.folders():
            while folder.exists():
                try:
                    for below in _bottom_up(folder):
                        below.rmdir()
                except FileNotFoundError:
                    continue
                except OSError as error:  # its last process is still being buried
                    if error.errno != errno.EBUSY or time.monotonic() > deadline:
                        raise ClusterError(f"{folder}: {error.strerror}") from None
                    time.sleep(0.05)

    def exists(self) -> bool:
        return any(folder.exists() for folder in self.folders())


def _thawing() -> tuple[pathlib.Path, str, str]:
    """Where the groups are that freeze, and what is written into which file of one to thaw it."""
    if version() == 2:
        return V2_ROOT, "cgroup.freeze", "0"
    return _v1("freezer"), "freezer.state", "THAWED"


def _bottom_up(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    for here, _, _ in os.walk(folder, topdown=False):
        yield pathlib.Path(here)
