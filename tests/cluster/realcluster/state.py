"""What a cluster writes down about itself, so that another command, or one after a crash, can go on.

    ROOT/NAME/cluster.json       the record
    ROOT/NAME/pki, *.kubeconfig  who may speak to it
    ROOT/NAME/shared             volumes, outside of every node's disk
    ROOT/NAME/images             archives that new nodes get too
    ROOT/NAME/machines/M/        disk, logs, services of machine M

ROOT is $RUBATO_CLUSTERS, else /var/tmp/rubato-clusters: on a disk, and not below what machines have of
their own (/run, /var/lib, /var/log).
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import re
import secrets
from collections.abc import Iterator

from realcluster.errors import ClusterError

DEFAULT_NAME = "rubato"
NAME_RULE = re.compile(r"[a-z][a-z0-9-]{0,19}")


def state_root() -> pathlib.Path:
    root = pathlib.Path(os.environ.get("RUBATO_CLUSTERS", "/var/tmp/rubato-clusters")).absolute()
    for hidden in ("/run", "/var/lib", "/var/log", "/proc", "/sys"):
        if root.is_relative_to(hidden):
            raise ClusterError(f"RUBATO_CLUSTERS={root}: machines have their own {hidden}; choose another folder")
    return root


def cluster_names() -> list[str]:
    return sorted(path.parent.name for path in state_root().glob("*/cluster.json"))


@dataclasses.dataclass
class Record:
    name: str
    id: str  # of its control group: unique, though two roots may have the same name
    programs: dict[str, str] = dataclasses.field(default_factory=dict)
    snapshotter: str = "native"
    door_port: int = 0
    next_number: int = 1
    nodes: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)  # name: {number, slots}
    keeper: dict[str, int] = dataclasses.field(default_factory=dict)  # {pid, start}


class State:
    def __init__(self, name: str) -> None:
        if not NAME_RULE.fullmatch(name):
            raise ClusterError(f"name '{name}': up to 20 lower-case letters, digits and '-', a letter first")
        self.name, self.folder = name, state_root() / name
        self.shared, self.images = self.folder / "shared", self.folder / "images"

    def exists(self) -> bool:
        return (self.folder / "cluster.json").exists()

    def create(self) -> Record:
        self.folder.mkdir(parents=True, exist_ok=True)
        record = Record(self.name, f"rubato-{self.name}-{secrets.token_hex(3)}")
        self.save(record)
        return record

    def load(self) -> Record:
        try:
            return Record(**json.loads((self.folder / "cluster.json").read_text()))
        except FileNotFoundError:
            others = ", ".join(cluster_names()) or "none"
            raise ClusterError(f"no cluster '{self.name}' (there are: {others})") from None

    def save(self, record: Record) -> None:
        hidden = self.folder / "cluster.json.new"
        hidden.write_text(json.dumps(dataclasses.asdict(record), indent=1))
        hidden.rename(self.folder / "cluster.json")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One change at a time. The lock goes with the process that holds it."""
        root = state_root()
        root.mkdir(parents=True, exist_ok=True)
        with open(root / f".{self.name}.lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
