"""`rubatoctl doctor` on a real API server: each fault is made, named with its way out, and gone when it is mended."""

import json
import os
import pathlib
import subprocess
from datetime import datetime, timedelta, timezone

import pytest

from control_plane import ControlPlane, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ["RUBATO_BUILD"]) / "bin"
LIMIT_S = 60


@pytest.fixture(scope="module")
def plane():
    with ControlPlane(controller_manager=True) as found:
        wait_until(lambda: found.kubectl("get", "namespace", "kube-node-lease", check=False).returncode == 0, LIMIT_S,
                   "namespace kube-node-lease")
        found.kubectl("create", "namespace", "rubato-system")
        yield found


def doctor(plane, *words, kubeconfig=None):
    """(exit status, what it prints)."""
    done = subprocess.run([BIN / "rubatoctl", "--kubeconfig", kubeconfig or plane.kubeconfig, "doctor", *words],
                          capture_output=True, text=True, timeout=LIMIT_S)
    return done.returncode, done.stdout + done.stderr


def apply(plane, *objects):
    plane.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


def set_status(plane, what, status, *where):
    plane.kubectl(*where, "patch", what, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))


def lease(plane, ns, name, holder, age_s=0):
    now = datetime.now(timezone.utc) - timedelta(seconds=age_s)
    apply(plane, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name, "namespace": ns},
                  "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15,
                           "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}})


def node(plane, gpus, labels=None):
    apply(plane, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": labels or {}}})
    set_status(plane, "node/n1", {"capacity": gpus, "allocatable": gpus,
                                  "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]})


def test_each_fault_of_a_cluster_is_named_until_it_is_mended(plane):
    status, said = doctor(plane)
    assert status == 1
    assert "WRONG    kind TrainingJob: its CRD is not installed\n         What to do: `kubectl apply --server-side" in said
    plane.kubectl("apply", "--server-side", "-f", ROOT / "crds")
    wait_until(lambda: "TrainingJob, TrainingQueue, SchedulingPolicy, ThroughputProfile of this build"
               in doctor(plane)[1], LIMIT_S, "the kinds")
    doc = {"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/description", "value": "of another build"}
    plane.kubectl("patch", "crd", "trainingqueues.rubato.dev", "--type=json", "-p", json.dumps([doc]))
    assert "warning  kind TrainingQueue: its CRD is of another build than this rubatoctl" in doctor(plane)[1]

    assert "WRONG    operator: none has led in namespace rubato-system" in doctor(plane)[1]
    lease(plane, "rubato-system", "rubato-operator", "operator-0", age_s=630)
    assert "WRONG    operator: nobody leads: operator-0 last said so 10m" in doctor(plane)[1]
    lease(plane, "rubato-system", "rubato-operator", "operator-0")
    assert "ok       operator: operator-0 leads" in doctor(plane)[1]

    assert "WRONG    GPUs: the cluster has no nodes" in doctor(plane)[1]
    node(plane, {}, {"nvidia.com/gpu.present": "true"})
    assert "WRONG    node n1: holds GPUs, and offers none" in doctor(plane)[1]
    node(plane, {"nvidia.com/gpu": "8"})
    assert "ok       GPUs: 8 nvidia.com/gpu on 1 node" in doctor(plane)[1]

    lease(plane, "kube-node-lease", "n1", "n1", age_s=-30)
    assert "warning  clock of node n1: " in doctor(plane)[1]
    lease(plane, "kube-node-lease", "n1", "n1")
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", ROOT / "crds")
    lease(plane, "rubato-system", "rubato-operator", "operator-0")
    status, said = doctor(plane)
    assert status == 0 and "WRONG" not in said, said
    assert "ok       clocks: agree" in said  # the Date of the API server's answers


def test_each_fault_of_a_job_is_named(plane):
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", ROOT / "crds")
    job = {"apiVersion": "rubato.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "gpt", "namespace": "default"},
           "spec": {"gpus": {"min": 1, "max": 4},
                    "training": {"model": {"family": "gpt2", "layers": 1, "hidden": 8, "heads": 1},
                                 "data": {"path": "/data/t"}, "stop": {"steps": 9}, "checkpoint": {"path": "/ckpt"},
                                 "batch": {"global": 8, "micro": 1, "sequenceLength": 16}},
                    "template": {"spec": {
                        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "text"}},
                                    {"name": "ckpt", "hostPath": {"path": "/srv/ckpt"}}],
                        "containers": [{"name": "worker", "image": "nowhere/x:1", "volumeMounts": [
                            {"name": "data", "mountPath": "/data"}, {"name": "ckpt", "mountPath": "/ckpt"}]}]}}}}
    wait_until(lambda: plane.kubectl("apply", "-f", "-", input=json.dumps(job), check=False).returncode == 0, LIMIT_S,
               "TrainingJobs to be served")
    status, said = doctor(plane, "gpt")
    assert status == 1
    assert "warning  job default/gpt: no operator has looked at it yet" in said
    assert "WRONG    job default/gpt: data at /data/t: PersistentVolumeClaim text does not exist" in said
    assert "warning  job default/gpt: checkpoints at /ckpt lie in /srv/ckpt of each node" in said

    apply(plane, {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "text", "namespace": "default"},
                  "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "none",
                           "resources": {"requests": {"storage": "1Gi"}}}})
    wait_until(lambda: "claim text is not bound yet" in doctor(plane, "gpt")[1], LIMIT_S, "the claim to be named")

    set_status(plane, "tj/gpt", {"state": "Queued", "reason": "NeverFits", "conditions": [
        {"type": "Queued", "status": "True", "reason": "NeverFits", "message": "4 GPUs of 0",
         "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
    said = doctor(plane, "gpt")[1]
    assert "warning  job default/gpt: Queued (NeverFits): 4 GPUs of 0\n         What to do: docs/runbook.md: NeverFits" in said

    wait_until(lambda: plane.kubectl("get", "serviceaccount", "default", check=False).returncode == 0, LIMIT_S,
               "the namespace's account")
    apply(plane, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gpt-w0", "namespace": "default",
                                                               "labels": {"rubato.dev/job-name": "gpt"}},
                  "spec": {"nodeName": "n1", "containers": [{"name": "worker", "image": "nowhere/x:1"}]}})
    set_status(plane, "pod/gpt-w0", {"containerStatuses": [
        {"name": "worker", "image": "nowhere/x:1", "imageID": "", "ready": False, "restartCount": 0,
         "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}]})
    assert "WRONG    job default/gpt: pod gpt-w0 on node n1: ImagePullBackOff (nowhere/x:1)" in doctor(plane, "gpt")[1]
    assert "WRONG    job default/other: does not exist" in doctor(plane, "other")[1]


def test_who_may_not_is_told(plane, tmp_path):
    plane.kubectl("create", "serviceaccount", "guest")
    config = json.loads(plane.kubectl("config", "view", "--raw", "-o", "json").stdout)
    config["users"] = [{"name": "guest", "user": {
        "token": plane.kubectl("create", "token", "guest").stdout.strip()}}]
    config["contexts"][0]["context"]["user"] = "guest"
    guest = tmp_path / "guest.kubeconfig"
    guest.write_text(json.dumps(config))
    status, said = doctor(plane, kubeconfig=guest)
    assert status == 1
    assert "WRONG    your rights in default: you may not create trainingjobs, get trainingjobs" in said
    assert "warning  kind TrainingJob: cannot be looked at" in said


def test_an_account_of_the_operator_without_rights_is_told(plane):
    wait_until(lambda: plane.kubectl("-n", "rubato-system", "get", "serviceaccount", "default",
                                     check=False).returncode == 0, LIMIT_S, "the namespace's account")
    apply(plane, {"apiVersion": "v1", "kind": "Pod", "metadata": {
        "name": "operator", "namespace": "rubato-system", "labels": {"rubato.dev/component": "operator"}},
        "spec": {"nodeName": "n1", "containers": [{"name": "operator", "image": "x"}]}})
    said = doctor(plane)[1]
    assert "WRONG    the operator's rights: system:serviceaccount:rubato-system:default may not list trainingjobs" in said
    assert "install the chart with rbac.create=true" in said


def test_a_server_that_is_not_there(tmp_path, plane):
    config = json.loads(plane.kubectl("config", "view", "--raw", "-o", "json").stdout)
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    away = tmp_path / "away.kubeconfig"
    away.write_text(json.dumps(config))
    status, said = doctor(plane, kubeconfig=away)
    assert status == 1 and said.startswith("WRONG    API server: ")
