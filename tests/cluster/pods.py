"""Small pods of a test, of the cluster's own image."""

from __future__ import annotations

from typing import Any

from realcluster.cluster import Cluster
from realcluster.errors import ClusterError, wait_for
from realcluster.images import PAUSE_IMAGE


def pod(name: str, node: str, *words: str, labels: dict[str, str] | None = None, **container: Any) -> dict:
    """A pod that the "restricted" standard admits, on that node."""
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name, **(labels or {})}},
        "spec": {"nodeName": node, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
                 "enableServiceLinks": False,
                 "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                 "containers": [{"name": "main", "image": PAUSE_IMAGE, "imagePullPolicy": "Never",
                                 "args": list(words),
                                 "securityContext": {"allowPrivilegeEscalation": False,
                                                     "capabilities": {"drop": ["ALL"]}}, **container}]}}


def phase(cluster: Cluster, name: str) -> str:
    found = cluster.kubectl("get", "pod", name, "-o", "jsonpath={.status.phase}", check=False)
    return found.stdout


def wait_phase(cluster: Cluster, name: str, wanted: str, limit_s: float) -> None:
    def came() -> bool:
        now = phase(cluster, name)
        if now == "Failed" and now != wanted:
            raise ClusterError(f"pod {name} failed, and will not be {wanted}")
        return now == wanted

    try:
        wait_for(came, limit_s, f"pod {name} {wanted}", poll_s=0.2)
    except ClusterError as error:
        said = cluster.kubectl("describe", "pod", name, check=False).stdout
        raise ClusterError(f"{error}\n{said}") from None


def ip_of(cluster: Cluster, name: str) -> str:
    return cluster.get("pod", name)["status"]["podIP"]
