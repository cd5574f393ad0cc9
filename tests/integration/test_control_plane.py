"""The control plane that the other tests stand on."""

import http.server
import json
import signal
import ssl
import subprocess
import sys
import threading

import pytest

from control_plane import ControlPlane, ControlPlaneError, Process, wait_until

LIMIT_S = 60
POD = {
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "talker"},
    "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "none"}]},
}


@pytest.fixture(scope="module")
def plane():
    with ControlPlane() as plane:
        yield plane


def test_serves_the_version_we_pinned(plane):
    version = json.loads(plane.kubectl("version", "-o", "json").stdout)
    assert version["serverVersion"]["gitVersion"] == "v1.36.3"


def test_a_user_without_a_role_is_refused(plane):
    stranger = plane.kubeconfig_for("stranger")
    done = plane.kubectl("--kubeconfig", stranger, "get", "nodes", check=False)
    assert done.returncode != 0
    assert "Forbidden" in done.stderr


def test_objects_survive_a_crash_of_the_api_server(plane):
    plane.kubectl("create", "namespace", "kept")
    plane.processes["kube-apiserver"].kill()
    plane.restart("kube-apiserver")
    assert plane.get("namespace", "kept")["status"]["phase"] == "Active"


def test_kubectl_logs_reaches_a_kubelet_on_loopback(plane):
    certificate, key = plane.authority.issue("n1", "system:node:n1", addresses=["IP:127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(plane.client_ca))
    context.verify_mode = ssl.CERT_REQUIRED  # the API server must show its client certificate
    context.load_cert_chain(certificate, key)
    paths = []

    class Kubelet(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"step 1 loss 5.5\n")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Kubelet)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        status = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                  "daemonEndpoints": {"kubeletEndpoint": {"Port": server.server_port}}}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
        plane.kubectl("create", "-f", "-", input=json.dumps(node))
        plane.kubectl("patch", "node", "n1", "--subresource=status", "-p", json.dumps({"status": status}))
        plane.kubectl("create", "-f", "-", input=json.dumps(POD))
        assert plane.kubectl("logs", "talker").stdout == "step 1 loss 5.5\n"
        assert paths == ["/containerLogs/default/talker/c"]
    finally:
        server.shutdown()
        server.server_close()


def test_a_process_that_cannot_start_is_named_with_its_log(tmp_path):
    with pytest.raises(ControlPlaneError, match="kube-apiserver ended(.|\n)*unknown flag: --nonsense"):
        with ControlPlane(tmp_path, api_server_flags=["--nonsense"]):
            pass


def test_children_die_with_their_parent(tmp_path):
    """Also when the parent is killed outright, and can clean nothing up."""
    script = (
        "from control_plane import Process; import time\n"
        f"p = Process('sleeper', ['sleep', '1000'], {str(tmp_path / 'log')!r})\n"
        "print(p.child.pid, flush=True); time.sleep(1000)\n")
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()

    def is_gone():
        try:
            with open(f"/proc/{child}/stat") as stat:
                return stat.read().rsplit(")", 1)[1].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    wait_until(is_gone, LIMIT_S, "the child to die")


def test_stop_does_not_wait_for_a_process_that_ignores_it(tmp_path):
    stubborn = Process("stubborn", ["bash", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"],
                       tmp_path / "log")
    wait_until(lambda: "up" in stubborn.tail(), LIMIT_S, "the trap to be set")
    stubborn.stop()
    assert stubborn.child.returncode == -signal.SIGKILL
