"""The fault proxy itself: kubectl and curl see of each fault what it promises."""

import json
import shutil
import subprocess
import time

import pytest
from control_plane import ControlPlane, wait_until
from faults import Armed, Arsenal, Fault, FaultError, plan
from remote import Certificates, FaultProxy

CURL_LIMIT_S = 60
SILENT_S = 5  # for this long nothing comes


@pytest.fixture(scope="module")
def plane():
    with ControlPlane() as found:
        yield found


@pytest.fixture(scope="module")
def proxy(plane):
    with FaultProxy(plane, "self", seed=3, certificates=Certificates.of(plane)) as found:
        yield found


@pytest.fixture(autouse=True)
def quiet(request):
    yield
    if "proxy" in request.fixturenames:
        request.getfixturevalue("proxy").clear()


def kubectl(proxy, *words, check=True, input=None, limit_s=60):
    done = subprocess.run([proxy.plane.programs["kubectl"], "--kubeconfig", proxy.kubeconfig, *words],
                          capture_output=True, text=True, timeout=limit_s, input=input,
                          env=proxy.plane.environment())
    assert not check or done.returncode == 0, done.stderr + proxy.explain()
    return done


def curl(proxy, path, *words, limit_s=CURL_LIMIT_S):
    return subprocess.run(
        ["curl", "-sS", "--http1.1", "--cacert", proxy.plane.client_ca, "--max-time", str(limit_s), *words,
         proxy.url + path], capture_output=True, text=True, timeout=limit_s + 60)


def make(proxy, name):
    kubectl(proxy, "create", "configmap", name, "--from-literal=a=b")


def exists(plane, name):
    return plane.kubectl("get", "configmap", name, check=False).returncode == 0


def test_it_is_the_api_server(plane, proxy):
    make(proxy, "plain")
    assert exists(plane, "plain")
    assert json.loads(kubectl(proxy, "get", "configmap", "plain", "-o", "json").stdout)["data"] == {"a": "b"}
    kubectl(proxy, "delete", "configmap", "plain")
    assert not exists(plane, "plain")
    assert json.loads(curl(proxy, "/version").stdout)["major"] == "1"


def test_tokens_go_on(plane, proxy):
    refused = curl(proxy, "/api/v1/pods", "-H", "Authorization: Bearer wrong", "-w", "%{http_code}")
    assert refused.stdout.endswith("401")
    plane.kubectl("create", "serviceaccount", "reader")
    token = plane.kubectl("create", "token", "reader").stdout.strip()
    seen = curl(proxy, "/apis/authentication.k8s.io/v1/selfsubjectreviews", "-H",
                f"Authorization: Bearer {token}", "-H", "Content-Type: application/json", "-d",
                '{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}')
    assert json.loads(seen.stdout)["status"]["userInfo"]["username"] == "system:serviceaccount:default:reader"


@pytest.mark.parametrize("code", [401, 409, 410, 429, 500])
def test_answers_before(plane, proxy, code):
    name = f"before-{code}"
    fault = {"kind": "answer", "code": code, "verbs": ["POST"], "retry_after": 1 if code == 429 else None}
    with proxy.fault(fault):
        answer = curl(proxy, "/api/v1/namespaces/default/configmaps", "-i", "-d", json.dumps(
            {"metadata": {"name": name}}), "-H", "Content-Type: application/json")
        assert f"HTTP/1.1 {code}" in answer.stdout
        assert '"kind": "Status"' in answer.stdout
        assert ("Retry-After: 1" in answer.stdout) == (code == 429)
    assert not exists(plane, name)


def test_answer_after_the_effect(plane, proxy):
    with proxy.fault({"kind": "answer-after", "code": 500, "verbs": ["POST"], "count": 1}):
        done = kubectl(proxy, "create", "configmap", "after", "--from-literal=a=b", check=False)
        assert done.returncode != 0 and "the fault proxy answers this" in done.stderr
    assert exists(plane, "after")
    assert [line for line in proxy.lines() if line["what"] == "thrown away"]


def test_share_and_count(proxy):
    with proxy.fault({"kind": "answer", "code": 500, "count": 2}):
        codes = [curl(proxy, "/version", "-o", "/dev/null", "-w", "%{http_code}").stdout for _ in range(4)]
        assert codes == ["500", "500", "200", "200"]
        assert proxy.state()["faults"][0]["struck"] == 2


def test_delay(proxy):
    began = time.monotonic()
    with proxy.fault({"kind": "delay", "seconds": 1}):
        curl(proxy, "/version")
    assert time.monotonic() - began >= 1


@pytest.mark.parametrize("at", [0, 9, 60])
def test_cut_in_the_head(proxy, at):
    with proxy.fault({"kind": "cut", "at": at}):
        done = curl(proxy, "/version", "-i")
    assert at > 9 or done.returncode != 0  # some clients take a part of the headers for all of them
    assert len(done.stdout) <= at


@pytest.mark.parametrize("farewell", [False, True])
def test_cut_in_the_body(proxy, farewell):
    whole = curl(proxy, "/api/v1/namespaces", "-i").stdout
    at = whole.index("{") + 40  # line ends and the size of the chunk count too
    with proxy.fault({"kind": "cut", "at": at, "farewell": farewell}):
        done = curl(proxy, "/api/v1/namespaces", "-i")
    assert done.returncode == 18  # curl's "partial file"
    assert whole.index("{") < len(done.stdout) < at


def watch(proxy, *words):
    return subprocess.Popen(["curl", "-sSN", "--http1.1", "--cacert", proxy.plane.client_ca, *words, proxy.url +
                             "/api/v1/namespaces/default/configmaps?watch=true"], stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True)


def test_cut_in_a_chunk_of_a_watch_that_is_open(plane, proxy):
    make(proxy, "chunk-1")
    child = watch(proxy)
    while "chunk-1" not in (line := child.stdout.readline()):
        assert line
    with proxy.fault({"kind": "cut", "at": 40, "watch": True}):
        make(proxy, "chunk-2")
        rest = child.stdout.read()
        assert child.wait(CURL_LIMIT_S) == 18  # curl's "partial file"
    assert 0 < len(rest) <= 40 and "chunk-2" not in rest


def test_mute_watch(plane, proxy):
    child = watch(proxy)
    child.stdout.readline()
    with proxy.fault({"kind": "mute", "watch": True}):
        make(proxy, "unheard")
        wait_until(lambda: proxy.state()["faults"][0]["struck"] == 1, CURL_LIMIT_S, "the event to be swallowed")
        assert child.poll() is None  # nothing was closed
    proxy.clear(drop=True)
    assert "unheard" not in child.stdout.read()
    assert child.wait(CURL_LIMIT_S) != 0


def test_slow_watch(proxy):
    make(proxy, "slow")
    began = time.monotonic()
    with proxy.fault({"kind": "slow", "watch": True, "bytes_per_second": 1000}):
        child = watch(proxy)
        line = child.stdout.readline()
        took = time.monotonic() - began
        child.kill()
        child.wait()
    assert json.loads(line)["type"] == "ADDED"
    assert took > len(line) / 1000 / 2


def test_silence(plane, proxy):
    with proxy.fault({"kind": "accept-mute"}):
        assert curl(proxy, "/version", limit_s=SILENT_S).returncode == 28
    with proxy.fault({"kind": "hang"}):
        assert curl(proxy, "/version", limit_s=SILENT_S).returncode == 28
    with proxy.fault({"kind": "refuse"}):
        assert curl(proxy, "/version").returncode == 35
    with proxy.fault({"kind": "hang-after", "verbs": ["DELETE"]}):
        make(proxy, "hung")
        assert curl(proxy, "/api/v1/namespaces/default/configmaps/hung", "-X", "DELETE",
                    limit_s=SILENT_S).returncode == 28
    wait_until(lambda: not exists(plane, "hung"), CURL_LIMIT_S, "what was asked for to be done")
    assert curl(proxy, "/version").returncode == 0


@pytest.mark.parametrize("which, says", [("wrong-ca", "unable to get local issuer"), ("expired", "expired"),
                                         ("wrong-name", "no alternative certificate subject name")])
def test_certificates(proxy, which, says):
    with proxy.fault({"kind": "certificate", "certificate": which}):
        done = curl(proxy, "/version")
    assert done.returncode == 60
    assert says in done.stderr


def test_error_event(proxy):
    with proxy.fault({"kind": "error-event", "code": 410, "watch": True}):
        event = json.loads(curl(proxy, "/api/v1/pods?watch=true").stdout)
    assert event["type"] == "ERROR" and event["object"]["reason"] == "Expired"


def test_drop_closes_what_is_open(proxy):
    child = watch(proxy)
    child.stdout.readline()
    proxy.clear(drop=True)
    assert child.wait(CURL_LIMIT_S) != 0


def test_orders_are_checked(proxy):
    with pytest.raises(Exception, match="kind 'nonsense'"):
        proxy.set({"kind": "nonsense"})
    with pytest.raises(Exception, match="unknown: speed"):
        proxy.set({"kind": "delay", "speed": 1})


def test_choices_repeat():
    def fates(seed):
        armed = Armed(Fault("cut", share=0.3), seed, 1)
        found = [armed.strikes() for _ in range(200)]
        return [None if rng is None else rng.random() for rng in found]
    assert fates(5) == fates(5) != fates(6)
    assert 30 < sum(fate is not None for fate in fates(5)) < 90
    assert plan(1, ["a", "b"], 4, 2) == plan(1, ["b", "a"], 4, 2)


def test_matching():
    fault = Fault.from_json({"kind": "answer", "verbs": ["PUT"], "path": "/leases/"})
    assert fault.matches("PUT", "/apis/coordination.k8s.io/v1/namespaces/a/leases/b")
    assert not fault.matches("GET", "/apis/coordination.k8s.io/v1/namespaces/a/leases/b")
    assert not Fault("mute", watch=True).matches("GET", "/api/v1/pods")
    with pytest.raises(FaultError):
        Fault.from_json({"kind": "mute", "moon": 1})
    arsenal = Arsenal(1)
    arsenal.set([Fault("mute", watch=True), Fault("delay")])
    assert [f.kind for f, _ in arsenal.strike({"mute", "delay"}, "GET", "/api/v1/pods?watch=1")] == \
        ["mute", "delay"]


def test_curl_is_here():
    assert shutil.which("curl")
