"""Alerts and dashboard on a recorded run, as promtool evaluates them, and the rules of Prometheus on the catalogue."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import yaml
from recorded import ONE, ROOT, Run, evaluate, promtool

sys.path.insert(0, str(ROOT / "tests" / "chart"))
from charts import Helm, objects  # noqa: E402

DASHBOARD = ROOT / "helm" / "rubato" / "files" / "dashboards" / "rubato.json"
# Times of the chart, as short as the recorded run; the expressions are those of the chart.
SHORT = {"noLeaderFor": "15s", "stuckFor": "30s", "stuckAfterSeconds": 30, "failedFor": "1m", "waitSeconds": 60,
         "goodputWindow": "30s", "goodputBelow": 0.5, "goodputFor": "0s"}
RATE_WINDOW = "1m"
# What no run of a few minutes on one machine shows: why.
NOT_IN_RUN = {
    "controller_runtime_reconcile_timeouts_total", "rest_client_request_retries_total",  # never needed
    "informer_decode_errors_total", "rubato_coordinator_conflicts_total", "rubato_coordinator_refused_total",
    "rubato_coordinator_checkpoints_skipped_total",
    "rubato_recomputed_steps_total",  # JobFlow.StepsThatAreTrainedAgainAreCounted
    "rubato_queue_guaranteed_gpus", "rubato_queue_limit_gpus",  # no queue has quotas there
    # No worker failed of itself, and pods of lost nodes are counted when they leave: JobFlow.ManyQueuesShareOneSeries.
    "rubato_restarts_total",
    "rubato_metrics_refused_total",
    # Newer than the run; test_live.py sees them, and cluster_series_test.cc the last one.
    "rubato_cluster_unreadable_maintenances",
    "rubato_certificate_not_after_timestamp_seconds", "rubato_plan_certificates_total", "rubato_plan_gap_ratio",
    "rubato_throughput_profile_writes_total", "rubato_throughput_profiles_left_out", "rubato_job_gradient_noise_scale",
}
DEFAULTS = {"$queue": ".*", "$namespace": ".*", "$job_name": ".*", "$__rate_interval": RATE_WINDOW}


@pytest.fixture(scope="module")
def run():
    return Run()


@pytest.fixture(scope="module")
def helm(tmp_path_factory):
    return Helm(tmp_path_factory.mktemp("helm"))


def rules(helm, *words, **settings):
    words = [*words, "--set", "metrics.prometheusRule.enabled=true"]
    for name, value in settings.items():
        words += ["--set-json", f"metrics.prometheusRule.{name}={json.dumps(value)}"]
    [found] = [item for item in objects(helm.template(*words)) if item["kind"] == "PrometheusRule"]
    return found["spec"]


def catalog():
    """{name: (type, labels, help)}"""
    program = pathlib.Path(os.environ.get("RUBATO_BUILD", ROOT / "build" / "dev")) / "tests" / "metrics_page"
    said = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout
    rows = [line.split("\t") for line in said.splitlines()]
    return {name: (kind, set(filter(None, labels.split(","))), about) for name, kind, labels, about in rows}


# ---- the catalogue ----

def test_promtool_finds_no_fault_with_the_catalogue():
    text = ""
    for name, (kind, labels, about) in catalog().items():
        text += f"# HELP {name} {about}\n# TYPE {name} {kind}\n"
        inside = ",".join(f'{label}="x"' for label in labels)
        if kind == "histogram":
            comma = "," if inside else ""
            text += f'{name}_bucket{{{inside}{comma}le="+Inf"}} 1\n{name}_sum{{{inside}}} 1\n{name}_count{{{inside}}} 1\n'
        else:
            text += f"{name}{{{inside}}} 1\n"
    done = promtool("check", "metrics", input=text)
    assert done.returncode == 0 and not done.stdout + done.stderr, done.stdout + done.stderr


def test_the_sources_name_what_the_catalogue_has():
    """Every name that is given to a registry, and every row that a collector shows."""
    known, named = set(catalog()), set()
    for folder in ("kube", "operator", "common", "worker"):
        for path in (ROOT / folder).rglob("*.[hc]*"):
            if path.name not in ("metric_catalog.cc", "process_metrics.cc"):
                named |= set(re.findall(r'"((?:rubato|process|controller_runtime|workqueue|informer|rest_client|'
                                        r'leader_election|kube_events)_[a-z0-9_]+)"', path.read_text()))
    assert named <= known, f"not in operator/control/metric_catalog.cc: {named - known}"
    silent = known - named - {name for name in known if name.startswith("process_")} - {"rubato_build_info"}
    assert not silent, f"in the catalogue, and shown by nobody: {silent}"


def test_the_run_has_what_the_catalogue_has(run):
    known = catalog()
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) if re.sub(r"_(bucket|sum|count)$", "", name) in known else name
             for name in run.names()} - {"up"}
    assert shown <= set(known), f"not in the catalogue: {shown - set(known)}"
    known = {name: row for name, row in known.items() if not name.startswith(("rubato_agent_", "rubato_worker_"))}
    assert set(known) - shown <= NOT_IN_RUN, f"not in the run: {set(known) - shown - NOT_IN_RUN}"
    for series in run.series:
        name, _, labels = series.partition("{")
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        kind, wanted, _ = known.get(name) or known.get(base) or ("", set(), "")
        found = set(re.findall(r'([a-z_]+)="', labels)) - {"le"}
        assert not kind or found == wanted, f"{series}: labels {found}, in the catalogue {wanted}"


# ---- alerts ----

def test_promtool_accepts_the_rules(helm, tmp_path):
    for number, found in enumerate((rules(helm), rules(helm, **SHORT))):
        path = tmp_path / f"{number}.yaml"
        path.write_text(yaml.safe_dump(found))
        done = promtool("check", "rules", "--lint-fatal", path)
        assert done.returncode == 0, done.stdout + done.stderr
    assert len(found["groups"][0]["rules"]) == 5


def fires(alert, at, **labels):
    matchers = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f'count(ALERTS{{alertname="{alert}",alertstate="firing",{matchers}}}) > bool 0', at, ONE


def silent(alert, at, **labels):
    matchers = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f'count(absent(ALERTS{{alertname="{alert}",alertstate="firing",{matchers}}}))', at, ONE


ALERTS = {
    "RubatoNoLeader": lambda e: [silent("RubatoNoLeader", e["late has failed"]),
                                 fires("RubatoNoLeader", e["the operator is away"] + 35)],
    "RubatoJobFailed": lambda e: [silent("RubatoJobFailed", e["never and late are submitted"]),
                                  fires("RubatoJobFailed", e["late has failed"] + 10, job_name="late"),
                                  silent("RubatoJobFailed", e["late has failed"] + 90)],
    "RubatoQueueWaits": lambda e: [silent("RubatoQueueWaits", e["never and late are submitted"] + 50),
                                   fires("RubatoQueueWaits", e["never and late are submitted"] + 75, queue="default")],
    "RubatoJobStuck": lambda e: [silent("RubatoJobStuck", e["late has failed"] + 20),
                                 fires("RubatoJobStuck", e["pair has given its GPU back"] - 3, job_name="pair"),
                                 silent("RubatoJobStuck", e["the operator is away"])],
    "RubatoGoodputLow": lambda e: [silent("RubatoGoodputLow", e["late has failed"] + 25),
                                   fires("RubatoGoodputLow", e["pair has given its GPU back"], queue="default")],
}


@pytest.mark.parametrize("alert", ALERTS)
def test_alert_fires_when_it_should_and_only_then(run, helm, tmp_path, alert):
    said = evaluate(run, tmp_path, ALERTS[alert](run.events), rules(helm, **SHORT))
    assert not said, said


class BesideAnother:
    """The operators of rubato-system answer and none leads, from the first minute on; those of `elsewhere` lead."""

    interval_s = 15

    def input_series(self):
        series = 'leader_election_master_status{{name="rubato-operator",namespace="{}"}}'
        return [{"series": series.format("rubato-system"), "values": "1x4 0x20"},
                {"series": series.format("elsewhere"), "values": "1x24"}]


@pytest.mark.parametrize("namespace,word", [("rubato-system", fires), ("elsewhere", silent)])
def test_the_leader_of_another_installation_counts_for_nothing(helm, tmp_path, namespace, word):
    found = rules(helm, "--set", "metrics.serviceMonitor.enabled=true", "--namespace", namespace)
    said = evaluate(BesideAnother(), tmp_path, [silent("RubatoNoLeader", 60), word("RubatoNoLeader", 300)], found)
    assert not said, said


def test_every_alert_is_tested(helm):
    assert {rule["alert"] for rule in rules(helm)["groups"][0]["rules"]} == set(ALERTS)


# ---- dashboard ----

def queries():
    return [(panel["title"], target["expr"]) for panel in json.loads(DASHBOARD.read_text())["panels"]
            for target in panel.get("targets", [])]


def test_every_query_of_the_dashboard_returns_data(run, tmp_path):
    """At some time of the run, each of them."""
    cases = []
    for _, expr in queries():
        for name, value in DEFAULTS.items():
            expr = expr.replace(name, value)
        assert "$" not in expr, expr
        at = f"{run.end_s}s:{run.interval_s}s"
        cases.append((f"count(last_over_time(({expr})[{at}])) > bool 0", run.end_s, ONE))
    said = evaluate(run, tmp_path, cases)
    assert not said, said


def test_the_dashboard_is_one_that_grafana_takes():
    found = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in found["panels"]]
    assert len(ids) == len(set(ids)) and found["uid"] == "rubato"
    assert {v["name"] for v in found["templating"]["list"]} == {"datasource", "queue", "namespace", "job_name"}
    for panel in found["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
