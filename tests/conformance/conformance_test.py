"""The conformance suite against a real kube-apiserver and against rubato-apiserver over the wire.
A case that fails on the real server is wrong; one that fails on ours is a defect of ours."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
BUILD = pathlib.Path(os.environ.get("RUBATO_BUILD", ROOT / "build/dev"))
sys.path.insert(0, str(ROOT / "tests/integration"))

from control_plane import ControlPlane  # noqa: E402
from local_server import LocalServer  # noqa: E402

SUITE_LIMIT_S = 500


def run_suite(kubeconfig, collects):
    environment = dict(os.environ, RUBATO_CONFORMANCE_KUBECONFIG=str(kubeconfig))
    if collects:
        environment["RUBATO_CONFORMANCE_COLLECTS"] = "1"
    done = subprocess.run(
        [BUILD / "tests/conformance_suite", "--gtest_filter=*server", "--gtest_brief=1"],
        env=environment, capture_output=True, text=True, timeout=SUITE_LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_real_server():
    with ControlPlane(controller_manager=True) as plane:
        run_suite(plane.kubeconfig, collects=True)


def test_the_local_server_over_the_wire(tmp_path):
    with LocalServer(tmp_path, "--history", "8") as server:
        run_suite(server.kubeconfig, collects=True)
