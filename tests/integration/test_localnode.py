"""What rubato-localnode makes of pods, where it has to do as a kubelet does."""

import contextlib
import json
import os
import pathlib

import pytest
from cluster import wait_quickly
from control_plane import wait_until
from local_node import LIMIT_S, LocalNode


@pytest.fixture
def node(tmp_path):
    with LocalNode(tmp_path, "--slots", 1) as made:
        yield made


def test_environment_and_words_of_the_command(node):
    node.make("ConfigMap", "plain", data={"A": "a", "B": "b"})
    node.make("Secret", "hidden", data={"B": "c2VjcmV0"})
    node.run("pod", {
        "envFrom": [{"configMapRef": {"name": "plain"}}, {"prefix": "X_", "secretRef": {"name": "hidden"}},
                    {"secretRef": {"name": "none", "optional": True}}],
        "env": [{"name": "A", "value": "1"}],
        "command": ["/bin/echo", "$(A) $(B)"], "args": ["$(X_B)", "$(NONE)", "$$(A) ."]})
    assert node.said("pod") == "1 b secret $(NONE) $(A)"
    assert not (node.pod_folder("pod") / "worker.json").exists(), "values of Secrets stand in it"


def test_a_sub_path_is_made_or_is_a_file(node):
    node.make("ConfigMap", "settings", data={"app.ini": "size=3\n"})
    node.run("pod", {
        "command": ["/bin/sh", "-c", "echo mine >/made/file && cat /room/new/folder/file /opt/none/app.ini /etc/passwd "
                                     "&& echo ."],
        "volumeMounts": [
            {"name": "room", "mountPath": "/room"},
            {"name": "room", "mountPath": "/made", "subPath": "new/folder"},
            {"name": "settings", "mountPath": "/opt/none/app.ini", "subPath": "app.ini", "readOnly": True},
            {"name": "settings", "mountPath": "/etc/passwd", "subPath": "app.ini", "readOnly": True}]},
        volumes=[{"name": "room", "emptyDir": {}}, {"name": "settings", "configMap": {"name": "settings"}}])
    assert node.said("pod") == "mine\nsize=3\nsize=3"


def test_after_a_power_cut_only_logs_are_left(node):
    node.make("Secret", "hidden", data={"token": "c2VjcmV0"})
    node.run("pod", {"command": ["/bin/sh", "-c", "cat /hidden/token; echo .; exec sleep 1000"],
                     "volumeMounts": [{"name": "hidden", "mountPath": "/hidden"}]},
             volumes=[{"name": "hidden", "secret": {"secretName": "hidden"}}])
    assert node.said("pod") == "secret"
    folder = node.pod_folder("pod")
    assert (folder / "volumes" / "hidden" / "token").exists()
    node.process.kill()
    node.process.start()
    wait_until(lambda: node.status("pod").get("reason") == "NodeRebooted", LIMIT_S, "the pod of before to fail")
    assert [path.name for path in folder.iterdir()] == ["worker.log"]


@contextlib.contextmanager
def unkillable(word):
    """Holds the output of the process that has the word in its command line: to a node it runs on, whatever kills it."""
    def find():
        for folder in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if folder.name.isdigit() and word in (folder / "cmdline").read_text().split("\0"):
                    return os.open(folder / "fd" / "1", os.O_WRONLY)
        return None

    held = wait_quickly(find, LIMIT_S, f"a process with {word}")
    try:
        yield
    finally:
        os.close(held)


def test_a_pod_whose_processes_outlive_sigkill_has_not_ended(node):
    node.run("stuck", {"command": ["/bin/sleep", "1000.25"]})
    wait_until(lambda: node.status("stuck").get("phase") == "Running", LIMIT_S, "stuck to run")
    with unkillable("1000.25"):
        node.server.kubectl("delete", "pod", "stuck", "--wait=false")
        node.run("other", {"command": ["/bin/sh", "-c", "sleep 8; echo ."]})  # its grace, and 5 s more
        node.said("other")
        assert node.status("stuck").get("phase") == "Running"
    wait_until(lambda: node.get("pod", "stuck") is None, LIMIT_S, "stuck to go")


def test_a_node_waits_for_no_pod_that_is_gone(node):
    node.run("stuck", {"command": ["/bin/sleep", "1000.75"]})
    wait_until(lambda: node.status("stuck").get("phase") == "Running", LIMIT_S, "stuck to run")
    with unkillable("1000.75"):
        folder = node.pod_folder("stuck")
        node.server.kubectl("delete", "pod", "stuck", "--force", "--grace-period=0")
        for name in ("a", "b"):  # the second is started when the node has seen that the first is there
            node.run(name, {"command": ["/bin/echo", f"{name}."]})
            assert node.said(name) == name
        assert folder.exists()


def test_a_mount_path_is_no_way_to_the_machine(node):
    before = os.lstat("/dev/null")
    for name, path in (("root", "/"), ("dev", "/dev"), ("proc", "/proc/sys")):
        node.run(name, {"command": ["/bin/true"], "volumeMounts": [{"name": "room", "mountPath": path}]},
                 volumes=[{"name": "room", "emptyDir": {}}])
        wait_until(lambda: node.status(name).get("phase") == "Failed", LIMIT_S, f"{name} to be refused")
        assert "mount it elsewhere" in str(node.status(name))
    node.run("null", {"command": ["/bin/sh", "-c", "test -d /dev/null && echo mine >/dev/null/file && echo ."],
                      "volumeMounts": [{"name": "room", "mountPath": "/dev/null"}]},
             volumes=[{"name": "room", "emptyDir": {}}])
    assert node.said("null") == ""
    after = os.lstat("/dev/null")
    assert (before.st_mode, before.st_ino, before.st_rdev) == (after.st_mode, after.st_ino, after.st_rdev)


def of_pod(node, name, *places):
    """The state of each of the containers that the pod's status tells of, by name."""
    return {c["name"]: next(iter(c["state"])) for place in places for c in node.status(name).get(place, [])}


def test_a_sidecar_goes_on_beside_the_containers_and_ends_after_them(node):
    endless = "trap 'echo told to end.; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    node.make("Pod", "pod", spec={
        "nodeName": "n1", "restartPolicy": "Never", "terminationGracePeriodSeconds": 30,
        "volumes": [{"name": "room", "emptyDir": {}}],
        "initContainers": [
            {"name": "proxy", "image": "x", "restartPolicy": "Always", "command": ["/bin/sh", "-c", endless]},
            {"name": "before", "image": "x", "command": ["/bin/echo", "before."]}],
        "containers": [{"name": "worker", "image": "x",
                        "volumeMounts": [{"name": "room", "mountPath": "/room"}],
                        "command": ["/bin/sh", "-c", "until test -e /room/end; do sleep 0.1; done; echo ."]}]})
    wait_until(lambda: of_pod(node, "pod", "initContainerStatuses", "containerStatuses") == {
        "proxy": "running", "before": "terminated", "worker": "running"}, LIMIT_S, "the worker to run beside its proxy")
    assert "2/2" in node.server.kubectl("get", "pod", "pod").stdout
    (node.pod_folder("pod") / "volumes" / "room" / "end").touch()
    wait_until(lambda: node.status("pod").get("phase") == "Succeeded", LIMIT_S, "the pod to end")
    assert of_pod(node, "pod", "initContainerStatuses") == {"proxy": "terminated", "before": "terminated"}
    assert node.server.kubectl("logs", "pod", "-c", "proxy").stdout == "up\ntold to end.\n"
    for since, said in (("2000-01-01T00:00:00Z", "before.\n"), ("2100-01-01T00:00:00Z", "")):
        assert node.server.kubectl("logs", "pod", "-c", "before", f"--since-time={since}").stdout == said
    assert node.server.kubectl("logs", "pod", "-c", "before").stdout == "before.\n"


def test_a_container_that_ends_before_the_others_is_told(node):
    node.make("Pod", "pod", spec={
        "nodeName": "n1", "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "short", "image": "x", "command": ["/bin/true"]},
                       {"name": "long", "image": "x", "workingDir": "", "command": ["/bin/sleep", "1000"]}]})
    wait_until(lambda: of_pod(node, "pod", "containerStatuses") == {"short": "terminated", "long": "running"},
               LIMIT_S, "the short one's end")
    assert "1/2" in node.server.kubectl("get", "pod", "pod").stdout
    assert node.status("pod")["phase"] == "Running"


def test_a_sub_path_of_an_expression_is_the_pods(node):
    node.run("pod", {
        "command": ["/bin/sh", "-c", "echo mine >/logs/file; cat /room/of/pod/file; echo ."],
        "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "volumeMounts": [{"name": "room", "mountPath": "/room"},
                         {"name": "room", "mountPath": "/logs", "subPathExpr": "of/$(POD)"}]},
             volumes=[{"name": "room", "emptyDir": {}}])
    assert node.said("pod") == "mine"


def test_a_node_offers_its_disk(node):
    assert int(node.get("node", "n1")["status"]["allocatable"]["ephemeral-storage"]) > 1 << 30


def test_what_is_not_offered_is_said(node):
    node.run("pod", {"command": ["/bin/sh", "-c", "echo here.; exec sleep 1000"]})
    wait_until(lambda: node.status("pod").get("phase") == "Running", LIMIT_S, "the pod to run")
    for words in (["exec", "pod", "--", "true"], ["attach", "pod"], ["port-forward", "pod", "8000"]):
        refused = node.server.kubectl(*words, check=False)
        assert refused.returncode != 0
        assert "use kubectl logs" in refused.stderr, words
    earlier = node.server.kubectl("logs", "pod", "--previous", check=False)
    assert earlier.returncode != 0
    assert 'previous terminated container "worker" in pod "pod" not found' in earlier.stderr
    large = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "large"},
                        "data": {"text": "x" * (4 << 20)}})
    refused = node.server.kubectl("create", "-f", "-", input=large, check=False)
    assert "Request entity too large: limit is 3145728" in refused.stderr
