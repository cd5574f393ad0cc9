"""kubectl reads each scalar of tests/data/yaml_scalars.txt as it says there; tests/unit/common/yaml_test.cc
holds our reader to the same file. `kubectl label --local` reads a manifest and prints it, without a server."""

import json
import pathlib
import subprocess

from control_plane import find_programs

LINES = (pathlib.Path(__file__).parents[2] / "tests/data/yaml_scalars.txt").read_text().splitlines()
CASES = [line.split("\t") for line in LINES if not line.startswith("#")]
KUBECTL = find_programs()["kubectl"]


def kubectl_reads(documents):
    """What kubectl makes of each, as items of one list; None when it refuses the manifest."""
    manifest = "".join(["apiVersion: rubato.dev/v1\nkind: Words\nmetadata: {name: a}\nspec:\n",
                        *(f"- {document}\n" for document in documents)])
    done = subprocess.run([KUBECTL, "label", "--local", "-f", "-", "-o", "json", "a=b"], input=manifest,
                          env={"KUBECONFIG": "/dev/null"}, capture_output=True, text=True, timeout=60)
    return json.loads(done.stdout)["spec"] if done.returncode == 0 else None


def test_kubectl_reads_scalars_so():
    taken = [(document, said) for document, said in CASES if said != "refused"]
    read = kubectl_reads([document for document, _ in taken])
    assert read is not None
    wrong = [f"{document}: {value}, not {said}" for (document, said), value in zip(taken, read, strict=True)
             if json.dumps(value) != json.dumps(json.loads(said))]
    assert not wrong, "\n".join(wrong)


def test_kubectl_refuses_these():
    refused = [document for document, said in CASES if said == "refused"]
    assert refused
    assert [document for document in refused if kubectl_reads([document]) is not None] == []
