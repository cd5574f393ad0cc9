"""What rubato-localnode makes of pods, where it has to do as a kubelet does."""

import pytest
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
