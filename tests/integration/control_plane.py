"""A real Kubernetes control plane on loopback, for one test: etcd and kube-apiserver, and
kube-controller-manager on request. Ready in about four seconds; everything is gone after `with`.

    with ControlPlane(controller_manager=True) as plane:
        plane.kubectl("apply", "-f", "crds/")
        subprocess.run(["rubatoctl", "--kubeconfig", plane.kubeconfig, ...])

`plane.kubeconfig` is the administrator's; `plane.kubeconfig_for(user, groups)` makes another.
`plane.client_ca` is what a kubelet checks the API server's client certificate with, so that
`kubectl logs` works. `plane.processes["kube-apiserver"]` can be paused, killed and restarted.

Use from the main thread: the children die with the thread that started them, however that ends.
Run as a program (`scripts/control-plane`), it waits for Ctrl-C, or for a command given to it.
"""

import argparse
import ctypes
import http.client
import json
import os
import pathlib
import random
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time

from authority import Authority, AuthorityError

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
READY_LIMIT_S = 300  # usual: 4; a machine under full load has been seen to take more than 90
STOP_LIMIT_S = 3  # then SIGKILL: the API server waits long for open watches
POLL_S = 0.05
START_TRIES = 3  # a port may be taken between choosing and using it
LOG_TAIL_LINES = 25
PR_SET_PDEATHSIG = 1


class ControlPlaneError(Exception):
    pass


def find_programs():
    """Where each program lies: PATH (scripts/with-tools sets it), or the cache of scripts/build-tools."""
    found = {name: shutil.which(name) for name in PROGRAMS}
    if all(found.values()):
        return found
    script = pathlib.Path(__file__).parents[2] / "scripts" / "build-tools"
    printed = subprocess.run([script, "--print"], capture_output=True, text=True)
    if printed.returncode != 0:
        raise ControlPlaneError(printed.stderr.strip())
    return {name: os.path.join(printed.stdout.strip(), name) for name in PROGRAMS}


def free_port():
    """A port nobody listens on, below the range from which connections take theirs."""
    for _ in range(100):
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise ControlPlaneError("no free port between 20000 and 32000")


def wait_until(condition, limit_s, what):
    """Polls until condition() is true. Raises with `what` after limit_s seconds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise ControlPlaneError(f"{what}: not within {limit_s} s")
        time.sleep(POLL_S)


class Process:
    """One child with its log. Killed by the kernel when its parent dies."""

    def __init__(self, name, command, log):
        self.name, self.command, self.log = name, [str(word) for word in command], log
        self.child = None
        self.start()

    def start(self):
        libc = ctypes.CDLL(None)
        parent = os.getpid()

        def die_with_parent():
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=die_with_parent, start_new_session=True)

    def is_running(self):
        return self.child is not None and self.child.poll() is None

    def pause(self):
        self.child.send_signal(signal.SIGSTOP)

    def resume(self):
        self.child.send_signal(signal.SIGCONT)

    def kill(self):
        """At once, as a crash would."""
        self.child.kill()
        self.child.wait()

    def stop(self):
        """SIGTERM, a moment, SIGKILL."""
        if not self.is_running():
            return
        self.child.send_signal(signal.SIGCONT)
        self.child.terminate()
        try:
            self.child.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def tail(self):
        lines = pathlib.Path(self.log).read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])


def is_api_ready(url, authority, admin):
    """Does the API server answer /readyz? `admin`: paths of a client's certificate and key."""
    context = ssl.create_default_context(cafile=str(authority))
    context.load_cert_chain(*map(str, admin))
    host, port = url.removeprefix("https://").split(":")
    connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class ControlPlane:
    """See the head of this file. `folder` keeps the logs; a temporary one is removed unless a test failed."""

    def __init__(self, folder=None, controller_manager=False, api_server_flags=(), keep=False):
        self.programs = find_programs()
        self.folder = pathlib.Path(folder or tempfile.mkdtemp(prefix="rubato-plane-")).absolute()
        self.keep = keep or folder is not None
        self.with_controller_manager = controller_manager
        self.api_server_flags = list(api_server_flags)
        self.processes = {}
        self.url = self.kubeconfig = None

    # ---- life ----

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            self.keep = True
            print(f"control plane: logs kept in {self.folder}", file=sys.stderr)
        self.stop()

    def start(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(self.folder / "pki")
        self.client_ca = self.authority.certificate
        self._issue_certificates()
        for attempt in range(1, START_TRIES + 1):
            try:
                self._start_processes()
                return
            except ControlPlaneError as error:
                self._stop_processes()
                if attempt == START_TRIES or "address already in use" not in str(error):
                    self.keep = True
                    raise

    def stop(self):
        self._stop_processes()
        if not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def restart(self, name):
        """Starts a killed process again, with the same flags, ports and data, and waits for the API."""
        self.processes[name].stop()
        self.processes[name].start()
        self._wait_ready()

    # ---- use ----

    def kubectl(self, *words, input=None, check=True, limit_s=60):
        """Runs kubectl as the administrator; returns the finished process, with text output."""
        done = subprocess.run(
            [self.programs["kubectl"], "--kubeconfig", str(self.kubeconfig), *map(str, words)],
            input=input, capture_output=True, text=True, timeout=limit_s, env=self.environment())
        if check and done.returncode != 0:
            raise ControlPlaneError(f"kubectl {shlex.join(map(str, words))}: {done.stderr.strip()}")
        return done

    def environment(self):
        """For programs of a test: KUBECONFIG, and kubectl's cache away from the one of the home folder,
        where an earlier server on the same port may have left what it knew."""
        return dict(os.environ, KUBECONFIG=str(self.kubeconfig),
                    KUBECACHEDIR=str(self.folder / "kubectl-cache"))

    def get(self, *words):
        """`kubectl get … -o json`, read."""
        return json.loads(self.kubectl("get", *words, "-o", "json").stdout)

    def kubeconfig_for(self, user, groups=()):
        """Writes a kubeconfig with a fresh client certificate; returns its path."""
        name = user.replace(":", "-").replace("/", "-")
        certificate, key = self.authority.issue(name, user, groups)
        return self._write_kubeconfig(name, certificate, key)

    def kubeconfig_with_token(self, name, token):
        """Writes a kubeconfig for a service account's token; returns its path."""
        path = self._write_kubeconfig(name, *self.admin)
        config = json.loads(path.read_text())
        config["users"][0]["user"] = {"token": token}
        path.write_text(json.dumps(config, indent=1))
        return path

    # ---- inside ----

    def _issue_certificates(self):
        self.admin = self.authority.issue("admin", "admin", ["system:masters"])
        self.server = self.authority.issue(
            "kube-apiserver", "kube-apiserver",
            addresses=["IP:127.0.0.1", "IP:10.0.0.1", "DNS:localhost", "DNS:kubernetes.default.svc"])
        # The API server shows this to kubelets; the group is what a kubelet authorises.
        self.kubelet_client = self.authority.issue(
            "kubelet-client", "kube-apiserver-kubelet-client", ["system:masters"])
        self.token_key, self.token_public = self.authority.key_pair("service-account")

    def _write_kubeconfig(self, name, certificate, key):
        path = self.folder / f"{name}.kubeconfig"
        cluster = {"server": self.url, "certificate-authority": str(self.client_ca)}
        user = {"client-certificate": str(certificate), "client-key": str(key)}
        path.write_text(json.dumps({  # JSON is YAML
            "apiVersion": "v1", "kind": "Config", "current-context": "plane",
            "clusters": [{"name": "plane", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "plane", "context": {"cluster": "plane", "user": name}}],
        }, indent=1))
        return path

    def _spawn(self, name, *flags):
        self.processes[name] = Process(
            name, [self.programs[name], *flags], self.folder / f"{name}.log")

    def _start_processes(self):
        etcd_port, api_port = free_port(), free_port()
        self.url = f"https://127.0.0.1:{api_port}"
        self.kubeconfig = self._write_kubeconfig("admin", *self.admin)
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)
        self._spawn("etcd", *self._etcd_flags(etcd_port))
        self._spawn("kube-apiserver", *self._api_server_flags(etcd_port, api_port))
        self._wait_ready()
        if self.with_controller_manager:
            self._spawn("kube-controller-manager", *self._controller_manager_flags())
            # Without the default account no pod is admitted.
            wait_until(lambda: self.kubectl("get", "serviceaccount", "default", check=False).returncode == 0
                       or self._check_alive(), READY_LIMIT_S, "default service account")

    def _etcd_flags(self, port):
        client = f"http://127.0.0.1:{port}"
        return [f"--data-dir={self.folder}/etcd", f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}", "--listen-peer-urls=http://127.0.0.1:0",
                "--unsafe-no-fsync", "--log-level=warn"]

    def _api_server_flags(self, etcd_port, port):
        flags = [
            f"--etcd-servers=http://127.0.0.1:{etcd_port}", "--bind-address=127.0.0.1",
            f"--secure-port={port}", f"--tls-cert-file={self.server[0]}",
            f"--tls-private-key-file={self.server[1]}", f"--client-ca-file={self.client_ca}",
            f"--kubelet-client-certificate={self.kubelet_client[0]}",
            f"--kubelet-client-key={self.kubelet_client[1]}",
            "--kubelet-preferred-address-types=InternalIP", "--authorization-mode=RBAC",
            "--allow-privileged", "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.token_public}",
            f"--service-account-signing-key-file={self.token_key}",
        ]
        if not self.with_controller_manager:  # nobody would make the default accounts
            flags.append("--disable-admission-plugins=ServiceAccount")
        return flags + self.api_server_flags

    def _controller_manager_flags(self):
        return [f"--kubeconfig={self.kubeconfig}", "--bind-address=127.0.0.1", "--secure-port=0",
                f"--service-account-private-key-file={self.token_key}",
                f"--root-ca-file={self.client_ca}", "--use-service-account-credentials",
                "--leader-elect=false", "--node-monitor-grace-period=20s"]

    def _check_alive(self):
        """False, or raises with the log of a process that has ended."""
        for process in self.processes.values():
            if not process.is_running():
                raise ControlPlaneError(f"{process.name} ended; {process.log} says:\n{process.tail()}")
        return False

    def _wait_ready(self):
        def is_ready():
            self._check_alive()
            return is_api_ready(self.url, self.client_ca, self.admin)

        wait_until(is_ready, READY_LIMIT_S, f"kube-apiserver ready (logs in {self.folder})")

    def _stop_processes(self):
        for name in reversed(list(self.processes)):  # clients first
            self.processes[name].kill()  # told to end, the API server waits for its watches
        self.processes.clear()


def main():
    parser = argparse.ArgumentParser(
        prog="control-plane", description="A real Kubernetes control plane on loopback.")
    parser.add_argument("--folder", help="keep certificates, data and logs here")
    parser.add_argument("--controller-manager", action="store_true", help="also garbage collection, …")
    parser.add_argument("command", nargs=argparse.REMAINDER,
                        help="run this with KUBECONFIG set, then stop; otherwise wait for Ctrl-C")
    options = parser.parse_args()
    command = [word for word in options.command if word != "--"]

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    try:
        with ControlPlane(options.folder, options.controller_manager) as plane:
            print(f"ready in {time.monotonic() - began:.1f} s, logs in {plane.folder}", file=sys.stderr)
            if command:
                result = subprocess.run(command, env=plane.environment()).returncode
            else:
                print(f"export KUBECONFIG={plane.kubeconfig}", flush=True)
                signal.pause()
                result = 0
    except KeyboardInterrupt:
        result = 130
    except (AuthorityError, ControlPlaneError) as error:
        sys.exit(f"control-plane: {error}")
    sys.exit(result)


if __name__ == "__main__":
    main()
