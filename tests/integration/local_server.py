"""rubato-apiserver for one test, on a free port of loopback.

    with LocalServer(tmp_path) as server:
        server.kubectl("apply", "-f", "crds/")
"""

import json
import os
import pathlib
import shlex
import subprocess

from control_plane import ControlPlaneError, Process, find_programs, wait_until

ROOT = pathlib.Path(__file__).parents[2]
BUILD = pathlib.Path(os.environ.get("RUBATO_BUILD", ROOT / "build/dev"))
READY_LIMIT_S = 120


class LocalServer:
    def __init__(self, folder, *flags):
        self.folder = pathlib.Path(folder).absolute()
        self.state = self.folder / "state"
        self.kubeconfig = self.state / "kubeconfig"
        self.flags = flags
        self.process = None
        self.kubectl_program = find_programs()["kubectl"]

    def __enter__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.process = Process(
            "rubato-apiserver",
            [BUILD / "bin/rubato-apiserver", "--state", self.state, *self.flags],
            self.folder / "rubato-apiserver.log")
        wait_until(self._is_ready, READY_LIMIT_S, "rubato-apiserver is ready")
        return self

    def __exit__(self, kind, value, trace):
        self.process.stop()

    def restart(self):
        """Stops it as a user would and starts it again on the same state."""
        self.process.stop()
        self.process.start()
        wait_until(self._is_ready, READY_LIMIT_S, "rubato-apiserver is ready again")

    def _is_ready(self):
        if not self.process.is_running():
            raise ControlPlaneError(f"rubato-apiserver ended:\n{self.process.tail()}")
        return self.kubeconfig.exists() and self.kubectl(
            "get", "--raw", "/readyz", check=False).returncode == 0

    def environment(self):
        return dict(os.environ, KUBECONFIG=str(self.kubeconfig),
                    KUBECACHEDIR=str(self.folder / "kubectl-cache"))

    def kubectl(self, *words, input=None, check=True, limit_s=60):
        done = subprocess.run([self.kubectl_program, *map(str, words)], input=input,
                              capture_output=True, text=True, timeout=limit_s,
                              env=self.environment())
        if check and done.returncode != 0:
            raise ControlPlaneError(f"kubectl {shlex.join(map(str, words))}: {done.stderr.strip()}")
        return done

    def get(self, *words):
        return json.loads(self.kubectl("get", *words, "-o", "json").stdout)
