"""Can this machine run a cluster? What is missing, one sentence each, with what mends it."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

from realcluster import ROOT, cgroups
from realcluster.errors import ClusterError, run

PACKAGES = {"runc": "runc", "nft": "nftables", "ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux",
            "openssl": "openssl", "cc": "gcc", "conntrack": "conntrack"}
SPACE_NEEDED_GIB = 5
BUILT = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet",
         "kube-proxy", "containerd", "containerd-shim-runc-v2", "ctr")


def find_programs() -> dict[str, str]:
    """{name: path} of what scripts/build-tools made."""
    done = subprocess.run([ROOT / "scripts" / "build-tools", "--print", "cluster"], capture_output=True, text=True)
    if done.returncode != 0:
        raise ClusterError("the programs of Kubernetes are not built: run scripts/setup cluster")
    return {name: os.path.join(done.stdout.strip(), name) for name in BUILT}


def unable() -> list[str]:
    """What no set-up can mend: rights and kernel. Empty: a cluster can run here once it is set up."""
    if os.geteuid() != 0:
        return ["needs root"]
    found = cgroups.problems()
    tries = {
        "namespaces": ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--mount-proc", "true"],
        "veth and bridge devices": ["unshare", "--net", "sh", "-c",
                                    "ip link add name v0 type veth peer name v1 && ip link add name b0 type bridge"],
        "nftables": ["unshare", "--net", "sh", "-c",
                     "command -v nft >/dev/null || exit 0; nft add table inet t && nft add chain inet t c "
                     "'{ type nat hook output priority 0; }'"],
    }
    for what, words in tries.items():
        done = run(words, check=False)
        if done.returncode != 0:
            found.append(f"cannot make {what}: {(done.stderr or done.stdout).strip()}")
    if not found:
        found += _groups_unusable()
    return found


def _groups_unusable() -> list[str]:
    group = cgroups.Group(f"rubato-probe-{os.getpid()}")
    try:
        group.child("system").create()
    except (OSError, ClusterError) as error:
        return [f"cannot make control groups: {error}"]
    finally:
        group.remove()
    return []


def not_set_up() -> list[str]:
    """What scripts/setup cluster brings."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    found = [f"{program} is missing (package {package}): run scripts/setup cluster"
             for program, package in PACKAGES.items() if not shutil.which(program, path=path)]
    if not pathlib.Path("/usr/lib/cni/ptp").exists():
        found.append("CNI plugins are missing (package containernetworking-plugins): run scripts/setup cluster")
    try:
        find_programs()
    except ClusterError as error:
        found.append(str(error))
    return found


def short_of() -> list[str]:
    from realcluster.state import state_root
    folder = state_root()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free >> 30
    return [f"{folder} has {free} GiB free; {SPACE_NEEDED_GIB} are needed"] if free < SPACE_NEEDED_GIB else []
