"""The real API server, with our CRDs, refuses what tests/data/bad_manifests.yaml says, with the words
that it says. The in-memory API server is held to the same file by tests/unit/api."""

import copy
import json
import pathlib
import ssl
import urllib.error
import urllib.request

import pytest
import yaml

from control_plane import ControlPlane, wait_until

ROOT = pathlib.Path(__file__).parents[2]
BOOK = yaml.safe_load((ROOT / "tests/data/bad_manifests.yaml").read_text())
ESTABLISHED_LIMIT_S = 30


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
        """Returns (HTTP code, decoded body)."""
        request = urllib.request.Request(
            f"{self.plane.url}/apis/rubato.dev/v1alpha1/{path}", json.dumps(body).encode(),
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
                    for c in crd.get("status", {}).get("conditions", [])) for crd in crds)

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
        assert code == 200, answer
        return
    assert code == 422, answer
    causes = [f'{c["field"]}: {c["message"]}' for c in answer["details"]["causes"]]
    assert sorted(causes) == sorted(case["causes"])


def test_the_example_is_accepted_and_shows_its_columns(server):
    plane = server.plane
    plane.kubectl("apply", "-f", ROOT / "examples/gpt-kjv.yaml")
    lines = plane.kubectl("get", "tj", "gpt-kjv", "-o", "wide").stdout.splitlines()
    assert lines[0].split() == ["NAME", "STATE", "GPUS", "TYPE", "PROGRESS", "LOSS", "TOKENS/S",
                                "GOODPUT", "RESCALES", "AGE", "QUEUE", "REASON"]
    plane.kubectl("scale", "tj", "gpt-kjv", "--replicas=3")
    assert plane.get("tj", "gpt-kjv")["spec"]["gpus"]["max"] == 3
