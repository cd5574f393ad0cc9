"""The real API server, with our CRDs, refuses what tests/data/bad_manifests.yaml says, with the words
that it says. The in-memory API server is held to the same file by tests/unit/api."""

import copy
import json
import os
import pathlib
import random
import ssl
import subprocess
import urllib.error
import urllib.request

import pytest
import yaml

from control_plane import ControlPlane, wait_until

ROOT = pathlib.Path(__file__).parents[2]
BOOK = yaml.safe_load((ROOT / "tests/data/bad_manifests.yaml").read_text())
ESTABLISHED_LIMIT_S = 120
SEED = int(os.environ.get("RUBATO_SEED", "20261121"))
DIFFERENCES_SHOWN = 10
RANDOM_CASES = 300  # about 6 ms each on the real server


def merge(target, patch):
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


class Server:
    """Requests to the API server of the plane, as its administrator."""

    def __init__(self, plane):
        self.plane = plane
        self.tls = ssl.create_default_context(cafile=str(plane.client_ca))
        self.tls.load_cert_chain(*map(str, plane.admin))
        self.plurals = {}
        for crd in plane.get("crd")["items"]:
            namespaced = crd["spec"]["scope"] == "Namespaced"
            self.plurals[crd["spec"]["names"]["kind"]] = (
                ("namespaces/default/" if namespaced else "") + crd["spec"]["names"]["plural"])

    def send(self, verb, path, body, content_type="application/json"):
        """Of a value, or of JSON text. Returns (HTTP code, decoded body)."""
        text = body if isinstance(body, str) else json.dumps(body)
        request = urllib.request.Request(
            f"{self.plane.url}/apis/rubato.dev/v1alpha1/{path}", text.encode(),
            {"Content-Type": content_type}, method=verb)
        try:
            with urllib.request.urlopen(request, context=self.tls, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def create(self, manifest, dry_run):
        query = "?fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        return self.send("POST", self.plurals[manifest["kind"]] + query, manifest)

    def patch(self, kind, name, body, dry_run, subresource=""):
        query = "?fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        return self.send("PATCH", f"{self.plurals[kind]}/{name}{subresource}{query}", body,
                         "application/merge-patch+json")


@pytest.fixture(scope="module")
def server():
    with ControlPlane() as plane:
        plane.kubectl("apply", "-f", ROOT / "crds")

        def established():
            crds = plane.get("crd")["items"]
            return len(crds) == 4 and all(
                any(c["type"] == "Established" and c["status"] == "True"
                    for c in crd.get("status", {}).get("conditions") or []) for crd in crds)

        wait_until(established, ESTABLISHED_LIMIT_S, "our CRDs are established")
        server = Server(plane)
        for kind, manifest in BOOK["good"].items():
            # A CRD is served a moment after it is established.
            wait_until(lambda: server.create(manifest, dry_run=True)[0] != 404,
                       ESTABLISHED_LIMIT_S, f"{kind} is served")
            code, answer = server.create(manifest, dry_run=False)
            assert code == 201, answer
        yield server


def attempt(server, case):
    kind = case.get("kind", "TrainingJob")
    good = copy.deepcopy(BOOK["good"][kind])
    name = good["metadata"]["name"]
    if "create" in case:
        manifest = merge(good, case["create"])
        if manifest["metadata"]["name"] == name:
            manifest["metadata"]["name"] = name + "-2" if kind != "TrainingQueue" else name
        return server.create(manifest, dry_run=True)
    if "update" in case:
        return server.patch(kind, name, case["update"], dry_run=True)
    code, answer = server.patch(kind, name, {"status": case["seen"]}, False, "/status")
    assert code == 200, answer
    return server.patch(kind, name, {"status": case["status"]}, True, "/status")


@pytest.mark.parametrize("case", BOOK["cases"], ids=lambda case: case["name"])
def test_refused_with_these_words(server, case):
    code, answer = attempt(server, case)
    if "unknown" in case:
        assert code == 400, answer
        for field in case["unknown"]:
            assert f'unknown field "{field}"' in answer["message"]
        return
    if not case["causes"]:
        assert code == (201 if "create" in case else 200), answer
        return
    assert code == 422, answer
    causes = [f'{c["field"]}: {c["message"]}' for c in answer["details"]["causes"]]
    assert sorted(causes) == sorted(case["causes"])


def test_the_example_is_accepted_and_shows_its_columns(server):
    plane = server.plane
    plane.kubectl("apply", "-f", ROOT / "examples/gpt-kjv.yaml")
    for example in ("gpt2-124m", "llama-finetune", "torchrun", "pytorch-kjv"):
        plane.kubectl("apply", "-f", ROOT / f"examples/{example}.yaml")
    lines = plane.kubectl("get", "tj", "gpt-kjv", "-o", "wide").stdout.splitlines()
    assert lines[0].split() == ["NAME", "STATE", "GPUS", "TYPE", "PROGRESS", "LOSS", "TOKENS/S",
                                "GOODPUT", "RESCALES", "AGE", "QUEUE", "REASON"]
    plane.kubectl("scale", "tj", "gpt-kjv", "--replicas=3")
    assert plane.get("tj", "gpt-kjv")["spec"]["gpus"]["max"] == 3


def test_a_field_written_twice_is_refused(server):
    """tests/unit/apiserver/front has the same of ours."""
    twice = json.dumps(BOOK["good"]["TrainingJob"]).replace('"min": 2', '"min": 1, "min": 2')
    code, answer = server.send("POST", server.plurals["TrainingJob"] + "?dryRun=All&fieldValidation=Strict", twice)
    assert code == 400 and 'duplicate field "spec.gpus.min"' in answer["message"], answer


# ---- random manifests: both servers must say the same ----

# Values that fields may take: good ones, ones at a bound, and ones beyond.
CHOICES = {
    "metadata": [None],
    "metadata.name": ["x", "7b", "a.b", "a" * 48, "a" * 49, "Upper", "end-"],
    "spec.gpus.min": [0, 1, 2, 3, 4, 8, 64, "two", None],
    "spec.gpus.max": [-1, 1, 2, 3, 4, 6, 8, 9, 64, 200000, None],
    "spec.gpus.perPod": [0, 1, 2, 3, 8],
    "spec.gpus.shape": ["any", "powersOfTwo", "wholeNodes", "ring"],
    "spec.accelerators": [{"mix": True}, {"allow": ["A100", "H100"]}, {"allow": [""]}, {}],
    "spec.topology": [{"level": "rack"}, {"mode": "required"}, {"level": "", "mode": "no"}],
    "spec.objective": [{"weight": 0}, {"weight": 2}, {"deadline": "2026-12-01T08:00:00Z"},
                       {"deadline": "2026-12-01T08:00:00.5+02:00"}, {"deadline": "2026-12-01"}, {"deadline": []},
                       {"deadline": {}}],
    "spec.runtime": ["builtin", "pytorch", "torchrun", "command", "", None],
    "spec.training": [None],
    "spec.training.model": [None],
    "spec.training.model.family": ["gpt2", "llama", "mamba"],
    "spec.training.model.preset": ["gpt2-demo", "gpt2-124m", "other"],
    "spec.training.model.layers": [0, 1, 12, None],
    "spec.training.model.hidden": [0, 64, 192, 200, None],
    "spec.training.model.heads": [0, 1, 5, 8, None],
    "spec.training.model.vocab": [1, 257],
    "spec.training.data.path": ["/d", "d", "", None],
    "spec.training.data.validationFraction": [0, 0.05, 0.5, 0.6, -0.1],
    "spec.training.batch.global": [0, 1, 15, 16, 32],
    "spec.training.batch.micro": [0, 1, 2, 3, 16],
    "spec.training.optimizer": [{"betas": [0.9, 1]}, {"betas": [0, 0]}, {"betas": [0.9]},
                                {"learningRate": 0}, {"learningRate": 1e-5},
                                {"schedule": {"minLearningRate": 1}}, {"name": "sgd"}],
    "spec.training.optimizer.schedule.warmupSteps": [-1, 0, 100, 600, 601],
    "spec.training.stop.steps": [-5, 0, 1, 100, 600.0, 1000],
    "spec.training.evaluateEvery": [-1, 0, 100],
    "spec.training.precision": ["f32", "bf16", "int3"],
    "spec.training.parallelism": [{"tensor": 1}, {"tensor": 2}, {"pipeline": "auto"},
                                  {"sharding": "some"}, {"sharding": 0}],
    "spec.training.reduce": ["exact", "fast", "slow"],
    "spec.training.checkpoint": [{"every": 0}, {"path": "/c"}, {"path": "c"}, {"keep": 0}],
    "spec.parkSeconds": [-1, 0, 10, 10.0, -10.0],
    "spec.preemptible": [False, True, "no", None],
    "spec.minRunSeconds": [-1, 0, 600, 86401],
    "spec.activeDeadlineSeconds": [0, 1, None],
    "spec.suspend": [True, "yes"],
    "spec.queue": ["", "q", "q" * 64],
    "spec.template": [{"spec": {"containers": []}}, {"spec": {"nodeName": "n"}}, None,
                      {"spec": {"affinity": {"podAffinity": {}}}}, {"spec": {"affinity": {"nodeAffinity": {}}}},
                      {"spec": {"schedulingGates": []}}, {"spec": {"hostNetwork": "yes"}},
                      {"spec": {"initContainers": [{"name": "i", "ports": [{"hostPort": 0}, {"hostPort": 5}]}]}}],
    "spec.faultTolerance": [{"tolerate": 1}, {"tolerate": 2}, {"tolerate": 65}],
    "spec.bogus": [1],
}


def random_patch(rng):
    patch = {}
    for path in rng.sample(sorted(CHOICES), rng.choice([1, 1, 2, 3, 4])):
        *parents, last = path.split(".")
        at = patch
        for name in parents:
            if not isinstance(at.get(name), dict):
                at[name] = {}
            at = at[name]
        at[last] = copy.deepcopy(rng.choice(CHOICES[path]))
    return patch


def after_object(message):
    """Strict decoding of a patch quotes the whole object, with times of its own, before it comes to
    the point; what it says of the fields is compared."""
    point = message.find("strict decoding error")
    return message if point < 0 else message[point:]


def test_both_servers_say_the_same_of_random_manifests(server):
    rng = random.Random(SEED)
    good = BOOK["good"]["TrainingJob"]
    requests = []
    for i in range(RANDOM_CASES):
        patch = random_patch(rng)
        if i % 3 == 0:
            patch.pop("metadata", None)
            requests.append({"update": patch})
        else:
            base = merge(good, {"metadata": {"name": "fresh"}})
            requests.append({"create": merge(base, patch)})
    lines = "".join(json.dumps(line) + "\n" for line in [good, *requests])
    program = pathlib.Path(os.environ["RUBATO_BUILD"]) / "bin/api-words"
    done = subprocess.run([program], input=lines, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    refused, differences = 0, []
    for request, line in zip(requests, done.stdout.splitlines(), strict=True):
        if "create" in request:
            code, answer = server.create(request["create"], dry_run=True)
        else:
            code, answer = server.patch("TrainingJob", "good", request["update"], dry_run=True)
        real = []
        if code >= 400:
            refused += 1
            causes = answer.get("details", {}).get("causes", [])
            real = [f'{c["field"]}: {c["message"]}' for c in causes] or [answer["message"]]
        real = sorted(map(after_object, real))
        ours = sorted(map(after_object, json.loads(line)))
        if ours != real:
            differences.append(
                json.dumps(request) + "".join(f"\n  only in memory: {c}" for c in ours if c not in real)
                + "".join(f"\n  only on the real server: {c}" for c in real if c not in ours))
    assert not differences, f"RUBATO_SEED={SEED}\n" + "\n".join(differences[:DIFFERENCES_SHOWN])
    assert RANDOM_CASES / 4 < refused < RANDOM_CASES, "the choices should hit and miss"
