"""The same kubectl commands against a real kube-apiserver and against rubato-apiserver: what a person sees
must be the same, after ages, uids, versions and times are blanked."""

import concurrent.futures
import json
import os
import re
import subprocess

import pytest

from control_plane import ControlPlane, wait_until
from fake_kubelet import FakeKubelet
from local_server import LocalServer

LIMIT_S = 120
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.dev"},
    "spec": {
        "group": "example.dev", "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wg"]},
        "versions": [{
            "name": "v1", "served": True, "storage": True,
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
                                                     "statusReplicasPath": ".status.replicas"}},
            "additionalPrinterColumns": [
                {"name": "Size", "type": "string", "jsonPath": ".spec.size"},
                {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
                {"name": "Ready", "type": "string",
                 "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"},
                {"name": "Image", "type": "string", "jsonPath": ".spec.image", "priority": 1},
                {"name": "Started", "type": "date", "jsonPath": ".status.started"},
                {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}],
            "schema": {"openAPIV3Schema": {
                "type": "object", "description": "A widget.", "required": ["spec"],
                "properties": {
                    "spec": {"type": "object", "description": "What is wanted.", "required": ["image"],
                             "properties": {
                                 "image": {"type": "string", "minLength": 1},
                                 "size": {"type": "string", "enum": ["small", "large"],
                                          "description": "How big."},
                                 "replicas": {"type": "integer", "minimum": 0, "maximum": 10,
                                              "default": 1}}},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}}}]}}

WIDGET = """
apiVersion: example.dev/v1
kind: Widget
metadata: {name: w1, labels: {app: a}}
spec: {image: "img:1", size: small}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: p1, labels: {app: a}}
spec:
  containers:
  - {name: main, image: "x:1", resources: {limits: {cpu: 100m, memory: 16Mi}}}
"""
EVENT = """
apiVersion: v1
kind: Event
metadata: {name: e1}
involvedObject: {kind: Widget, apiVersion: example.dev/v1, name: w1, namespace: default}
reason: Happened
message: something happened
type: Normal
source: {component: suite}
firstTimestamp: "2026-01-01T00:00:00Z"
lastTimestamp: "2026-01-01T00:00:00Z"
count: 2
"""
NODE = """
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {node-role.kubernetes.io/worker: ""}}
"""


def manifest(**changes):
    words = WIDGET
    for old, new in changes.items():
        words = words.replace(old, new)
    return words


# (words after kubectl, standard input)
STORY = [
    (["apply", "-f", "-"], WIDGET),
    (["apply", "-f", "-"], WIDGET),
    (["get", "wg"], None),
    (["get", "widgets.example.dev", "w1", "-o", "wide"], None),
    (["get", "wg", "-A"], None),
    (["get", "wg", "--show-labels"], None),
    (["get", "wg", "-o", "name"], None),
    (["get", "wg", "w1", "-o", "yaml"], None),
    (["get", "wg", "w1", "-o", "jsonpath={.spec.size}"], None),
    (["get", "wg", "--sort-by=.spec.replicas"], None),
    (["get", "wg", "-l", "app=b"], None),
    (["get", "wg", "w9"], None),
    (["get", "gadgets"], None),
    (["describe", "wg", "w1"], None),
    (["explain", "wg.spec"], None),
    (["explain", "wg.spec.size"], None),
    (["apply", "-f", "-"], manifest(small="large")),
    (["apply", "--server-side", "-f", "-"],
     WIDGET.replace("w1", "w2")),
    (["create", "-f", "-"], WIDGET),
    (["apply", "-f", "-"], manifest(small="huge")),
    (["apply", "-f", "-"], manifest(size="sise")),
    (["apply", "-f", "-"], WIDGET.replace("w1", "W_1")),
    (["apply", "-f", "-"], WIDGET.replace('image: "img:1", ', "")),
    (["create", "-f", "-"], WIDGET.replace("w1", "w3").replace("size: small", "replicas: 99, size: huge")),
    (["apply", "-f", "-", "--dry-run=server"], WIDGET.replace("w1", "w4")),
    (["get", "wg", "w4"], None),
    (["patch", "wg", "w1", "--type=merge", "-p", '{"spec":{"replicas":2}}'], None),
    (["patch", "wg", "w1", "--type=merge", "-p", '{"spec":{"replicas":2}}'], None),
    (["patch", "wg", "w1", "--type=json", "-p",
      '[{"op":"replace","path":"/spec/replicas","value":3}]'], None),
    (["patch", "wg", "w1", "--type=json", "-p",
      '[{"op":"test","path":"/spec/replicas","value":7}]'], None),
    (["patch", "wg", "w1", "-p", '{"spec":{"replicas":2}}'], None),
    (["patch", "wg", "w1", "--subresource=status", "--type=merge", "-p",
      '{"status":{"replicas":3,"conditions":[{"type":"Ready","status":"True"}],'
      '"started":"2026-01-01T00:00:00Z"}}'], None),
    (["get", "wg", "w1"], None),
    (["get", "wg", "w1", "--subresource=scale"], None),
    (["wait", "wg/w1", "--for=condition=Ready", "--timeout=60s"], None),
    (["wait", "wg/w1", "--for=jsonpath={.spec.size}=large", "--timeout=60s"], None),
    (["wait", "wg/w1", "--for=condition=Never", "--timeout=15s"], None),  # enough to see the widget
    (["wait", "wg/w9", "--for=condition=Ready", "--timeout=15s"], None),
    (["scale", "wg", "w1", "--replicas=4"], None),
    (["scale", "wg", "w1", "--replicas=40"], None),
    (["label", "wg", "w1", "tier=web"], None),
    (["label", "wg", "w1", "tier=db"], None),
    (["label", "wg", "w1", "tier-"], None),
    (["annotate", "wg", "w1", "note=x"], None),
    (["apply", "-f", "-"], EVENT),
    (["get", "events"], None),
    (["get", "events", "-o", "wide"], None),
    (["events", "--for", "wg/w1"], None),
    (["describe", "wg", "w1"], None),
    (["create", "configmap", "c1", "--from-literal=k=v"], None),
    (["get", "cm", "c1"], None),
    (["apply", "-f", "-"], "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c2}\ndata: {a: b}\n"),
    (["apply", "-f", "-"], "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c2}\ndata: {a: c, d: e}\n"),
    (["get", "cm", "c2", "-o", "jsonpath={.data}"], None),
    (["create", "secret", "generic", "s1", "--from-literal=k=v"], None),
    (["get", "secret", "s1"], None),
    (["create", "ns", "team"], None),
    (["get", "ns", "team"], None),
    (["create", "-n", "nowhere", "-f", "-"], WIDGET.replace("w1", "w5")),
    (["apply", "-f", "-"], POD),
    (["get", "pods"], None),
    (["get", "pod", "p1", "-o", "wide"], None),
    (["apply", "-f", "-"], POD.replace("x:1", "x:2")),
    (["apply", "-f", "-"], POD.replace("name: main", "name: other")),
    (["create", "-f", "-"], POD.replace("p1", "p2").replace('image: "x:1", ', "")),
    (["logs", "p1", "-c", "no"], None),
    (["apply", "-f", "-"], NODE),
    (["patch", "node", "n1", "--subresource=status", "-p",
      '{"status":{"conditions":[{"type":"Ready","status":"True"}],'
      '"nodeInfo":{"kubeletVersion":"v1","osImage":"os","kernelVersion":"k","containerRuntimeVersion":"c"},'
      '"addresses":[{"type":"InternalIP","address":"127.0.0.9"}]}}'], None),
    (["get", "node", "n1"], None),
    (["get", "node", "n1", "-o", "wide"], None),
    (["cordon", "n1"], None),
    (["get", "node", "n1"], None),
    (["delete", "node", "n1"], None),
    (["delete", "pod", "p1"], None),
    (["delete", "wg", "w1", "w2"], None),
    (["delete", "wg", "w1"], None),
    (["get", "wg"], None),
    (["api-resources", "--api-group=example.dev"], None),
    (["auth", "can-i", "create", "wg"], None),
]

BLANKED = [
    # The real server has events of its own at times, about the address of its own Service.
    (r"(?m)^.*\bservice/kubernetes\b.*\n", ""),
    # The real server prints its whole view of the object here: as Go structs, as sorted JSON.
    (re.compile(r"(previously negative\)).*", re.S), r"\1"),
    (r'patch: Invalid value: ".*": strict', "patch: Invalid value: OBJECT: strict"),
    (r"uid: \S+", "uid: U"), (r"UID: +\S+", "UID: U"), (r"[Rr]esource ?Version: +\S+", "version"),
    (r'"?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"?', "TIME"),
    (r"\b\d+(s|m|m\d+s|h|d|y\d+d|d\d+h)\b", "AGE"), (r"https://127\.0\.0\.1:\d+", "URL"),
]


def blanked(text):
    for pattern, word in BLANKED:
        text = re.sub(pattern, word, text)
    # Widths of columns follow the ages.
    lines = [re.sub(r" {2,}", "  ", line).rstrip() for line in text.splitlines()]
    # The real server lists the faults of an object in no order.
    faults = sorted(line for line in lines if line.startswith("* "))
    return "\n".join(faults.pop(0) if line.startswith("* ") else line for line in lines)


def told(server):
    out = []
    for words, text in STORY:
        done = server.kubectl(*words, input=text, check=False)
        out.append(f"exit {done.returncode}\n{blanked(done.stdout)}\n{blanked(done.stderr)}")
    return out


def install(server):
    server.kubectl("apply", "-f", "-", input=json.dumps(CRD))
    wait_until(lambda: server.kubectl("get", "wg", check=False).returncode == 0, LIMIT_S, "widgets are served")
    # The OpenAPI document follows in its own time.
    wait_until(lambda: server.kubectl("explain", "wg.spec.size", check=False).returncode == 0, LIMIT_S,
               "widgets are explained")


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with ControlPlane() as plane, LocalServer(tmp_path_factory.mktemp("local")) as local:
        install(plane)
        install(local)
        yield plane, local


@pytest.fixture(scope="module")
def outputs(servers):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(zip(*pool.map(told, servers)))


@pytest.mark.parametrize("index", range(len(STORY)),
                         ids=[" ".join(words)[:60] for words, _ in STORY])
def test_prints_the_same(outputs, index):
    real, local = outputs[index]
    assert local == real


def watched(server):
    """`kubectl get -w` while an object comes, changes and goes."""
    watch = subprocess.Popen(
        [getattr(server, "kubectl_program", None) or server.programs["kubectl"], "get", "wg", "-w",
         "--output-watch-events"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=server.environment())
    try:
        lines = []
        def expect(word):
            while not lines or word not in lines[-1]:
                line = watch.stdout.readline()
                assert line, watch.stderr.read()
                lines.append(line)
        server.kubectl("create", "-f", "-", input=WIDGET.replace("w1", "w0"))
        expect("ADDED")
        server.kubectl("create", "-f", "-", input=WIDGET.replace("w1", "seen"))
        expect("seen")
        server.kubectl("scale", "wg", "seen", "--replicas=2")
        expect("MODIFIED")
        server.kubectl("delete", "wg", "seen")
        expect("DELETED")
        return blanked("".join(lines))
    finally:
        watch.terminate()
        watch.wait()
        server.kubectl("delete", "wg", "--all", check=False)


def test_watches_the_same(servers):
    assert watched(servers[1]) == watched(servers[0])


@pytest.mark.parametrize("which", [0, 1], ids=["real", "local"])
def test_a_dry_run_deletes_no_collection(servers, which):
    server = servers[which]
    server.kubectl("create", "configmap", "kept", "--from-literal=k=v")
    server.kubectl("delete", "--raw", "/api/v1/namespaces/default/configmaps?dryRun=All")
    server.kubectl("delete", "configmap", "kept")  # fails when it has gone


@pytest.mark.parametrize("which", [0, 1], ids=["real", "local"])
def test_a_collection_is_deleted_in_one_namespace(servers, which):
    server = servers[which]
    server.kubectl("create", "configmap", "safe", "--from-literal=k=v")
    refused = server.kubectl("delete", "--raw", "/api/v1/configmaps", check=False)
    assert refused.returncode != 0 and "does not allow this method" in refused.stderr
    server.kubectl("delete", "configmap", "safe")


def logs_of(server, port):
    """What `kubectl logs` prints of a pod on a node whose kubelet listens on `port`."""
    server.kubectl("apply", "-f", "-", input=NODE.replace("n1", "n7"))
    server.kubectl("patch", "node", "n7", "--subresource=status", "-p", json.dumps({"status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}}))
    two = POD.replace("p1", "p7").replace(
        "containers:", "containers:\n  - {name: broken, image: \"x:1\"}")
    server.kubectl("apply", "-f", "-", input=two)
    server.kubectl("create", "--raw", "/api/v1/namespaces/default/pods/p7/binding", "-f", "-", input=json.dumps({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p7"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n7"}}))
    out = []
    for words in (["-c", "main"], ["-c", "main", "-f", "--tail=5"], ["-c", "broken"], ["-c", "none"]):
        done = server.kubectl("logs", "p7", *words, check=False)
        out.append(f"exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return out


def test_logs_come_from_the_node(servers):
    plane, local = servers
    lines = [f"step {n} loss {9 - n}" for n in range(5000)]  # more than one piece of the proxy
    with FakeKubelet(*plane.server, lines) as kubelet:
        real = logs_of(plane, kubelet.port)
        asked, kubelet.asked = kubelet.asked, []
        assert logs_of(local, kubelet.port) == real
        assert kubelet.asked == asked
    assert lines[-1] in real[0]
    with FakeKubelet(*plane.server, ["only"]) as kubelet:
        local.kubectl("patch", "node", "n7", "--subresource=status", "-p", json.dumps({"status": {
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port}}}}))
        reader = subprocess.Popen([local.kubectl_program, "logs", "-f", "--tail=1", "p7", "-c", "main"],
                                  stdout=subprocess.PIPE, env=local.environment())
        assert reader.stdout.readline() == b"only\n"
        reader.kill()
        reader.wait()
        assert kubelet.left.wait(LIMIT_S), "the node still sends to a reader that has gone"
    gone = local.kubectl("logs", "p7", "-c", "main", check=False)
    assert "onnection refused" in gone.stderr


def test_state_survives_a_restart(tmp_path):
    with LocalServer(tmp_path) as server:
        install(server)
        server.kubectl("apply", "-f", "-", input=WIDGET)
        before = server.get("wg", "w1")
        server.restart()
        assert server.get("wg", "w1") == before
        server.process.kill()  # a crash loses nothing either
        server.process.start()
        wait_until(lambda: server.kubectl("get", "wg", "w1", check=False).returncode == 0, LIMIT_S, "it is back")
        assert server.get("wg", "w1") == before


def test_stops_while_clients_read(tmp_path):
    with LocalServer(tmp_path) as server:
        install(server)
        reader = subprocess.Popen([server.kubectl_program, "get", "wg", "-w"], env=server.environment(),
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        server.kubectl("apply", "-f", "-", input=WIDGET)
        reader.stdout.readline()
        server.process.child.terminate()
        assert server.process.child.wait(LIMIT_S) == 0, "SIGTERM was not enough"
        reader.wait(LIMIT_S)


def test_a_wrong_token_is_refused(tmp_path):
    with LocalServer(tmp_path) as server:
        done = server.kubectl("--token=wrong", "get", "ns", check=False)
        assert "Unauthorized" in done.stderr or "credentials" in done.stderr
        for file in ("kubeconfig", "token", "ca.key", "server.key", "state.journal"):
            assert os.stat(server.state / file).st_mode & 0o777 == 0o600
