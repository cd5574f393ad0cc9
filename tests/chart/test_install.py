"""The chart on a real API server: install, upgrade, rollback, uninstall, install again. Nothing runs here (there is
no kubelet); that is for tests/cluster.
"""

import json

import pytest
import yaml
from charts import ALL_OPTIONS, CHART, KUSTOMIZE, NAMESPACE, Helm, objects
from control_plane import ControlPlane

JOB = {"apiVersion": "rubato.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "kept", "namespace": "default"},
       "spec": {"gpus": {"min": 1, "max": 2},
                "training": {"model": {"family": "gpt2", "layers": 1, "hidden": 8, "heads": 1}, "data": {"path": "/d"},
                             "batch": {"global": 8, "micro": 1, "sequenceLength": 16}, "stop": {"steps": 10}},
                "template": {"spec": {"containers": [{"name": "worker", "image": "x"}]}}}}


def monitoring_crd(kind):
    """As much of a CRD of the Prometheus operator as the API server needs to take such an object."""
    plural = kind.lower() + "s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced",
                 "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
                 "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
                     "type": "object", "x-kubernetes-preserve-unknown-fields": True}}}]}}


@pytest.fixture(scope="module")
def plane():
    with ControlPlane() as plane:
        for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule"):
            plane.kubectl("apply", "-f", "-", input=json.dumps(monitoring_crd(kind)))
        yield plane


@pytest.fixture(scope="module")
def helm(plane, tmp_path_factory):
    return Helm(tmp_path_factory.mktemp("helm"), plane.kubeconfig)


def exists(plane, *words):
    return plane.kubectl("get", *words, check=False).returncode == 0


def test_life_of_a_release(plane, helm):
    # First installation: the CRDs, then what is made of them.
    said = helm.run("install", "rubato", CHART, "--namespace", NAMESPACE, "--create-namespace")
    assert "rubato.dev" not in said.split("NOTES:")[0]
    plane.kubectl("wait", "--for=condition=Established", "crd", "trainingjobs.rubato.dev", "--timeout=30s")
    assert plane.get("trainingqueue", "default")["spec"]["weight"] == 1
    assert exists(plane, "schedulingpolicy", "default")
    plane.kubectl("apply", "-f", "-", input=json.dumps(JOB))

    # What the administrator changed is theirs, and upgrades change what they are told to.
    plane.kubectl("patch", "trainingqueue", "default", "--type=merge", "-p", '{"spec":{"weight":3}}')
    plane.kubectl("patch", "crd", "trainingjobs.rubato.dev", "--type=json", "-p", json.dumps(
        [{"op": "remove", "path": "/spec/versions/0/additionalPrinterColumns"}]))
    helm.run("upgrade", "rubato", CHART, "--namespace", NAMESPACE, "--reset-then-reuse-values",
             "--set", "scheduler.minGain=-1", "--force-conflicts")
    assert plane.get("trainingqueue", "default")["spec"]["weight"] == 3
    columns = plane.get("crd", "trainingjobs.rubato.dev")["spec"]["versions"][0]["additionalPrinterColumns"]
    assert columns, "the upgrade did not bring the CRD back to what the chart says"
    assert "--min-gain=-1" in arguments(plane)

    helm.run("rollback", "rubato", "1", "--namespace", NAMESPACE)
    assert "--min-gain=0.01" in arguments(plane)
    assert exists(plane, "trainingjob", "kept")

    # Uninstalled: the operator and its rights are gone, people's work is not.
    helm.run("uninstall", "rubato", "--namespace", NAMESPACE)
    for gone in (["deployment", "-n", NAMESPACE, "rubato-operator"], ["clusterrole", "rubato-operator"],
                 ["role", "-n", "kube-node-lease", "rubato-operator"]):
        assert not exists(plane, *gone), gone
    assert exists(plane, "priorityclass", "rubato-high")
    assert exists(plane, "trainingjob", "kept")
    assert plane.get("trainingqueue", "default")["spec"]["weight"] == 3

    # Installed again: takes over what was kept.
    helm.run("install", "rubato", CHART, "--namespace", NAMESPACE)
    assert exists(plane, "trainingjob", "kept")
    assert plane.get("trainingqueue", "default")["spec"]["weight"] == 3
    helm.run("uninstall", "rubato", "--namespace", NAMESPACE)


def arguments(plane):
    pod = plane.get("deployment", "-n", NAMESPACE, "rubato-operator")["spec"]["template"]
    return pod["spec"]["containers"][0]["args"]


def test_api_server_takes_all_options(plane, helm):
    """Strictly: no unknown field, no duplicate, nothing out of range."""
    for namespace in ("team-a", "team-b", NAMESPACE):
        plane.kubectl("create", "namespace", namespace, check=False)
    crds = plane.kubectl("apply", "--server-side", "-f", CHART / "files" / "crds")
    assert "serverside-applied" in crds.stdout
    plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    text = helm.template("--values", ALL_OPTIONS)
    said = plane.kubectl("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict",
                         "-f", "-", input=text).stdout
    assert said.count("serverside-applied (server dry run)") == len(objects(text))


@pytest.mark.parametrize("values", [[], ["--values", ALL_OPTIONS]], ids=["default", "all-options"])
def test_restricted_namespace_admits_the_operator(plane, helm, values):
    plane.kubectl("create", "namespace", "strict", check=False)
    plane.kubectl("label", "--overwrite", "namespace", "strict", "pod-security.kubernetes.io/enforce=restricted")
    found = next(item for item in objects(helm.template(*values)) if item["kind"] == "Deployment")
    pod = {"apiVersion": "v1", "kind": "Pod", **found["spec"]["template"]}
    pod["metadata"].update(name="operator", namespace="strict")
    pod["spec"].pop("priorityClassName")
    plane.kubectl("apply", "--dry-run=server", "-f", "-", input=yaml.safe_dump(pod))
    pod["spec"]["containers"][0].pop("securityContext")
    refused = plane.kubectl("apply", "--dry-run=server", "-f", "-", input=yaml.safe_dump(pod), check=False)
    assert "violates PodSecurity" in refused.stderr  # so the check above means something


def test_without_helm(plane):
    """docs/install.md, the way with kubectl alone. CRDs and namespace may be there already."""
    plane.kubectl("delete", "trainingqueue,schedulingpolicy", "--all", check=False)
    plane.kubectl("apply", "--server-side", "-k", KUSTOMIZE / "base")
    plane.kubectl("wait", "--for=condition=Established", "crd", "-l", "app.kubernetes.io/part-of=rubato", "--timeout=30s")
    plane.kubectl("apply", "--server-side", "-k", KUSTOMIZE / "defaults")
    labels = plane.get("namespace", NAMESPACE)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert plane.get("deployment", "-n", NAMESPACE, "rubato-operator")["spec"]["replicas"] == 2
    assert plane.get("trainingqueue", "default")["spec"]["weight"] == 1
