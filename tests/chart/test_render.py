"""The chart without a cluster: lint, golden renderings, the schema of its values, the kustomize base."""

import copy
import json
import re
import shutil
import subprocess

import pytest
import yaml
from charts import (ALL_OPTIONS, CHART, KUSTOMIZE, ROOT, Helm, Loader, is_hook, kept_files, key, namespace_object,
                    objects, plain)

BAD_VALUES = [  # what is set, and a word of the refusal
    ("replicas=0", "minimum"), ("replicas=two", "want integer"), ("replica=2", "additional properties"),
    ("image.pullPolicy=Sometimes", "value must be one of"), ("image.repository=", "minLength"),
    ("image.digest=sha256:12", "pattern"), ("scheduler.gpuResource=gpu", "pattern"),
    ("workers.runtimeClassName=NVIDIA", "pattern"), ("workers.sharedMemory=much", "pattern"),
    ("scheduler.minGain=2", "maximum"), ("certificates.hours=0", "minimum"),
    ("certificates.authoritySecret=Our CA", "pattern"), ("scheduler.gangSeconds=0", "minimum"),
    ("scheduler.nodeLeaseSeconds=1000000", "maximum"), ("scheduler.maintenanceLeadSeconds=-1", "minimum"),
    ("scheduler.leavingTaints[0]=spot:NoSchedule", "pattern"),
    ("leaderElection.leaseSeconds=1", "minimum"), ("coordinator.port=0", "minimum"),
    ("coordinator.port=8080", "a number of its own"),
    ("coordinator.port=65536", "maximum"), ("podAntiAffinity=maybe", "value must be one of"),
    ("podDisruptionBudget.minAvailable=half", "pattern"), ("metrics.serviceMonitor.interval=often", "pattern"),
    ("priorityClasses[0].value=1", "name"), ("defaults.policy.name=other", "default"),
    ("log.json=perhaps", "want boolean"), ("networkPolicy.workerNamespaces[0]=Team_A", "pattern"),
    ("serviceAccount.name=Operator", "pattern"), ("crds.keep=1", "want boolean"),
    ("scheduler.gpuResource=null", "missing property 'gpuResource'"), ("workers=null", "missing property 'workers'"),
    ("metrics.port=null", "missing property 'port'"), ("podDisruptionBudget.minAvailable=2", "less than replicas"),
    ("podDisruptionBudget.minAvailable=51%", "less than replicas"), ("nameOverride=team.", "pattern"),
    ("podDisruptionBudget.minAvailable=null", "missing property 'minAvailable'"),
    ("metrics.prometheusRule.enabled=true,metrics.prometheusRule.stuckFor=null", "missing property 'stuckFor'"),
    ("defaults.queue.name=null", "missing property 'name'"), ("crds.keep=null", "missing property 'keep'"),
    ("nameOverride=" + "a" * 55, "maxLength"), ("fullnameOverride=2gpus", "pattern"),
    ("defaults.queue.weight=2000000", "maximum"), ("coordinator.service.clusterIP=None", "pattern"),
    ("commonLabels.team=the platform", "pattern"),
    ("metrics.workers.podMonitor.enabled=true", "metrics.workers.enabled"),
    (",".join(f"scheduler.topologyLevels[{at}].name=rack,scheduler.topologyLevels[{at}].label=l{at}" for at in (0, 1)),
     "two levels have one name"),
]
GOOD_VALUES = [  # beside the golden renderings
    "enabled=true",  # the condition of a chart that depends on this one
    "podDisruptionBudget.minAvailable=50%", "podDisruptionBudget.minAvailable=0",
    "replicas=1,podDisruptionBudget.minAvailable=1",  # there is none then
    "coordinator.service.clusterIP=fd00::7", "image.tag=null", "tolerations=null",
    "fullnameOverride=rubato,nameOverride=team.a", "nameOverride=team.a",
    "defaults.queue=null,defaults.policy=null,metrics.serviceMonitor=null,metrics.workers.podMonitor=null,"
    "metrics.prometheusRule=null,metrics.dashboard=null",
    "metrics.serviceMonitor=null,metrics.prometheusRule.enabled=true,metrics.service.enabled=false",
    "metrics.serviceMonitor.enabled=true,metrics.serviceMonitor.interval=null,"
    "metrics.serviceMonitor.scrapeTimeout=null",
    "metrics.workers.enabled=true,metrics.workers.podMonitor.enabled=true,"
    "metrics.workers.podMonitor.interval=null,metrics.workers.podMonitor.scrapeTimeout=null",
    "podAntiAffinity=null,terminationGracePeriodSeconds=null,log.json=null,log.verbose=null,rbac.aggregate=null",
    "podDisruptionBudget.enabled=false,podDisruptionBudget.minAvailable=null,metrics.prometheusRule.waitSeconds=null",
    "defaults.queue.create=false,defaults.queue.name=null,metrics.secure.port=null,metrics.workers.port=null",
    "probes.startup.periodSeconds=null,probes.startup.failureThreshold=null",
]
OPTIONAL = {  # templates look whether these are there; crds.keep is not among them: without it jobs could be lost
    "", ".resources", ".terminationGracePeriodSeconds", ".podAntiAffinity", ".defaults.queue", ".defaults.policy",
    ".metrics.serviceMonitor", ".metrics.workers.podMonitor", ".metrics.prometheusRule", ".metrics.dashboard",
    *(f".metrics.{monitor}.{name}" for monitor in ("serviceMonitor", "workers.podMonitor")
      for name in ("interval", "scrapeTimeout")),
}


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


@pytest.mark.parametrize("setting", GOOD_VALUES)
def test_schema_admits(helm, setting):
    def walk(found, path):
        assert found is not None, path
        if isinstance(found, list):
            found = dict(enumerate(found))
        for name, value in found.items() if isinstance(found, dict) else ():
            walk(value, [*path, name])
    rendered = [found for found in objects(helm.template("--set", setting))
                if found["kind"] != "CustomResourceDefinition"]
    assert rendered
    walk(rendered, [])


def test_what_has_no_empty_value_cannot_be_left_out():
    """A key with nothing after it (or null) is taken out by Helm, and the templates would render nothing there. What an
    object's own switch turns off may be left out with it off."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    def has_empty(path, described):
        if path in OPTIONAL or described.get("type") == "boolean":
            return path != ".crds.keep"
        if described.get("type") == "string":
            return "minLength" not in described and re.search(described.get("pattern", ""), "") is not None
        return described.get("type") == "array" or "$ref" in described or \
            described.get("type") == "object" and "properties" not in described

    def walk(values, schema, path):
        given = {name: described for name, described in schema["properties"].items() if name in values}
        wanted = {name for name, described in given.items() if not has_empty(f"{path}.{name}", described)}
        assert set(schema.get("required", [])) | set(schema.get("then", {}).get("required", [])) == wanted, path
        for name, described in given.items():
            # Kubernetes has defaults for the parts of these.
            if "properties" in described and name != "resources" and path != ".probes":
                walk(values[name], described, f"{path}.{name}")

    walk(values, schema, "")


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


def said_of(value):
    """A default as the table of docs/install.md has it."""
    if isinstance(value, list) and value and "label" in value[0]:
        return ", ".join(f"{level['name']}: {level['label']}" for level in value)
    return str(value).lower() if isinstance(value, bool) else str(value) if value not in ("", []) else "none"


def test_the_table_of_the_install_page_has_the_defaults_of_the_chart():
    page = (ROOT / "docs" / "install.md").read_text()
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    in_words = {"namespaces": "all", "installation": "the release's name", "priorityClasses": "three",
                "scheduler.leavingTaints": "seven keys"}
    assert not values["namespaces"] and not values["installation"] and len(values["priorityClasses"]) == 3
    assert len(values["scheduler"]["leavingTaints"]) == 7
    table = page.split("| value | default |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", table, re.M)
    assert len(rows) > 10
    for names, default in rows:
        for name in re.findall(r"`([^`]*)`", names):
            value = values
            for word in name.split("."):
                value = value[word]
            assert default.replace("`", "") == in_words.get(name, said_of(value)), name


def test_the_authority_of_the_install_page_is_one_that_the_chart_can_be_told_of(helm):
    """Its Certificate of cert-manager makes the Secret that the sentence below it names."""
    page = (ROOT / "docs" / "install.md").read_text()
    [block] = re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S)
    certificate = yaml.safe_load(block)
    spec = certificate["spec"]
    assert (certificate["apiVersion"], certificate["kind"]) == ("cert-manager.io/v1", "Certificate")
    assert spec["isCA"] and spec["privateKey"] == {"algorithm": "ECDSA", "size": 256} and spec["issuerRef"]["name"]
    [setting] = re.findall(r"`--set (certificates\.authoritySecret=[^`]*)`", page)
    assert setting.split("=")[1] == spec["secretName"]
    rendered = helm.template("--set", setting, namespace=certificate["metadata"]["namespace"])
    assert f"--authority-secret={spec['secretName']}" in rendered


@pytest.mark.parametrize("release", ["a" * 53, "team.a", "a" * 38 + "--b"])
@pytest.mark.parametrize("override", ["", "b" * 54, "team.b"])
def test_names_stay_within_their_limits(helm, release, override):
    found = objects(helm.template("--set", f"nameOverride={override}", release=release))
    assert all(len(item["metadata"]["name"]) <= 63 for item in found if item["kind"] != "CustomResourceDefinition")
    assert all(len(value) <= 63 for item in found for value in item["metadata"]["labels"].values())
    services = [item["metadata"]["name"] for item in found if item["kind"] == "Service"]
    assert services and all(re.fullmatch(r"[a-z][-a-z0-9]*[a-z0-9]", name) for name in services)
    [deployment] = [item for item in found if item["kind"] == "Deployment"]
    [installation] = [word for word in deployment["spec"]["template"]["spec"]["containers"][0]["args"]
                      if word.startswith("--installation=")]  # a value of labels
    assert re.fullmatch(r"--installation=[a-z]([-a-z0-9]*[a-z0-9])?", installation)


def test_a_release_whose_name_begins_with_a_digit_is_told_the_way_out(helm):
    done = helm.try_run("template", "2nd", CHART)
    assert done.returncode != 0 and "set fullnameOverride" in done.stderr
    assert objects(helm.template("--set", "fullnameOverride=second", release="2nd"))


def test_names_that_look_like_numbers_are_texts(helm):
    given = {"namespaces": ["2024"], "networkPolicy.workerNamespaces": ["2024"],
             "priorityClasses": [{"name": "2024", "value": 1}], "fullnameOverride": "true"}
    given |= dict.fromkeys(["serviceAccount.name", "certificates.authoritySecret", "metrics.secure.certificateSecret",
                            "priorityClassName", "defaults.queue.name"], "2024")
    given |= dict.fromkeys(["metrics.secure.enabled", "metrics.serviceMonitor.enabled",
                            "metrics.prometheusRule.enabled"], True)
    words = [word for name, value in given.items() for word in ("--set-json", f"{name}={json.dumps(value)}")]
    texts = {"name", "namespace", "secretName", "priorityClassName", "serviceAccountName", "resourceNames"}

    def walk(found, path):
        if isinstance(found, dict):
            for name, value in found.items():
                walk(value, [*path, name])
        elif isinstance(found, list):
            for value in found:
                walk(value, path)
        elif path[-1] in texts or path[-2] in ("labels", "matchLabels"):
            assert isinstance(found, str), (path, found)

    for item in objects(helm.template(*words, release="2024", namespace="2024")):
        if item["kind"] != "CustomResourceDefinition":
            walk(item, [item["kind"]])


def test_argo_cd_leaves_alone_what_is_made_once(helm):
    """It would make a hook anew at each sync, and delete all of them where one object is refused."""
    once = [found for found in objects(helm.template()) if is_hook(found)]
    assert {found["kind"] for found in once} == {"TrainingQueue", "SchedulingPolicy"}
    assert {found["metadata"]["annotations"]["argocd.argoproj.io/hook"] for found in once} == {"Skip"}
    # Of what docs/install.md has made by hand, with the labels of the release, it deletes nothing.
    options = {found["metadata"]["annotations"]["argocd.argoproj.io/sync-options"] for found in map(plain, once)}
    assert options == {"Prune=false,Delete=false"}


class OneOfEachKey(Loader):
    """Refuses a key that is there twice, as kustomize and Flux do."""

    def construct_mapping(self, node, deep=False):
        names = [self.construct_object(name, deep=True) for name, _ in node.value]
        assert len(names) == len(set(names)), (names, node.start_mark.line)
        return super().construct_mapping(node, deep)


def test_labels_and_annotations_of_ours_can_be_given_too(helm):
    """`rubatoctl doctor` finds pods by one of them, and Services by others."""
    told = {f"{kind}/{name}": "ml" for kind, names in {
        "app.kubernetes.io": ("name", "instance", "version", "part-of", "managed-by", "component"),
        "helm.sh": ("chart", "resource-policy"), "rubato.dev": ("component",)}.items() for name in names}
    places = ["commonLabels", "podLabels", "coordinator.service.annotations"]
    for monitor in ("serviceMonitor", "workers.podMonitor", "prometheusRule", "dashboard"):
        places.append(f"metrics.{monitor}.labels")
    words = [word for place in places for word in ("--set-json", f"{place}={json.dumps(told)}")]
    rendered = list(yaml.load_all(helm.template("--values", ALL_OPTIONS, *words), OneOfEachKey))
    [deployment] = [found for found in rendered if found["kind"] == "Deployment"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels["rubato.dev/component"] == "operator" and labels["app.kubernetes.io/part-of"] == "ml"
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    [metrics] = [found for found in rendered
                 if found["kind"] == "Service" and found["metadata"]["name"].endswith("-metrics")]
    [monitor] = [found for found in rendered if found["kind"] == "ServiceMonitor"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= metrics["metadata"]["labels"].items()


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
    assert deployment["spec"]["template"]["spec"]["enableServiceLinks"] is True  # or there is no such variable
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    variable = name.upper().replace("-", "_") + "_SERVICE_HOST"
    assert f"--coordinators=[$({variable})]:9443,{name}.ml.svc:9443" in container["args"]
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


def notes(helm, *values):
    said = helm.run("install", "rubato", CHART, "--dry-run=client", "--namespace", "rubato-system", *values)
    return said.split("NOTES:")[1]


def test_notes_tell_the_next_command(helm):
    said = notes(helm)
    assert "rollout status deployment/rubato-operator" in said
    assert r"nvidia\.com/gpu" in said
    assert "kubectl delete priorityclass rubato-operator rubato-" in said
    assert "leaves the CRDs and every TrainingJob in place" in said
    assert "NOTE" not in said


@pytest.mark.parametrize("setting,word", [
    ("crds.keep=false", "kubectl delete trainingjobs --all --all-namespaces"), ("priorityClassName=ours", "class ours"),
    ("replicas=1", "one replica only"), ("networkPolicy.enabled=false", "any pod may dial the coordinator")])
def test_notes_warn(helm, setting, word):
    said = notes(helm, "--set", setting)
    assert "NOTE: " in said and word in said


@pytest.mark.parametrize("setting", ["priorityClassName=system-cluster-critical", "priorityClassName=rubato-high",
                                     "priorityClassName="])
def test_notes_are_silent_of_a_priority_class_that_there_is(helm, setting):
    assert "NOTE" not in notes(helm, "--set", setting)
