"""kube under every class of faults: client_fault_suite.cc through a proxy each, all at once, and the
suite of the client itself where its words hold under the fault too."""

import concurrent.futures
import os
import pathlib
import subprocess

import pytest
from catalogue import CLASSES, Trouble
from control_plane import ControlPlane
from remote import Certificates, FaultProxy

SEED = int(os.environ.get("FAULT_SEED", "1"))
SUITE_LIMIT_S = 500
TESTS = pathlib.Path(os.environ["RUBATO_BUILD"]) / "tests"
# Cases of kube_client_suite that ask for nothing which these faults forbid.
MILD = {
    "none": [],
    "delay": [{"kind": "delay", "seconds": 0.05}, {"kind": "delay-answer", "seconds": 0.05}],
    "slow-watch": [{"kind": "slow", "watch": True, "bytes_per_second": 20000}],
    "cut-watch": [{"kind": "cut", "watch": True, "share": 0.6, "at_most": 4000, "path": "/pods"}],
    "expired-watch": [{"kind": "error-event", "code": 410, "watch": True, "count": 2, "path": "/pods"}],
}


@pytest.fixture(scope="module")
def plane():
    with ControlPlane() as found:
        yield found


@pytest.fixture(scope="module")
def certificates(plane):
    return Certificates.of(plane)


def run_suite(plane, proxy, name):
    environment = dict(plane.environment(), RUBATO_FAULT_KUBECONFIG=str(proxy.kubeconfig),
                       RUBATO_DIRECT_KUBECONFIG=str(plane.kubeconfig), RUBATO_FAULT_NAMESPACE=f"fault-{name}")
    done = subprocess.run([TESTS / "client_fault_suite", "--gtest_brief=1"], env=environment,
                          capture_output=True, text=True, timeout=SUITE_LIMIT_S)
    (plane.folder / f"client-{name}.log").write_text(done.stdout + done.stderr)
    return done


def test_each_class(plane, certificates, capsys):
    proxies = {name: FaultProxy(plane, name, SEED, certificates) for name in CLASSES}
    troubles = []
    try:
        for name in CLASSES:
            plane.kubectl("create", "namespace", f"fault-{name}")
        troubles = [Trouble([proxies[name]], CLASSES[name]) for name in CLASSES]
        with concurrent.futures.ThreadPoolExecutor(len(CLASSES)) as pool:
            results = dict(zip(CLASSES, pool.map(
                lambda name: run_suite(plane, proxies[name], name), CLASSES)))
        done = {name: proxy.state()["done"] for name, proxy in proxies.items()}
    finally:
        for trouble in troubles:
            trouble.stop()
        for proxy in proxies.values():
            proxy.stop()
    failed = {name: result for name, result in results.items() if result.returncode != 0}
    lines = []
    for name, result in results.items():
        said = [line for line in result.stdout.splitlines()
                if "equal again" in line or "lives" in line or "tries" in line]
        lines.append(f"{name:14} {'failed' if name in failed else 'ok':6} {done[name]} {'; '.join(said)}")
    with capsys.disabled():
        print("\n" + "\n".join(lines))
    assert not failed, "\n".join(f"== {name}\n{result.stdout[-4000:]}{result.stderr[-3000:]}"
                                 f"{proxies[name].explain()}" for name, result in failed.items())
    for name, fault_class in CLASSES.items():  # a fault that never struck proves nothing
        for fault in fault_class.faults:
            if fault["kind"] != "hang-after":
                assert done[name].get(fault["kind"], 0) > 0, f"{name}: {fault['kind']} never struck"


@pytest.mark.parametrize("name", MILD)
def test_the_clients_own_suite(plane, certificates, name):
    with FaultProxy(plane, f"mild-{name}", SEED, certificates) as proxy, proxy.fault(*MILD[name]):
        environment = dict(plane.environment(), RUBATO_CONFORMANCE_KUBECONFIG=str(proxy.kubeconfig))
        cases = "*" if name == "none" else "*Informer*:*Election*:*WatchesEnd*"
        done = subprocess.run([TESTS / "kube_client_suite", f"--gtest_filter={cases}", "--gtest_brief=1"],
                              env=environment, capture_output=True, text=True, timeout=SUITE_LIMIT_S)
        assert done.returncode == 0, done.stdout + done.stderr + proxy.explain()
        assert "SKIPPED" not in done.stdout
        if MILD[name]:
            assert proxy.state()["done"]


def test_what_is_said_about_certificates(plane, certificates):
    """The message names the cause, for requests and for watches."""
    with FaultProxy(plane, "said", SEED, certificates) as proxy:
        for which, words in (("expired", "certificate has expired"), ("wrong-ca", "certificate"),
                             ("wrong-name", "mismatch")):
            with proxy.fault({"kind": "certificate", "certificate": which}, drop=True):
                environment = dict(plane.environment(), RUBATO_CONFORMANCE_KUBECONFIG=str(proxy.kubeconfig))
                done = subprocess.run(
                    [TESTS / "kube_client_suite", "--gtest_filter=*WatchesEnd*"], env=environment,
                    capture_output=True, text=True, timeout=SUITE_LIMIT_S)
            text = done.stdout + done.stderr
            assert done.returncode == 1, f"no crash, but a failure: {text}"
            said = [line for line in text.splitlines() if "the server's certificate is refused" in line]
            assert len(said) >= 2 and all(words in line for line in said), text
