"""A node: containerd, kubelet and kube-proxy on a machine, at the paths where a host has them; its disk and
its /run are its own."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Mapping

from realcluster import wires
from realcluster.cgroups import version as cgroup_version
from realcluster.errors import run, wait_for
from realcluster.images import PAUSE_IMAGE
from realcluster.machine import Machine

RUNTIME_LIMIT_S = 60.0
IMPORT_LIMIT_S = 240.0
SOCKET = "/run/containerd/containerd.sock"
CNI_PROGRAMS = "/usr/lib/cni"
LEASE_S = 20  # renewed each quarter of it
CAP_SYS_RESOURCE = 24

CONTAINERD = """\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{socket}"
[plugins.'io.containerd.internal.v1.opt']
  path = "/var/lib/containerd/opt"
[plugins.'io.containerd.nri.v1.nri']
  disable = true
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "{snapshotter}"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{pause}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = {restrict}
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{cni_programs}"]
    conf_dir = "{cni}"
"""


def may_raise_priority() -> bool:
    """Without CAP_SYS_RESOURCE runc cannot give a sandbox its oom_score_adj of -998."""
    status = pathlib.Path("/proc/self/status").read_text()
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    return bool(found and int(found[1], 16) >> CAP_SYS_RESOURCE & 1)


class Node:
    """`number` gives it its addresses; a number belongs to one node for the life of the cluster."""

    def __init__(self, machine: Machine, number: int, programs: Mapping[str, str], folder: pathlib.Path,
                 snapshotter: str) -> None:
        self.machine, self.number, self.programs = machine, number, programs
        self.folder, self.snapshotter = folder, snapshotter
        self.address = wires.node_address(number)

    @property
    def name(self) -> str:
        return self.machine.name

    # ---- start, in three steps: the runtime needs no API server ----

    def start_runtime(self) -> None:
        cni = self.machine.folder / "cni"
        cni.mkdir(exist_ok=True)
        (cni / "10-rubato.conflist").write_text(json.dumps(self._network()))
        config = self.machine.folder / "containerd.toml"
        config.write_text(CONTAINERD.format(
            socket=SOCKET, snapshotter=self.snapshotter, pause=PAUSE_IMAGE, cni_programs=CNI_PROGRAMS, cni=cni,
            restrict="false" if may_raise_priority() else "true"))
        path = f"{pathlib.Path(self.programs['containerd']).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
        self.machine.serve({"containerd": {"command": [self.programs["containerd"], "-c", str(config)],
                                           "env": {"PATH": path}}})
        wait_for(lambda: run(self._ctr("version"), check=False).returncode == 0, RUNTIME_LIMIT_S,
                 f"containerd of {self.name}")

    def load(self, archive: pathlib.Path) -> None:
        """Imports a docker-archive."""
        with open(archive, "rb") as file:
            run(self._ctr("images", "import", "--local", "--snapshotter", self.snapshotter, "-"),
                stdin=file, limit_s=IMPORT_LIMIT_S)

    def tag(self, image: str, name: str) -> None:
        run(self._ctr("images", "tag", image, name))

    def images(self) -> list[str]:
        return run(self._ctr("images", "ls", "-q")).stdout.split()

    def start_kubelet(self, kubeconfig: pathlib.Path, pki: pathlib.Path) -> None:
        config = self.machine.folder / "kubelet.json"
        config.write_text(json.dumps(self._kubelet(pki), indent=1))
        self.machine.serve({
            "kubelet": {"command": [self.programs["kubelet"], f"--config={config}", f"--kubeconfig={kubeconfig}",
                                    f"--node-ip={self.address}", "--cert-dir=/var/lib/kubelet/pki"]},
            "kube-proxy": {"command": [self.programs["kube-proxy"],
                                       f"--kubeconfig={self.folder}/kube-proxy.kubeconfig",
                                       "--proxy-mode=nftables", "--conntrack-max-per-core=0",
                                       "--healthz-bind-address=127.0.0.1:10256",
                                       "--metrics-bind-address=127.0.0.1:10249"]}})

    # ---- what it is made of ----

    def _ctr(self, *words: object) -> list[str]:
        return self.machine.inside(self.programs["ctr"], "-a", SOCKET, "-n", "k8s.io", *words)

    def _network(self) -> dict:
        """Pods are routed, not bridged: no bridge-netfilter needed for Services."""
        ipam = {"type": "host-local", "dataDir": "/run/cni-ipam", "routes": [{"dst": "0.0.0.0/0"}],
                "ranges": [[{"subnet": wires.pod_network(self.number)}]]}
        return {"cniVersion": "1.0.0", "name": "rubato",
                "plugins": [{"type": "ptp", "ipMasq": False, "ipam": ipam}]}

    def _kubelet(self, pki: pathlib.Path) -> dict:
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True},
                               "x509": {"clientCAFile": str(pki / "ca.crt")}},
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki / f"{self.name}.crt"), "tlsPrivateKeyFile": str(pki / f"{self.name}.key"),
            "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{self.machine.group.path}",
            "enforceNodeAllocatable": ["pods"], "containerRuntimeEndpoint": f"unix://{SOCKET}",
            "volumePluginDir": "/var/lib/kubelet/volume-plugins", "failSwapOn": False, "resolvConf": "",
            "nodeStatusUpdateFrequency": "4s", "volumeStatsAggPeriod": "5s", "nodeLeaseDurationSeconds": LEASE_S,
            # The disk is shared with the rest of the machine: its fullness is not this node's affair.
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
        }
        if cgroup_version() == 1:
            config["failCgroupV1"] = False
        return config


def supports_overlay(folder: pathlib.Path) -> bool:
    """Can containers' layers lie in this folder as overlays? Else they are copied."""
    parts = {name: folder / f".overlay-{os.getpid()}" / name for name in ("lower", "upper", "work", "merged")}
    for part in parts.values():
        part.mkdir(parents=True, exist_ok=True)
    words = (f"mount -t overlay overlay -o lowerdir={parts['lower']},upperdir={parts['upper']},"
             f"workdir={parts['work']} {parts['merged']}")
    done = run(["unshare", "--mount", "sh", "-c", words], check=False)
    run(["rm", "-rf", parts["lower"].parent])
    return done.returncode == 0
