"""One rubato-localnode at an API server of its own, for tests of what a node makes of pods.

    with LocalNode(tmp_path, "--slots", 1) as node:
        node.run("a", {"command": ["/bin/echo", "hello."]})
        assert node.said("a") == "hello"
"""

import json
import os
import pathlib

from cluster import RESOURCE, claim_network, free_port_at
from control_plane import Process, wait_until
from local_server import LocalServer

BIN = pathlib.Path(os.environ["RUBATO_BUILD"]) / "bin"
LIMIT_S = 60


class LocalNode:
    def __init__(self, folder, *flags):
        self.folder, self.root, self.flags = folder, folder / "root", flags
        self.network, self.claim = claim_network()
        self.server = LocalServer(folder / "server")

    def __enter__(self):
        self.server.__enter__()
        for name in ("default", "kube-node-lease"):
            self.server.kubectl("create", "namespace", name, check=False)
        address = f"127.{self.network}.1.1"
        self.process = Process("n1", [
            BIN / "rubato-localnode", "--kubeconfig", self.server.kubeconfig, "--name", "n1", "--address", address,
            "--port", free_port_at(address), "--resource", RESOURCE, "--root", self.root, "--claims",
            self.folder / "claims", *self.flags], self.folder / "n1.log")
        wait_until(lambda: (self.get("node", "n1") or {}).get("status", {}).get("allocatable"), LIMIT_S,
                   "n1 to say what it has")
        return self

    def __exit__(self, kind, value, trace):
        self.process.stop()
        self.server.__exit__(kind, value, trace)
        self.claim.close()

    def get(self, *what):
        found = self.server.kubectl("get", *what, "-o", "json", check=False)
        return json.loads(found.stdout) if found.returncode == 0 else None

    def make(self, kind, name, **content):
        made = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "default"}, **content}
        self.server.kubectl("apply", "-f", "-", input=json.dumps(made))

    def run(self, name, container, volumes=()):
        """A pod of one container, bound to the node."""
        self.make("Pod", name, spec={
            "nodeName": "n1", "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "volumes": list(volumes),
            "containers": [{"name": "worker", "image": "x", **container}]})

    def status(self, name):
        return (self.get("pod", name) or {}).get("status", {})

    def pod_folder(self, name):
        return self.root / "pods" / self.get("pod", name)["metadata"]["uid"]

    def said(self, name):
        """What its container says up to a line that ends with a full stop, which is left out; without times."""
        log = self.pod_folder(name) / "worker.log"
        wait_until(lambda: log.exists() and log.read_text().endswith(".\n"), LIMIT_S, f"pod {name} to say it")
        return "\n".join(line.partition(" ")[2] for line in log.read_text().splitlines()).rstrip(". \n")

    def delete(self, name):
        self.server.kubectl("delete", "pod", name)
