"""kube against a real kube-apiserver: runs the program kube_client_suite on a fresh control
plane."""

import os
import pathlib
import subprocess

from control_plane import ControlPlane

SUITE_LIMIT_S = 400


def test_kube_client():
    program = pathlib.Path(os.environ["RUBATO_BUILD"]) / "tests" / "kube_client_suite"
    with ControlPlane() as plane:
        environment = dict(plane.environment(), RUBATO_CONFORMANCE_KUBECONFIG=str(plane.kubeconfig))
        result = subprocess.run([program], env=environment, capture_output=True, text=True,
                                timeout=SUITE_LIMIT_S)
        assert result.returncode == 0, result.stdout + result.stderr
        assert "SKIPPED" not in result.stdout, result.stdout
