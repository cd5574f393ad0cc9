"""The chart without a cluster: lint, golden renderings, the schema of its values, the kustomize base."""

import copy
import json
import re
import shutil
import subprocess

import pytest
import yaml
from charts import (ALL_OPTIONS, CHART, KUSTOMIZE, ROOT, Helm, is_hook, kept_files, key, namespace_object,
                    objects, plain)

BAD_VALUES = [  # what is set, and a word of the refusal
    ("replicas=0", "minimum"), ("replicas=two", "want integer"), ("replica=2", "additional properties"),
    ("image.pullPolicy=Sometimes", "value must be one of"), ("image.repository=", "minLength"),
    ("image.digest=sha256:12", "pattern"), ("scheduler.gpuResource=gpu", "pattern"),
    ("workers.runtimeClassName=NVIDIA", "pattern"), ("workers.sharedMemory=much", "pattern"),
    ("scheduler.minGain=2", "maximum"), ("certificates.hours=0", "minimum"),
    ("certificates.authoritySecret=Our CA", "pattern"), ("scheduler.gangSeconds=0", "minimum"),
    ("scheduler.nodeLeaseSeconds=1000000", "maximum"),
    ("leaderElection.leaseSeconds=1", "minimum"), ("coordinator.port=0", "minimum"),
    ("coordinator.port=8080", "a number of its own"),
    ("coordinator.port=65536", "maximum"), ("podAntiAffinity=maybe", "value must be one of"),
    ("podDisruptionBudget.minAvailable=half", "pattern"), ("metrics.serviceMonitor.interval=often", "pattern"),
    ("priorityClasses[0].value=1", "name"), ("defaults.policy.name=other", "default"),
    ("log.json=perhaps", "want boolean"), ("networkPolicy.workerNamespaces[0]=Team_A", "pattern"),
    ("serviceAccount.name=Operator", "pattern"), ("crds.keep=1", "want boolean"),
]


@pytest.fixture(scope="module")
def helm(tmp_path_factory):
    return Helm(tmp_path_factory.mktemp("helm"))


@pytest.mark.parametrize("values", [[], ["--values", ALL_OPTIONS]], ids=["default", "all-options"])
def test_lint(helm, values):
    said = helm.run("lint", "--strict", CHART, *values)
    assert "0 chart(s) failed" in said


def test_what_is_kept_is_what_the_chart_says(helm):
    for path, text in kept_files(helm).items():
        assert path.exists() and path.read_text() == text, \
            f"{path.relative_to(ROOT)} differs from what helm/rubato renders: run `make chart`"


def test_crds_of_the_chart_are_those_of_the_tree(helm):
    ours = {path.name: path.read_bytes() for path in (ROOT / "crds").glob("*.yaml")}
    charts = {path.name: path.read_bytes() for path in (CHART / "files" / "crds").glob("*.yaml")}
    assert ours == charts, "run `make crds`"
    rendered = {key(found): plain(found) for found in objects(helm.template())
                if found["kind"] == "CustomResourceDefinition"}
    for text in ours.values():
        [wanted] = objects(text)
        found = copy.deepcopy(rendered[key(wanted)])
        del found["metadata"]["labels"]
        assert found == wanted


def test_crds_are_kept_unless_told(helm):
    def policies(*values):
        return {found["metadata"].get("annotations", {}).get("helm.sh/resource-policy")
                for found in objects(helm.template(*values)) if found["kind"] == "CustomResourceDefinition"}
    assert policies() == {"keep"}
    assert policies("--set", "crds.keep=false") == {None}
    assert policies("--set", "crds.enabled=false") == set()


@pytest.mark.parametrize("setting,word", BAD_VALUES)
def test_schema_refuses(helm, setting, word):
    done = helm.try_run("template", "rubato", CHART, "--set", setting)
    assert done.returncode != 0, f"{setting} was let through"
    assert word in done.stderr, done.stderr


def test_every_value_is_described_and_used():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    everywhere = "".join(path.read_text() for path in (CHART / "templates").iterdir())

    def walk(values, schema, path):
        described = schema.get("properties", {})
        if schema.get("additionalProperties") is not False or not isinstance(values, dict):
            return
        assert set(values) - {"global"} <= set(described), f"{path}: not in values.schema.json"
        if path:
            optional = {"digest", "claims", "terminationGracePeriodSeconds", "successThreshold"}
            missing = set(described) - set(values) - optional
            assert not missing or path.startswith(".probes") or path == ".resources", \
                f"{path}: {missing} not in values.yaml"
        for name, value in values.items():
            assert re.search(rf"\.{name}\b", everywhere) or path in (".probes", ".podSecurityContext",
                                                                      ".securityContext", ".resources") \
                or path.startswith(".probes."), f"{path}.{name} is used by no template"
            walk(value, described[name], f"{path}.{name}")

    walk(values, schema, "")


def test_names_stay_within_their_limits(helm):
    found = objects(helm.template(release="a" * 53))
    assert all(len(item["metadata"]["name"]) <= 63 for item in found if item["kind"] != "CustomResourceDefinition")


def test_the_default_policy_starts_gangs_as_the_values_say(helm):
    def gang_start(*settings):
        words = [word for setting in settings for word in ("--set-json", setting)]
        [policy] = [found for found in objects(helm.template(*words)) if found["kind"] == "SchedulingPolicy"]
        return policy["spec"]["gangStartSeconds"]
    assert gang_start() == 300
    assert gang_start("scheduler.gangSeconds=600") == 600
    assert gang_start("scheduler.gangSeconds=0.5") == 1
    assert gang_start("scheduler.gangSeconds=600", "defaults.policy.spec.gangStartSeconds=60") == 60


def test_release_of_another_name_shares_nothing_namespaced(helm):
    one = {key(found) for found in objects(helm.template())}
    other = {key(found) for found in objects(helm.template(release="second", namespace="elsewhere"))}
    shared = {kind for kind, _, _ in one & other}
    assert shared == {"CustomResourceDefinition", "PriorityClass", "TrainingQueue", "SchedulingPolicy"}
    # As docs/install.md has it; the queue and the policy are left alone where they are there already.
    beside = objects(helm.template("--set", "crds.enabled=false,priorityClassName=", "--set-json", "priorityClasses=[]",
                                   release="second", namespace="elsewhere"))
    assert {kind for kind, _, _ in one & {key(found) for found in beside}} == {"TrainingQueue", "SchedulingPolicy"}
    assert all("priorityClassName" not in found["spec"]["template"]["spec"] for found in beside
               if found["kind"] == "Deployment")


def test_kustomize_renders_the_same_objects(helm):
    def built(name):
        done = subprocess.run([shutil.which("kubectl"), "kustomize", KUSTOMIZE / name], capture_output=True,
                              text=True, check=True, timeout=60)
        return {key(found): found for found in objects(done.stdout)}
    rendered = [(is_hook(found), plain(found)) for found in objects(helm.template())]
    namespace = namespace_object()
    assert built("base") == {key(found): found for hook, found in rendered if not hook} | {key(namespace): namespace}
    assert built("defaults") == {key(found): found for hook, found in rendered if hook}


def test_agents_know_the_coordinators_service_by_its_address_and_by_its_name(helm):
    rendered = objects(helm.template("--set", "coordinator.port=9443", release="gpu", namespace="ml"))
    [deployment] = [found for found in rendered if found["kind"] == "Deployment"]
    [service] = [found for found in rendered
                 if found["kind"] == "Service" and found["metadata"]["name"].endswith("-coordinator")]
    name = service["metadata"]["name"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    variable = name.upper().replace("-", "_") + "_SERVICE_HOST"
    assert f"--coordinators=$({variable}):9443,{name}.ml.svc:9443" in container["args"]
    assert service["spec"]["ports"][0]["port"] == 9443


def test_jobs_can_be_ended_in_a_namespace_that_has_lost_its_role(helm):
    """The namespace controller deletes a RoleBinding before jobs let their finalizer go."""
    rendered = objects(helm.template("--set", "namespaces={team-a}"))
    everywhere = [rule for found in rendered if found["kind"] == "ClusterRole" for rule in found["rules"]
                  if found["metadata"]["name"] == "rubato-operator"]
    granted = {(resource, verb) for rule in everywhere for resource in rule.get("resources", []) for verb in rule["verbs"]}
    assert {("trainingjobs", "list"), ("trainingjobs", "watch"), ("trainingjobs", "patch"),
            ("trainingjobs/status", "patch")} <= granted
    assert not granted & {("trainingjobs", "delete"), ("pods", "create"), ("pods", "delete"), ("secrets", "create")}


def test_notes_tell_the_next_command(helm):
    said = helm.run("install", "rubato", CHART, "--dry-run=client", "--namespace", "rubato-system")
    notes = said.split("NOTES:")[1]
    assert "rollout status deployment/rubato-operator" in notes
    assert r"nvidia\.com/gpu" in notes
    assert "kubectl delete priorityclass rubato-operator rubato-" in notes
