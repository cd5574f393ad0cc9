"""What the chart tells the operator, as the operator reads it. No cluster is there."""

import http.client
import json
import os
import pathlib
import re
import socket
import subprocess

import pytest
from charts import ALL_OPTIONS, ROOT, Helm, objects
from control_plane import free_port, wait_until

OPERATOR = pathlib.Path(os.environ.get("RUBATO_BUILD", ROOT / "build" / "dev")) / "bin" / "rubato-operator"
LIMIT_S = 60
NOWHERE = "no-such-kubeconfig"  # named last: an operator that speaks of it has read all that comes before
POD = {"POD_NAME": "operator-0", "POD_NAMESPACE": "rubato-system"}
IPV4 = {"POD_IP": "10.1.2.3", "SERVICE_HOST": "10.96.0.7"}
IPV6 = {"POD_IP": "fd00::3", "SERVICE_HOST": "fd00:96::7"}
REFUSED = [  # and a word of the refusal
    (["--gpu-resource=", "--topology-levels=a=b"], "--gpu-resource: a value is missing before --topology-levels=a=b"),
    (["--gang-seconds=", "--stall-seconds=20"], "--gang-seconds: a value is missing before --stall-seconds=20"),
    (["--namespaces=", "--verbose"], "--namespaces: a value is missing before --verbose"),
    (["--gang-seconds=0"], "not in range"),
    (["--leaving-taints=spot:NoSchedule"], "\"spot:NoSchedule\": the key of a taint is expected"),
]


@pytest.fixture(scope="module")
def helm(tmp_path_factory):
    return Helm(tmp_path_factory.mktemp("helm"))


def arguments(helm, *values):
    [deployment] = [found for found in objects(helm.template(*values)) if found["kind"] == "Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    return container["args"]


def with_variables(words, **variables):
    """As the kubelet puts them in: one that it does not know stays as it is. That of a Service begins with its name."""
    return [re.sub(r"\$\((?:\w+_(?=SERVICE_HOST))?(\w+)\)", lambda found: variables.get(found[1], found[0]), word)
            for word in words]


def said_of(words):
    done = subprocess.run([OPERATOR, *words, f"--kubeconfig={NOWHERE}"], capture_output=True, text=True, check=False,
                          timeout=LIMIT_S)
    assert done.returncode != 0
    return done.stderr


@pytest.mark.parametrize("addresses", [IPV4, IPV6], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("values", [[], ["--values", ALL_OPTIONS]], ids=["default", "all-options"])
def test_the_operator_reads_what_the_chart_renders(helm, values, addresses):
    assert NOWHERE in said_of(with_variables(arguments(helm, *values), **POD, **addresses))


@pytest.mark.parametrize("words,refusal", REFUSED)
def test_the_operator_refuses(words, refusal):
    said = said_of(words)
    assert refusal in said and NOWHERE not in said


def test_a_pod_that_was_faster_than_its_service_says_so(helm):
    said = said_of(with_variables(arguments(helm), **POD, POD_IP="10.1.2.3"))
    assert 'endpoint "[$(RUBATO_COORDINATOR_SERVICE_HOST)]:7443": there is no such variable' in said
    assert "set enableServiceLinks of the pod to true" in said


def reaches(host, port):
    connection = http.client.HTTPConnection(host, port, timeout=LIMIT_S)
    try:
        connection.request("GET", "/healthz")
        return bool(connection.getresponse().status)
    except ConnectionRefusedError:
        return False
    finally:
        connection.close()


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
            return True
    except OSError:
        return False


def test_the_operator_is_reached_by_either_family(tmp_path):
    """As kubelets and Prometheus reach it."""
    config = tmp_path / "kubeconfig"
    config.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "away",
        "contexts": [{"name": "away", "context": {"cluster": "away", "user": "nobody"}}],
        "clusters": [{"name": "away", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "nobody", "user": {"token": "t"}}]}))
    port = free_port()
    process = subprocess.Popen([OPERATOR, f"--kubeconfig={config}", f"--probes=[::]:{port}", "--listen=[::]:0"],
                               stderr=subprocess.DEVNULL)
    try:
        for host in ["127.0.0.1", *(["::1"] if has_ipv6() else [])]:
            wait_until(lambda: reaches(host, port), LIMIT_S, f"an answer at {host}")
    finally:
        process.kill()
        process.wait()
