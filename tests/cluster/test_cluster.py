"""The tool itself: is this a real cluster, do its disasters do what they say, and is it gone afterwards?"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time

import pytest
from pods import ip_of, phase, pod, wait_phase
from realcluster.cluster import RESOURCE, Cluster
from realcluster.errors import ClusterError, wait_for
from realcluster.leftovers import leftovers
from realcluster.wires import has_netem

START_S = 120
POD_S = 120
NOT_READY_S = 120  # 16 by the flags of the controller-manager
TOOL = pathlib.Path(__file__).with_name("cluster")


@pytest.fixture(scope="module")
def cluster(request):
    made = Cluster(f"test-{os.getpid()}", lambda text: print(text, flush=True))
    try:
        began = time.monotonic()
        made.up(3, slots=2, owner=os.getpid())
        print(f"FIGURE cluster-up-to-ready {time.monotonic() - began:.1f} s")
        group = made.record.id
        yield made
    finally:
        if request.session.testsfailed and made.state.exists():
            print("logs kept in", made.save_logs(made.folder.with_name(f"{made.name}.failed-logs")))
        made.down()
    assert leftovers(group) == []


def condition_ready(cluster: Cluster, node: str) -> str:
    conditions = cluster.get("node", node)["status"]["conditions"]
    return next(c["status"] for c in conditions if c["type"] == "Ready")


def test_nodes_offer_slots(cluster):
    nodes = {n["metadata"]["name"]: n for n in cluster.get("nodes")["items"]}
    assert sorted(nodes) == ["n1", "n2", "n3"]
    for node in nodes.values():
        assert node["status"]["allocatable"][RESOURCE] == "2"
        assert node["status"]["nodeInfo"]["kubeletVersion"].startswith("v1.36")
        assert node["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://")
    assert len({n["status"]["nodeInfo"]["bootID"] for n in nodes.values()}) == 3


def test_pods_reach_each_other(cluster):
    """Across nodes, by address and by Service; logs come."""
    cluster.kubectl("apply", "-f", "-", data={"apiVersion": "v1", "kind": "List", "items": [
        pod("server", "n1", "serve", "8080", "hello"),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "server"},
         "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]}}]})
    wait_phase(cluster, "server", "Running", POD_S)
    service = cluster.get("service", "server")["spec"]["clusterIP"]
    cluster.kubectl("apply", "-f", "-", data={"apiVersion": "v1", "kind": "List", "items": [
        pod("by-address", "n2", "ask", ip_of(cluster, "server"), "8080"),
        pod("by-service", "n3", "ask", service, "80"), pod("same-node", "n1", "ask", service, "80")]})
    for name in ("by-address", "by-service", "same-node"):
        wait_phase(cluster, name, "Succeeded", POD_S)
        assert "answer: hello" in cluster.kubectl("logs", name).stdout
    asked = f"asked by {ip_of(cluster, 'by-address')}"
    wait_for(lambda: asked in cluster.kubectl("logs", "server").stdout, POD_S, "the server to say who asked")


def test_volumes_are_shared(cluster):
    """A claim binds to a folder that all nodes see; two pods of two nodes write there."""
    folder = cluster.volume("common")
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "common"},
             "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}}
    items = [claim]
    for node in ("n1", "n2"):
        writer = pod(f"writer-{node}", node, "fill", f"/data/{node}", "4096",
                     volumeMounts=[{"name": "data", "mountPath": "/data"}])
        writer["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "common"}}]
        items.append(writer)
    cluster.kubectl("apply", "-f", "-", data={"apiVersion": "v1", "kind": "List", "items": items})
    for node in ("n1", "n2"):
        wait_for(lambda: (folder / node).exists() and (folder / node).stat().st_size >= 4096, POD_S,
                 f"file of {node}")


def test_frozen_node_keeps_its_pods(cluster):
    before = cluster.get("pod", "server")["status"]["containerStatuses"][0]["containerID"]
    cluster.freeze("n1")
    try:
        assert cluster.status()["machines"]["n1"]["power"] == "frozen"
        wait_for(lambda: condition_ready(cluster, "n1") == "Unknown", NOT_READY_S, "n1 NotReady", poll_s=0.5)
    finally:
        cluster.thaw("n1")
    wait_for(lambda: condition_ready(cluster, "n1") == "True", NOT_READY_S, "n1 Ready again", poll_s=0.5)
    status = cluster.get("pod", "server")["status"]["containerStatuses"][0]
    assert status["containerID"] == before and status["restartCount"] == 0


def test_cable_cut_and_restored(cluster):
    cluster.kubectl("apply", "-f", "-", data=pod("lonely", "n2", "serve", "8080", "lonely"))
    wait_phase(cluster, "lonely", "Running", POD_S)
    cluster.cut("n2")
    began = time.monotonic()
    wait_for(lambda: condition_ready(cluster, "n2") == "Unknown", NOT_READY_S, "n2 NotReady", poll_s=0.5)
    print(f"FIGURE cable-cut-to-NotReady {time.monotonic() - began:.1f} s")
    assert cluster.kubectl("logs", "lonely", "--request-timeout=3s", check=False).returncode != 0
    cluster.restore("n2")
    wait_for(lambda: condition_ready(cluster, "n2") == "True", NOT_READY_S, "n2 Ready again", poll_s=0.5)
    wait_for(lambda: "serving" in cluster.kubectl("logs", "lonely", check=False).stdout, POD_S, "logs again")


def test_power_cut_and_boot(cluster):
    boot = cluster.get("node", "n3")["status"]["nodeInfo"]["bootID"]
    cluster.kubectl("apply", "-f", "-", data=pod("doomed", "n3", "pause"))
    wait_phase(cluster, "doomed", "Running", POD_S)
    group = cluster.node("n3").machine.group
    cluster.power_cut("n3")
    assert not group.exists()  # with it all its processes
    assert cluster.status()["machines"]["n3"]["power"] == "off"
    wait_for(lambda: condition_ready(cluster, "n3") == "Unknown", NOT_READY_S, "n3 NotReady", poll_s=0.5)
    assert phase(cluster, "doomed") == "Running"  # nobody was told
    cluster.power_on("n3")
    assert cluster.get("node", "n3")["status"]["nodeInfo"]["bootID"] != boot


def test_node_added_and_removed(cluster):
    added = cluster.add_node(slots=4)
    assert added.name == "n4"
    assert cluster.get("node", "n4")["status"]["allocatable"][RESOURCE] == "4"
    cluster.kubectl("apply", "-f", "-", data=pod("newcomer", "n4", "ask", ip_of(cluster, "server"), "8080"))
    wait_phase(cluster, "newcomer", "Succeeded", POD_S)
    cluster.remove_node("n4")
    assert "n4" not in cluster.status()["machines"]


def test_disturbed_cable(cluster):
    machine = cluster.node("n1").machine
    other = cluster.node("n2").address

    def lost() -> int:
        """Of ten connections to a port where nobody listens: refused is answered, anything else is lost."""
        script = ("import socket,sys\nlost=0\nfor _ in range(10):\n  s=socket.socket();s.settimeout(0.3)\n"
                  f"  try: s.connect(('{other}', 9))\n  except ConnectionRefusedError: pass\n"
                  "  except OSError: lost+=1\nprint(lost)")
        return int(machine.run(sys.executable, "-I", "-c", script, spaces="n"))

    def nothing_is_lost() -> None:  # a busy machine may answer late
        wait_for(lambda: lost() == 0, NOT_READY_S, "ten answers in a row")

    nothing_is_lost()
    cluster.disturb("n1", loss_percent=60)
    assert lost() > 0
    cluster.disturb("n1")
    nothing_is_lost()
    if has_netem():
        cluster.disturb("n1", delay_ms=150)
        began = time.monotonic()
        lost()
        assert time.monotonic() - began > 10 * 0.3 * 0.5
        cluster.disturb("n1")
    else:
        with pytest.raises(ClusterError, match="netem"):
            cluster.disturb("n1", delay_ms=150)


def test_control_plane_comes_back(cluster):
    cluster.stop_service("kube-apiserver")
    assert cluster.kubectl("get", "nodes", check=False).returncode != 0
    cluster.start_service("kube-apiserver")
    cluster.kubectl("create", "configmap", "promise", "--from-literal=kept=yes")
    cluster.stop_service("etcd", kill=True)
    cluster.start_service("etcd")
    assert cluster.get("configmap", "promise")["data"] == {"kept": "yes"}
    wait_for(lambda: condition_ready(cluster, "n1") == "True", NOT_READY_S, "n1 still Ready")


def test_second_up_changes_nothing(cluster):
    before = cluster.status()
    cluster.up(1, slots=1)
    assert cluster.status() == before


def test_owner_dies_cluster_goes(tmp_path):
    """Two clusters at once; the second one's owner is killed in the middle of its life, while a node is frozen."""
    name = f"orphan-{os.getpid()}"
    owner = subprocess.Popen(["sleep", "600"])
    try:
        made = subprocess.run([TOOL, "--name", name, "up", "--nodes", "1", "--owner", str(owner.pid)],
                              capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        other = Cluster(name)
        group = other.record.id
        assert made.stdout == f"export KUBECONFIG={other.plane.kubeconfig}\n"
        other.freeze("n1")
    finally:
        owner.kill()
        owner.wait()
    wait_for(lambda: not other.state.exists(), START_S, "the orphan to go")
    assert leftovers(group) == []
