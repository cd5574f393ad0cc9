"""rubatoctl's commands on two clusters: one that it makes itself (`local up`), and a real kube-apiserver
with operators and nodes. What a person types must work on both, and errors must say what to do.
"""

import csv
import io
import json
import os
import pathlib
import re
import socket
import ssl
import subprocess
import sys

import pytest

from cluster import Cluster
from control_plane import ControlPlane, find_programs, wait_until
from jobs import Job, sample_text

BIN = pathlib.Path(os.environ["RUBATO_BUILD"]) / "bin"
ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 120
FINISH_S = 300
CHANGE_S = 120
COMMAND_S = 180
TOKENIZER = {"model": {"type": "BPE", "vocab": {"t": 0, "h": 1, "th": 2, "</s>": 3}, "merges": ["t h"]},
             "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
             "added_tokens": [{"id": 3, "content": "</s>"}]}  # other letters become nothing


def run_to_end(words, input, limit_s, environment):
    """Its end; what does not end in time is told with what it had said and where its threads stand."""
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=environment) as process:
        try:
            out, err = process.communicate(input, timeout=limit_s)
        except subprocess.TimeoutExpired:
            tasks = sorted(pathlib.Path(f"/proc/{process.pid}/task").iterdir())
            where = [" ".join((task / name).read_text().strip() for name in ("comm", "wchan", "syscall"))
                     for task in tasks]
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"{words} did not end in {limit_s} s: {out}{err}\nthreads: " + "\n".join(where))
        return subprocess.CompletedProcess(words, process.returncode, out, err)


class World:
    """A cluster with two nodes, and rubatoctl on it."""

    def __init__(self, kubeconfig, claims, kubectl):
        self.kubeconfig, self.claims, self.kubectl = kubeconfig, pathlib.Path(claims), kubectl
        self.state = None  # of a cluster that rubatoctl made
        self.job = Job("sentence", steps=STEPS, gpus=(1, 2))

    def ctl(self, *words, input=None, check=True, by_flag=False, limit_s=COMMAND_S):
        """With KUBECONFIG in the environment, or, `by_flag`, with --kubeconfig alone."""
        environment = {k: v for k, v in os.environ.items() if k != "KUBECONFIG"}
        flags = ["--kubeconfig", str(self.kubeconfig)] if by_flag else []
        if not by_flag:
            environment["KUBECONFIG"] = str(self.kubeconfig)
        done = run_to_end([BIN / "rubatoctl", *flags, *map(str, words)], input, limit_s, environment)
        assert not check or done.returncode == 0, f"rubatoctl {words}: {done.stdout}{done.stderr}"
        return done

    def refused(self, *words, **options):
        """stderr of a command that must fail."""
        done = self.ctl(*words, check=False, **options)
        assert done.returncode == 1, f"rubatoctl {words} ended with {done.returncode}: {done.stdout}"
        assert re.search("^rubatoctl: ", done.stderr, re.M), done.stderr
        return done.stderr

    def prepare(self):
        tokens = self.claims / "default" / "tokens" / "tokens.bin"
        tokens.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([BIN / "rubato-tokenize", "-o", tokens, "-"], input=sample_text().encode(),
                       check=True, capture_output=True)

    def yaml(self):
        parts = [self.manifest_of(item) for item in self.job.manifests()["items"]]
        return "---\n".join(parts)

    @staticmethod
    def manifest_of(item):
        return json.dumps(item, indent=1) + "\n"  # JSON is YAML

    @property
    def checkpoints(self):
        return self.claims / "default" / self.job.claim


def local_world(folder):
    state = folder / "local"
    up = subprocess.run([BIN / "rubatoctl", "local", "up", "--nodes", "2", "--state", state],
                        capture_output=True, text=True, timeout=COMMAND_S)
    assert up.returncode == 0, up.stdout + up.stderr
    kubeconfig = re.search(r"^export KUBECONFIG=(.+)$", up.stdout, re.M)[1]
    return World(kubeconfig, state / "claims", kubectl_of(kubeconfig)), state


def kubectl_of(kubeconfig):
    program = find_programs()["kubectl"]

    def run(*words):
        return subprocess.run([program, "--kubeconfig", kubeconfig, *words], check=True, text=True,
                              capture_output=True, timeout=COMMAND_S).stdout
    return run


@pytest.fixture(scope="module", params=["local", "real"])
def world(request, tmp_path_factory):
    if request.param == "local":
        found, state = local_world(tmp_path_factory.mktemp("ctl"))
        try:
            found.prepare()
            found.state = state
            yield found
        finally:
            subprocess.run([BIN / "rubatoctl", "local", "down", "--purge", "--state", state], check=True,
                           capture_output=True, timeout=COMMAND_S)
        assert not state.exists()
        return
    with ControlPlane(controller_manager=True) as plane:
        with Cluster(plane, os.environ["RUBATO_BUILD"]) as cluster:
            cluster.add_nodes(2)
            found = World(plane.kubeconfig, cluster.claims, kubectl_of(str(plane.kubeconfig)))
            found.prepare()
            yield found
        cluster.check_nothing_left()


@pytest.fixture(scope="module")
def trained(world):
    """The job, followed by `logs -f` from its first to its last step: the lines it printed."""
    applied = world.ctl("apply", "-f", "-", input=world.yaml())
    assert "trainingjob.rubato.dev/sentence created" in applied.stdout
    followed = world.ctl("logs", world.job.name, "-f", limit_s=FINISH_S)
    world.ctl("wait", world.job.name, "--for", "Complete", "--timeout", FINISH_S, limit_s=FINISH_S)
    return followed.stdout.splitlines()


# ---- stories ---------------------------------------------------------------------------------------


def test_a_text_of_ones_own_is_one_command_away(world, tmp_path):
    if world.state is None:
        return  # where claims are depends on the cluster
    data = world.claims / "default"
    assert (data / "kjv-data" / "kjv.tokens").stat().st_size > 1 << 20  # the example's, since `local up`
    text = tmp_path / "mine.txt"
    text.write_text("time is taken from one note and given back to another\n" * 1000)
    words = ("local", "data", text, "--state", world.state, "--claim", "mine", "--file", "mine.tokens")
    assert "0.1 MB of text in claim default/mine: a job that mounts it at /data reads /data/mine.tokens" in \
        world.ctl(*words).stdout
    assert (data / "mine" / "mine.tokens").stat().st_size > 50000
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text("[]")
    refused = world.refused(*words, "--tokenizer", tmp_path)
    assert "tokenizer.json" in refused and (data / "mine" / "mine.tokens").stat().st_size > 50000
    tokenizer.write_text(json.dumps(TOKENIZER))
    world.ctl(*words, "--tokenizer", tmp_path)
    assert (data / "mine" / "mine.tokens").stat().st_size < 50000
    assert "No such file" in world.refused("local", "data", tmp_path / "none", "--state", world.state)


def test_logs_follow_shows_each_step_once(world, trained):
    steps = [int(found[1]) for line in trained if (found := re.search(r"\bstep=(\d+) loss=", line))]
    assert steps == sorted(set(steps)) == list(range(1, STEPS + 1))
    again = world.ctl("logs", world.job.name).stdout
    assert f"step={STEPS} loss=" in again


def test_apply_again_changes_nothing(world, trained):
    again = world.ctl("apply", "-f", "-", input=world.yaml())
    assert "trainingjob.rubato.dev/sentence unchanged" in again.stdout
    dry = world.ctl("apply", "--dry-run", "-f", "-", input=world.yaml())
    assert "sentence" in dry.stdout


def columns(text):
    """Of a table, line by line, without the age and a row's empty cells."""
    return [re.split(r"\s{2,}", line.strip())[:-1] for line in text.splitlines()]


def test_get_is_the_servers_own_table(world, trained):
    ours = world.ctl("get", "tj").stdout
    assert columns(ours) == columns(world.kubectl("get", "tj"))
    header, _ = columns(ours)
    assert header == ["NAME", "STATE", "GPUS", "TYPE", "PROGRESS", "LOSS", "TOKENS/S", "GOODPUT", "RESCALES"]
    assert "Complete" in ours and re.search(r"\b[01]\.\d\d\b", ours), ours
    assert world.ctl("get", "tj", "-o", "name").stdout.strip() == "trainingjob.rubato.dev/sentence"
    assert '"kind": "TrainingJob"' in world.ctl("get", "tj/sentence", "-o", "json").stdout
    assert "QUEUE" in world.ctl("get", "tj", "-o", "wide").stdout


def test_describe_tells_the_whole_story(world, trained):
    text = world.ctl("describe", "tj", world.job.name).stdout
    for expected in (r"^State: +Complete \(StepsReached\)", rf"^Progress: +step {STEPS} of {STEPS}",
                     r"^Goodput: +[01]\.\d\d: \d+ of \d+ GPU seconds trained", r"^Conditions:",
                     r"^  Complete +True +StepsReached", r"^Events:"):
        assert re.search(expected, text, re.M), f"{expected} is not in\n{text}"


def test_loss_as_csv_has_each_step_once(world, trained):
    rows = list(csv.DictReader(io.StringIO(world.ctl("loss", world.job.name, "-o", "csv").stdout)))
    assert [int(row["step"]) for row in rows] == list(range(1, STEPS + 1))
    assert float(rows[-1]["loss"]) < float(rows[0]["loss"])
    assert "STEP" in world.ctl("loss", world.job.name).stdout
    assert world.ctl("loss", world.job.name, "-o", "plot").stdout.count("\n") > 5


def test_top_once(world, trained):
    text = world.ctl("top", "--once").stdout
    assert re.search(r"^sentence +Complete .*100%", text, re.M), text
    assert world.ctl("top", by_flag=True).stdout  # not a terminal: once, too


def test_generate_is_the_same_for_the_same_seed(world, trained):
    words = ("generate", "--checkpoint", world.checkpoints, "--prompt", "time is", "--tokens", 40,
             "--seed", 3)
    first = world.ctl(*words).stdout
    assert first.startswith("time is") and len(first) >= 40
    assert world.ctl(*words).stdout == first


def test_generate_computes_on_the_device_that_it_is_told(world, trained, monkeypatch):
    words = ("generate", "--checkpoint", world.checkpoints, "--tokens", 1)
    monkeypatch.setenv("RUBATO_DEVICE", "tpu")
    by_environment = world.ctl(*words, check=False)
    assert by_environment.returncode == 1 and "unknown kind of device 'tpu'" in by_environment.stderr
    assert world.ctl(*words, "--device", "cpu").stdout


def test_words_that_would_be_ignored_are_refused(world, trained, tmp_path):
    generate = ("generate", "--checkpoint", world.checkpoints, "--tokens", 1)
    for words in ((*generate, "--end", "foo"), (*generate, "--top-k", -1), (*generate, "--seed", -1),
                  ("tokenize", "--out", tmp_path / "text.tokens", __file__, "--end", "foo")):
        done = world.ctl(*words, check=False)
        assert done.returncode != 0 and words[-2] in done.stderr, (words, done)


def test_kubeconfig_by_flag(world, trained):
    assert columns(world.ctl("get", "tj", by_flag=True).stdout) == columns(world.ctl("get", "tj").stdout)


def test_suspend_wait_and_resume(world, trained):
    world.job = Job("second", steps=100000, gpus=(1, 2), claim="second-checkpoints")
    try:
        world.ctl("apply", "-f", "-", input=world.yaml())
        world.ctl("wait", "second", "--for", "Running", "--timeout", CHANGE_S)
        world.ctl("suspend", "second")
        world.ctl("wait", "second", "--for", "Suspended", "--timeout", CHANGE_S)
        pods = world.ctl("get", "pods", "-l", "rubato.dev/job-name=second").stdout
        assert "Running" not in pods, pods  # Suspended says that nothing of it runs any more
        world.ctl("scale", "second", "--max", 1)
        world.ctl("resume", "second")
        world.ctl("wait", "second", "--for", "Running", "--timeout", CHANGE_S)
        assert re.search(r"^second +Running +1/1 ", world.ctl("get", "tj", "second").stdout, re.M)
    finally:
        world.ctl("delete", "tj", "second")
        world.job = Job("sentence", steps=STEPS, gpus=(1, 2))
    assert "second" not in world.ctl("get", "tj").stdout


def conditions(world, what):
    found = json.loads(world.kubectl("get", what, "-o", "json")).get("status", {})
    return {c["type"]: c for c in found.get("conditions") or []}, found


def test_a_policy_and_a_queue_say_what_is_in_force(world, trained):
    try:
        world.ctl("apply", "-f", ROOT / "examples" / "scheduling.yaml")
        wait_until(lambda: conditions(world, "sp/default")[0].get("Active", {}).get("status") == "True",
                   CHANGE_S, "the policy to be in force")
        assert "gang start 300 s" in conditions(world, "sp/default")[0]["Active"]["message"]
        patch = {"spec": {"gangStartSeconds": 77, "parameters": {"fairness": 1}}}
        world.kubectl("patch", "sp", "default", "--type=merge", "-p", json.dumps(patch))
        wait_until(lambda: conditions(world, "sp/default")[0]["Active"]["reason"] == "Refused", CHANGE_S,
                   "the policy to be refused")
        refused, status = conditions(world, "sp/default")
        assert "spec.parameters.fairness" in refused["Active"]["message"]
        assert "gang start 300 s" in refused["Active"]["message"]  # what stays in force
        assert status["active"] == "rubato"
        world.kubectl("patch", "sp", "default", "--type=json", "-p",
                      '[{"op": "remove", "path": "/spec/parameters/fairness"}]')
        wait_until(lambda: "gang start 77 s" in conditions(world, "sp/default")[0]["Active"]["message"],
                   CHANGE_S, "the mended policy to be in force")
        limited = [{"gpuType": "*", "guaranteed": 1, "limit": 32}]
        for changed, reason, says in (({"parent": "nowhere"}, "ParentRefused", 'there is no queue "nowhere"'),
                                      ({"parent": "default"}, "PartlyEnforced", "8 GPUs, and the nodes have 2;"),
                                      ({"quotas": limited}, "AllEnforced", "guarantees, limits, borrowing")):
            world.kubectl("patch", "tq", "research", "--type=merge", "-p", json.dumps({"spec": changed}))
            wait_until(lambda: conditions(world, "tq/research")[0].get("Enforced", {}).get("reason") == reason,
                       CHANGE_S, f"the queue to say {reason}")
            told = conditions(world, "tq/research")[0]["Enforced"]["message"]
            assert says in told, told
    finally:
        world.ctl("delete", "-f", ROOT / "examples" / "scheduling.yaml")


def test_nodes_are_listed_and_drained(world, trained):
    def nodes():
        lines = world.ctl("node", "list").stdout.splitlines()[1:]
        return {line.split()[0]: line for line in lines}
    assert len(nodes()) == 2
    world.job = Job("third", steps=100000, gpus=(1, 2), claim="third-checkpoints")
    try:
        world.ctl("apply", "-f", "-", input=world.yaml())
        wait_until(lambda: "third        Running  2/1-2" in world.ctl("get", "tj", "third").stdout
                   or re.search(r"^third +Running +2/1-2", world.ctl("get", "tj", "third").stdout, re.M),
                   CHANGE_S, "two workers")
        name = sorted(nodes())[-1]
        world.ctl("node", "drain", name, "--timeout", CHANGE_S)
        assert re.search(r"SchedulingDisabled|cordoned", nodes()[name]), nodes()[name]
        wait_until(lambda: re.search(r"^third +Running +1/1-2",
                                     world.ctl("get", "tj", "third").stdout, re.M), CHANGE_S,
                   "the job to go on without the node")
        world.ctl("node", "uncordon", name)
        assert not re.search(r"SchedulingDisabled|cordoned", nodes()[name])
    finally:
        world.ctl("delete", "tj", "third")
        world.job = Job("sentence", steps=STEPS, gpus=(1, 2))


def test_completion_is_bash(world):
    script = world.ctl("completion", "bash").stdout
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    shown = subprocess.run(["bash", "-c", script + """
        COMP_WORDS=(rubatoctl node dr); COMP_CWORD=2; COMP_LINE='rubatoctl node dr'; COMP_POINT=17
        $(complete -p rubatoctl | sed -E 's/.*-F ([^ ]+).*/\\1/'); echo "${COMPREPLY[@]}" """],
                           text=True, capture_output=True)
    assert "drain" in shown.stdout, shown.stdout + shown.stderr


def test_a_namespace_that_is_asked_for_is_that_of_the_manifest(world, tmp_path):
    manifest = tmp_path / "one.yaml"
    manifest.write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: asked, namespace: default}\n")
    refusal = 'the namespace from the provided object "default" does not match the namespace "elsewhere"'
    assert refusal in world.refused("apply", "-f", manifest, "-n", "elsewhere")
    world.ctl("apply", "-f", manifest, "-n", "default")
    assert refusal in world.refused("delete", "-f", manifest, "-n", "elsewhere")
    assert "configmap/asked deleted" in world.ctl("delete", "-f", manifest).stdout
    manifest.write_text(manifest.read_text().replace("default", "elsewhere"))
    assert "`kubectl create namespace elsewhere`" in world.refused("apply", "-f", manifest)


def test_help_of_another_program_is_that_programs(world):
    assert "--temperature" in world.ctl("generate", "--help").stdout


def test_a_job_that_waits_says_why_to_who_follows_it(world, trained):
    world.job = Job("waits", steps=STEPS, gpus=(1, 2))
    try:
        world.ctl("apply", "-f", "-", input=world.yaml().replace('"gpus": {', '"queue": "nowhere", "gpus": {'))
        with subprocess.Popen([BIN / "rubatoctl", "--kubeconfig", world.kubeconfig, "logs", "waits", "-f"],
                              stderr=subprocess.PIPE, text=True) as following:
            said = next(line for line in following.stderr if "job is Queued" in line)
            world.ctl("delete", "tj", "waits")  # so that it ends
        assert "(QueueNotFound)" in said and said.endswith("; waiting for its pods\n"), said
    finally:
        world.ctl("delete", "tj", "waits", check=False)
        world.job = Job("sentence", steps=STEPS, gpus=(1, 2))


def test_a_typo_in_a_job_that_is_there_is_told_without_the_job(world, trained):
    bad = world.yaml().replace('"training": {', '"training": {"evry": 1,')
    told = world.refused("apply", "-f", "-", input=bad)
    assert 'unknown field "spec.training.evry"' in told
    assert "apiVersion" not in told and len(told) < 1000, told


def test_delete_takes_what_is_named_and_nothing_else(world, tmp_path):
    manifest = tmp_path / "maps.yaml"
    manifest.write_text("".join(f"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: kept-{number}}}\n"
                                for number in range(3)))
    world.ctl("apply", "-f", manifest)
    for nothing in (("cm", ""), ("cm/",), ("cm", "kept-0", ""), ("", "kept-0"), ("cm", "kept-0", "-f", manifest)):
        world.refused("delete", *nothing)
    assert len(re.findall("kept-", world.ctl("get", "cm", "-o", "name").stdout)) == 3
    assert "not found" in (told := world.refused("delete", "cm", "kept-0", "gone", "kept-1")), told
    assert "1 of 3 objects was not deleted" in told
    assert re.findall("kept-.", world.ctl("get", "cm", "-o", "name").stdout) == ["kept-2"]
    world.ctl("delete", "-f", manifest)


def test_kinds_of_the_core_are_found(world):
    found = world.ctl("get", "replicationcontrollers", check=world.state is None)
    assert world.state or "No replicationcontrollers found" in found.stderr
    assert "Is a directory" in world.refused("apply", "-f", ROOT / "crds")


def test_a_node_shows_logs_to_its_api_server_alone(world):
    address, port = world.kubectl(
        "get", "nodes", "-o", 'jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address} '
        "{.items[0].status.daemonEndpoints.kubeletEndpoint.Port}").split()
    tls = ssl.create_default_context()
    tls.check_hostname = False
    tls.verify_mode = ssl.CERT_NONE
    with socket.create_connection((address, int(port)), timeout=COMMAND_S) as plain, \
            pytest.raises((ssl.SSLError, ConnectionError)), tls.wrap_socket(plain) as stream:
        stream.sendall(b"GET /containerLogs/default/nobody/c HTTP/1.1\r\nHost: node\r\n\r\n")
        if not stream.recv(1):
            raise ConnectionResetError


def test_jobs_are_made_or_of_a_trace(tmp_path):
    for words, why in ((("--trace", tmp_path / "jobs.csv", "--jobs", "3"), "--trace excludes --jobs"),
                       (("--seed", "99999999999999999999"), "expected a number from")):
        done = run_to_end([BIN / "rubatoctl", "simulate", *words], None, COMMAND_S, os.environ)
        assert done.returncode != 0 and why in done.stderr, done.stderr


def test_errors_say_what_to_do(world, tmp_path):
    assert "one kind at a time" in world.refused("get", "tj,pvc")
    for words, why in ((("tj", "-w", "-o", "json"), "-w follows the table alone"),
                       (("tj", "a", "-A"), "name its own with -n instead of -A")):
        assert why in world.refused("get", *words)
    for command in ("logs", "loss"):
        assert "not found" in world.refused(command, "nobody")
    assert re.search(r"rubatoctl get tj|What to do", world.refused("describe", "tj", "nobody"))
    assert re.search(r"What to do|rubatoctl", world.refused("get", "unheard"))
    assert "No such file" in (text := world.refused("apply", "-f", tmp_path / "none.yaml")) or \
        "What to do" in text
    bad = world.yaml().replace('"min": 1', '"min": 9')
    assert "lower gpus.min or raise gpus.max" in world.refused("apply", "-f", "-", input=bad)
    nowhere = tmp_path / "nowhere"
    nowhere.write_text(pathlib.Path(world.kubeconfig).read_text().replace("127.0.0.1:", "127.0.0.1:1"))
    done = subprocess.run([BIN / "rubatoctl", "--kubeconfig", nowhere, "get", "tj"], text=True,
                          capture_output=True, timeout=COMMAND_S)
    assert done.returncode == 1 and "What to do" in done.stderr, done.stderr


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, *sys.argv[1:]]))
