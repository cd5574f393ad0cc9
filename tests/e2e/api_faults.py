"""With FAULT_CLASSES=cut,delay (or all) in the environment, the operators of a story reach their API server through
the proxy of tests/fault_proxy, and each test runs under one of these classes: the first under that of number
FAULT_SEED, the others in their order, so that other seeds let other moments meet them. Nobody else is struck:
kubelets, kubectl and the watches of the test speak to the API server itself.

The proxy is a service of the control plane's machine. The pods of the chart find it as they find any API server, by
KUBERNETES_SERVICE_HOST and its port, and log in with their service account.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from realcluster import ROOT, wires
from realcluster.cluster import MASTER, Cluster
from realcluster.errors import ClusterError, wait_for

sys.path.insert(0, str(ROOT / "tests" / "fault_proxy"))

from authority import Authority  # noqa: E402
from catalogue import CLASSES, Trouble  # noqa: E402
from remote import Certificates, Switches, socket_path  # noqa: E402

SERVICE = "fault-proxy"
PORT = 6444
START_LIMIT_S = 30
SEED = int(os.environ.get("FAULT_SEED", "1"))
WATCH_S = 6  # of the operators: a swallowed watch is missed no later
# What the chart is told, so that operators go through the proxy.
VALUES = {"extraEnv": [{"name": "KUBERNETES_SERVICE_HOST", "value": wires.MASTER_ADDRESS},
                       {"name": "KUBERNETES_SERVICE_PORT", "value": str(PORT)}],
          "extraArgs": [f"--watch-seconds={WATCH_S}"]}


def asked() -> list[str]:
    """The classes of this run; none: no proxy."""
    words = os.environ.get("FAULT_CLASSES", "")
    return list(CLASSES) if words == "all" else [name for name in words.split(",") if name]


class ApiFaults(Switches):
    def __init__(self, cluster: Cluster, classes: list[str]) -> None:
        self.classes = {name: CLASSES[name] for name in classes}
        master, plane = cluster.machine(MASTER), cluster.plane
        super().__init__(SERVICE, SEED, socket_path(cluster.folder, SERVICE), master.logs / f"{SERVICE}.jsonl")
        shown = Certificates(Authority.of(plane.pki), cluster.folder / "proxy-pki", [f"IP:{wires.MASTER_ADDRESS}"])
        command = self.command(f"https://127.0.0.1:{wires.API_PORT}", plane.client_ca, plane.admin, shown)
        master.serve({SERVICE: {"command": [*command, "--address", wires.MASTER_ADDRESS, "--port", str(PORT)]}})
        try:
            wait_for(self.socket.exists, START_LIMIT_S, SERVICE)
        except ClusterError as error:
            raise ClusterError(f"{error}\n{master.tails()}") from None

    def stop(self) -> None:
        self.socket.unlink(missing_ok=True)

    @contextmanager
    def during(self, what: str, position: int) -> Iterator[None]:
        name = list(self.classes)[(SEED - 1 + position) % len(self.classes)]
        before = dict(self.state()["done"])
        print(f"{what}: under {name}", flush=True)
        with Trouble([self], self.classes[name]):
            yield
        done = {kind: count - before.get(kind, 0) for kind, count in self.state()["done"].items()}
        print(f"{what}: under {name}, struck {', '.join(f'{k} {n}' for k, n in done.items() if n) or 'nothing'}",
              flush=True)
