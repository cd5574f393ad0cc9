"""The endpoint of a running operator that has the chart's rights and no others: HTTPS, who may read it, what promtool says
of what it shows, and what slow and many clients do to it."""

import json
import os
import socket
import ssl
import sys
import tempfile
import time
import urllib.error
import urllib.request

import pytest
from cluster import Cluster
from control_plane import ControlPlane, free_port, wait_until
from jobs import Job
from recorded import ROOT, promtool

sys.path.insert(0, str(ROOT / "tests" / "chart"))
from charts import NAMESPACE, Helm, is_hook, objects  # noqa: E402

LIMIT_S = 60
TRAIN_S = 120
WORKER_PORT = 9400
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:rubato-operator"
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
READER = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "scraper"},
          "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "rubato-metrics-reader"},
          "subjects": [{"kind": "ServiceAccount", "name": "scraper", "namespace": "default"}]}
UNVERIFIED = ssl.create_default_context()
UNVERIFIED.check_hostname, UNVERIFIED.verify_mode = False, ssl.CERT_NONE  # its certificate is its own


class Endpoint:
    def __init__(self, plane, metrics, probes):
        self.plane, self.metrics, self.probes = plane, metrics, probes
        self.reader, self.other = (self.token(name) for name in ("scraper", "other"))

    def token(self, name):
        self.plane.kubectl("create", "serviceaccount", "-n", "default", name)
        return self.plane.kubectl("create", "token", "-n", "default", name, "--duration=1h").stdout.strip()

    def get(self, token=None):
        """(status, text)"""
        request = urllib.request.Request(f"https://127.0.0.1:{self.metrics}/metrics",
                                         headers={"Authorization": f"Bearer {token}"} if token else {})
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S, context=UNVERIFIED) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def probe(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.probes}{path}", timeout=LIMIT_S) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code


@pytest.fixture(scope="module")
def endpoint():
    metrics, probes = free_port(), free_port()

    def install(plane):
        with tempfile.TemporaryDirectory() as folder:
            rendered = objects(Helm(folder).template("--set", "metrics.secure.enabled=true"))
        wanted = [found for found in rendered if is_hook(found) or found["kind"] in RIGHTS]
        plane.kubectl("apply", "-f", "-",
                      input=json.dumps({"apiVersion": "v1", "kind": "List", "items": [*wanted, READER]}))
        token = plane.kubectl("create", "token", "-n", NAMESPACE, "rubato-operator", "--duration=1h").stdout.strip()
        for what in (("list", "trainingjobs.rubato.dev", "-A"), ("create", "leases.coordination.k8s.io", "-n", NAMESPACE),
                     ("list", "leases.coordination.k8s.io", "-n", "kube-node-lease")):
            wait_until(lambda: plane.kubectl("auth", "can-i", *what, f"--as={ACCOUNT}", check=False).returncode == 0,
                       LIMIT_S, f"{what} to count")
        return plane.kubeconfig_with_token("operator", token)

    with ControlPlane(controller_manager=True) as plane:
        with Cluster(plane, os.environ["RUBATO_BUILD"], operators=1, operator_kubeconfig=install, operator_flags=[
                "--probes", f"127.0.0.1:{probes}", "--metrics", f"127.0.0.1:{metrics}",
                "--worker-metrics-port", WORKER_PORT]) as cluster:
            found = Endpoint(plane, metrics, probes)
            found.cluster = cluster
            yield found


def test_a_token_and_the_right_are_needed(endpoint):
    assert endpoint.get()[0] == 401
    assert endpoint.get("nonsense")[0] == 401
    status, said = endpoint.get(endpoint.other)
    assert status == 403 and "metrics-reader" in said
    assert endpoint.get(endpoint.reader)[0] == 200


def test_probes_need_no_token_and_show_no_metrics(endpoint):
    assert endpoint.probe("/healthz") == endpoint.probe("/readyz") == 200
    assert endpoint.probe("/metrics") == 404


def test_promtool_finds_no_fault(endpoint):
    status, text = endpoint.get(endpoint.reader)
    assert status == 200 and "# TYPE rubato_job_info gauge" in text and "process_resident_memory_bytes" in text
    assert 'rubato_certificate_not_after_timestamp_seconds{certificate="operator"}' in text
    done = promtool("check", "metrics", input=text)
    assert done.returncode == 0 and not done.stdout + done.stderr, done.stdout + done.stderr


def test_a_policy_that_maximises_has_certificates(endpoint):
    endpoint.plane.kubectl("apply", "-f", "-", input=json.dumps({
        "apiVersion": "rubato.dev/v1alpha1", "kind": "SchedulingPolicy", "metadata": {"name": "default"},
        "spec": {"policy": "rubato", "roundSeconds": 1}}))

    def certified():
        text = endpoint.get(endpoint.reader)[1]
        return 'rubato_plan_certificates_total{result="holds"}' in text and "rubato_plan_gap_ratio_count" in text

    wait_until(certified, LIMIT_S, "a plan to be certified")


def test_many_and_silent_clients_do_not_keep_others_out(endpoint):
    """Each is cut off in its time; probes have a port of their own, and never wait."""
    idle = [socket.create_connection(("127.0.0.1", endpoint.metrics)) for _ in range(200)]
    assert endpoint.probe("/healthz") == 200

    def answered():
        try:
            return endpoint.get(endpoint.reader)[0] == 200
        except OSError:  # 64 at once, and no more
            return False
    began = time.monotonic()
    wait_until(answered, LIMIT_S, "the silent ones to be cut off")
    assert time.monotonic() - began < LIMIT_S / 2
    for connection in idle:
        connection.close()


def test_it_speaks_nothing_older_than_tls_1_3(endpoint):
    old = ssl.create_default_context()
    old.check_hostname, old.verify_mode, old.maximum_version = False, ssl.CERT_NONE, ssl.TLSVersion.TLSv1_2
    with socket.create_connection(("127.0.0.1", endpoint.metrics)) as plain, pytest.raises(OSError):
        old.wrap_socket(plain)


def value(text, series):
    found = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(series)]
    return float(found[0]) if found else None


@pytest.fixture(scope="module")
def pod_monitor(tmp_path_factory):
    """The chart's."""
    settings = ("enabled=true", f"port={WORKER_PORT}", "podMonitor.enabled=true")
    rendered = objects(Helm(tmp_path_factory.mktemp("helm")).template(
        "--set", ",".join(f"metrics.workers.{setting}" for setting in settings)))
    [found] = [found for found in rendered if found["kind"] == "PodMonitor"]
    return found["spec"]


def scraped(monitor, pod):
    """Where Prometheus looks for a pod's metrics: pods are chosen by labels, the port by its name."""
    labels = pod["metadata"]["labels"]
    assert monitor["namespaceSelector"] == {"any": True}
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    assert set(monitor["podTargetLabels"]) <= set(labels)
    [at] = monitor["podMetricsEndpoints"]
    ports = {port.get("name"): port["containerPort"]
             for container in pod["spec"]["containers"] for port in container.get("ports", [])}
    return f"http://{pod['status']['podIP']}:{ports[at['port']]}{at['path']}"


def test_agents_show_phases_speed_and_links_where_the_pod_monitor_looks(endpoint, pod_monitor):
    endpoint.cluster.add_nodes(2)
    job = endpoint.cluster.apply(Job("shown", steps=100000, gpus=(2, 2), hidden=128, every=50, ledger=False))
    job.wait_members(2, TRAIN_S)

    def scrape(pod):
        with urllib.request.urlopen(scraped(pod_monitor, pod), timeout=LIMIT_S) as answer:
            return answer.read().decode()

    seen = {}

    def texts():
        found = [scrape(pod) for pod in job.pods().values()]
        trained = all((value(text, 'rubato_worker_tokens_per_second{slot="0"}') or 0) > 0 and
                      (value(text, 'rubato_worker_phase_seconds_total{slot="0",phase="compute"}') or 0) > 0
                      for text in found)
        seen.update(zip(job.pods(), found))
        return len(found) == 2 and trained
    wait_until(texts, TRAIN_S, "speed and phases")
    for name, text in seen.items():
        assert f'job_name="shown",pod="{name}"' in text and "\nrubato_agent_connected 1\n" in text
        phases = {phase: value(text, f'rubato_worker_phase_seconds_total{{slot="0",phase="{phase}"')
                  for phase in ("compute", "reduce", "commit", "apply")}
        assert all(phases.values()), phases
        assert value(text, 'rubato_worker_micro_batches_total{slot="0"}') > 0
        done = promtool("check", "metrics", input=text)
        assert done.returncode == 0 and not done.stdout + done.stderr, done.stdout + done.stderr

    def kept():
        text = endpoint.get(endpoint.reader)[1]
        return value(text, 'rubato_throughput_profile_writes_total{result="written"}') and \
            value(text, "rubato_throughput_profiles_left_out") == 0
    wait_until(kept, TRAIN_S, "its speed to be kept")
    job.delete()
    job.wait_gone(TRAIN_S)


def test_a_maintenance_that_is_no_time_is_counted(endpoint):
    node = endpoint.cluster.add_node()

    def annotate(said, wanted):
        endpoint.plane.kubectl("annotate", "node", node.name, f"rubato.dev/maintenance-at{said}")
        wait_until(lambda: value(endpoint.get(endpoint.reader)[1], "rubato_cluster_unreadable_maintenances ") == wanted,
                   LIMIT_S, f"{wanted} of them")
    annotate("=tomorrow", 1)
    annotate("-", 0)
