"""The control plane: the machine `master` with etcd, kube-apiserver, kube-controller-manager,
kube-scheduler, and the door by which the host reaches the API server."""

from __future__ import annotations

import json
import pathlib
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Any

from authority import Authority  # tests/integration
from control_plane import is_api_ready
from realcluster import wires
from realcluster.errors import ClusterError, wait_for
from realcluster.machine import Machine

READY_LIMIT_S = 120.0  # usual: 5 to 8; under full load much more
DOOR = pathlib.Path(__file__).with_name("door.py")
NODE_GRACE_S = 16  # silence until a node is NotReady; Kubernetes' own default is 50
ISSUING = threading.Lock()  # an authority counts its serial numbers in a file
TOLERATION_S = 120  # until pods of a lost node are evicted; the default is 300


class Plane:
    def __init__(self, folder: pathlib.Path, machine: Machine, programs: Mapping[str, str]) -> None:
        self.folder, self.machine, self.programs = folder, machine, programs
        self.pki = folder / "pki"
        self.client_ca = self.pki / "ca.crt"
        self.admin = (self.pki / "admin.crt", self.pki / "admin.key")
        self.kubeconfig = folder / "admin.kubeconfig"

    # ---- certificates ----

    def issue_certificates(self, door_port: int) -> None:
        authority = Authority(self.pki)
        authority.issue("admin", "admin", ["system:masters"])
        authority.issue("kube-apiserver", "kube-apiserver", addresses=[
            "IP:127.0.0.1", f"IP:{wires.MASTER_ADDRESS}", f"IP:{wires.SERVICE_ADDRESS}",
            "DNS:localhost", "DNS:kubernetes", "DNS:kubernetes.default", "DNS:kubernetes.default.svc"])
        authority.issue("kubelet-client", "kube-apiserver-kubelet-client", ["system:masters"])
        authority.key_pair("service-account")
        for name in ("kube-controller-manager", "kube-scheduler", "kube-proxy"):
            authority.issue(name, f"system:{name}")
            self.write_kubeconfig(name, self.folder / f"{name}.kubeconfig")
        self.write_kubeconfig("admin", self.kubeconfig, f"https://127.0.0.1:{door_port}")

    def issue_node(self, name: str, address: str) -> pathlib.Path:
        """What a kubelet is, as client and as server; returns its kubeconfig."""
        with ISSUING:
            Authority.of(self.pki).issue(name, f"system:node:{name}", ["system:nodes"],
                                         [f"IP:{address}", f"DNS:{name}"])
        path = self.folder / f"{name}.kubeconfig"
        self.write_kubeconfig(name, path)
        return path

    def write_kubeconfig(self, user: str, path: pathlib.Path, url: str | None = None) -> None:
        cluster = {"server": url or f"https://{wires.MASTER_ADDRESS}:{wires.API_PORT}",
                   "certificate-authority": str(self.client_ca)}
        login = {"client-certificate": str(self.pki / f"{user}.crt"), "client-key": str(self.pki / f"{user}.key")}
        path.write_text(json.dumps({  # JSON is YAML
            "apiVersion": "v1", "kind": "Config", "current-context": "rubato",
            "clusters": [{"name": "rubato", "cluster": cluster}], "users": [{"name": user, "user": login}],
            "contexts": [{"name": "rubato", "context": {"cluster": "rubato", "user": user}}],
        }, indent=1))

    # ---- services ----

    def start(self, door_fd: int) -> None:
        """etcd, the API server and the door; returns at once."""
        self.machine.serve({
            "etcd": {"command": [self.programs["etcd"], *self._etcd_flags()]},
            "kube-apiserver": {"command": [self.programs["kube-apiserver"], *self._api_server_flags()]},
            "door": {"command": [sys.executable, "-I", "-S", str(DOOR), str(door_fd), "127.0.0.1",
                                 str(wires.API_PORT)], "fds": [door_fd]},
        })

    def start_controllers(self) -> None:
        common = ["--bind-address=127.0.0.1", "--leader-elect=false"]
        self.machine.serve({
            "kube-controller-manager": {"command": [
                self.programs["kube-controller-manager"], *common,
                f"--kubeconfig={self.folder}/kube-controller-manager.kubeconfig",
                f"--service-account-private-key-file={self.pki}/service-account.key",
                f"--root-ca-file={self.client_ca}", "--use-service-account-credentials",
                f"--node-monitor-grace-period={NODE_GRACE_S}s", "--node-monitor-period=2s"]},
            "kube-scheduler": {"command": [
                self.programs["kube-scheduler"], *common,
                f"--kubeconfig={self.folder}/kube-scheduler.kubeconfig"]},
        })

    def _etcd_flags(self) -> list[str]:
        client = "http://127.0.0.1:2379"
        return ["--data-dir=/var/lib/etcd", f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}", "--listen-peer-urls=http://127.0.0.1:0",
                "--log-level=warn"]  # with fsync: a killed etcd must know what it promised

    def _api_server_flags(self) -> list[str]:
        return [
            "--etcd-servers=http://127.0.0.1:2379", "--bind-address=0.0.0.0",
            f"--advertise-address={wires.MASTER_ADDRESS}", f"--secure-port={wires.API_PORT}",
            f"--tls-cert-file={self.pki}/kube-apiserver.crt",
            f"--tls-private-key-file={self.pki}/kube-apiserver.key",
            f"--client-ca-file={self.client_ca}", f"--kubelet-certificate-authority={self.client_ca}",
            f"--kubelet-client-certificate={self.pki}/kubelet-client.crt",
            f"--kubelet-client-key={self.pki}/kubelet-client.key",
            "--kubelet-preferred-address-types=InternalIP", "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction", "--allow-privileged",
            f"--service-cluster-ip-range={wires.SERVICE_NETWORK}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.pki}/service-account.pub",
            f"--service-account-signing-key-file={self.pki}/service-account.key",
            f"--default-not-ready-toleration-seconds={TOLERATION_S}",
            f"--default-unreachable-toleration-seconds={TOLERATION_S}",
        ]

    # ---- readiness ----

    def is_ready(self) -> bool:
        url = json.loads(self.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        return is_api_ready(url, self.client_ca, self.admin)

    def wait_ready(self) -> None:
        try:
            wait_for(self.is_ready, READY_LIMIT_S, "API server ready")
        except ClusterError as error:
            raise ClusterError(f"{error}\n{self.machine.tails()}") from None


def open_door() -> tuple[socket.socket, int]:
    """A listening socket on a free loopback port of the host."""
    door = socket.socket()
    door.bind(("127.0.0.1", 0))
    door.listen(128)
    door.set_inheritable(True)
    return door, door.getsockname()[1]


