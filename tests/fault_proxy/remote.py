"""Starts a fault proxy in front of a test's control plane, and switches its faults.

    with FaultProxy(plane, "a", seed=7) as proxy:
        subprocess.run([..., "--kubeconfig", proxy.kubeconfig])
        with proxy.fault({"kind": "answer-after", "verbs": ["POST"], "code": 500}):
            ...

Use from the main thread, as control_plane.Process says.
"""

import contextlib
import json
import pathlib
import socket
import sys

from authority import Authority
from control_plane import ControlPlaneError, Process, wait_until

PROGRAM = pathlib.Path(__file__).with_name("fault_proxy.py")
CONTROL_LIMIT_S = 60
START_LIMIT_S = 120
LOOPBACK = ["IP:127.0.0.1", "DNS:localhost"]


def socket_path(folder, name):
    """Not below the folder: the path of a Unix socket has 107 bytes at most."""
    return pathlib.Path(f"/tmp/{folder.name[-24:]}-{name}.sock")


class Certificates:
    """What a proxy may show: the right one, one of another authority, an expired one, one of another name."""

    def __init__(self, ours, folder, addresses=LOOPBACK):
        other = Authority(folder / "other")
        self.all = [
            ("right", *ours.issue("proxy", "fault-proxy", addresses=addresses)),
            ("wrong-ca", *other.issue("proxy", "fault-proxy", addresses=addresses)),
            ("expired", *ours.issue("proxy-expired", "fault-proxy", addresses=addresses, days=-1)),
            ("wrong-name", *ours.issue("proxy-name", "fault-proxy", addresses=["DNS:elsewhere.example"])),
        ]

    @staticmethod
    def of(plane):
        return Certificates(plane.authority, plane.folder / "proxy-pki")


class Switches:
    """A proxy that somebody runs: its faults, and what it has done."""

    def __init__(self, name, seed, control, log):
        self.name, self.seed, self.socket, self.log = name, seed, control, log
        self.socket.unlink(missing_ok=True)

    def command(self, upstream, authority, client, certificates):
        """What to run."""
        shown = [word for entry in certificates.all for word in ("--server", *entry)]
        return [str(word) for word in (
            sys.executable, PROGRAM, "--upstream", upstream, "--authority", authority, "--client", *client, *shown,
            "--control", self.socket, "--log", self.log, "--seed", self.seed)]

    def order(self, **order):
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(CONTROL_LIMIT_S)
            control.connect(str(self.socket))
            control.sendall(json.dumps(order).encode() + b"\n")
            answer = json.loads(control.makefile().readline())
        if "error" in answer:
            raise ControlPlaneError(f"proxy {self.name}: {answer['error']}")
        return answer

    def set(self, *faults, drop=False):
        return self.order(faults=list(faults), drop=drop)

    def clear(self, drop=False):
        return self.order(faults=[], drop=drop)

    def state(self):
        return self.order()

    @contextlib.contextmanager
    def fault(self, *faults, drop=False):
        self.set(*faults, drop=drop)
        try:
            yield self
        finally:
            self.clear()

    def lines(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def explain(self, count=30):
        """What it did last, for the message of a failed test, and how to repeat it."""
        done = [line for line in self.lines() if line["what"] != "request"]
        tail = "\n".join(json.dumps(line) for line in done[-count:])
        return f"---- proxy {self.name}, seed {self.seed} (FAULT_SEED repeats it), {self.log}\n{tail}"


class FaultProxy(Switches):
    """In front of a ControlPlane, on loopback."""

    def __init__(self, plane, name, seed=1, certificates=None):
        self.plane, folder = plane, plane.folder / "proxies"
        folder.mkdir(exist_ok=True)
        output = folder / f"{name}.out"
        super().__init__(name, seed, socket_path(plane.folder, name), folder / f"{name}.jsonl")
        command = self.command(plane.url, plane.client_ca, plane.admin, certificates or Certificates.of(plane))
        self.process = Process(f"proxy {name}", command, output)
        wait_until(lambda: "listening" in output.read_text() or self._check(), START_LIMIT_S, f"proxy {name}")
        self.port = int(output.read_text().split()[1])
        self.url = f"https://127.0.0.1:{self.port}"
        self.kubeconfig = self._write_kubeconfig(plane.kubeconfig, folder / f"{name}.kubeconfig")

    def _check(self):
        if not self.process.is_running():
            raise ControlPlaneError(f"proxy {self.name} ended:\n{self.process.tail()}")
        return False

    def _write_kubeconfig(self, like, path, token=None):
        config = json.loads(pathlib.Path(like).read_text())
        config["clusters"][0]["cluster"]["server"] = self.url
        if token is not None:
            config["users"][0]["user"] = token
        path.write_text(json.dumps(config, indent=1))
        return path

    def kubeconfig_with(self, name, user):
        """A kubeconfig of this proxy for another user entry, say {"tokenFile": …}."""
        return self._write_kubeconfig(self.plane.kubeconfig, self.kubeconfig.with_name(f"{name}.kubeconfig"),
                                      user)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.stop()

    def stop(self):
        self.process.stop()
        self.socket.unlink(missing_ok=True)
