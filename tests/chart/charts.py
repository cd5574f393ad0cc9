"""The chart rendered by helm, as text and as objects, and what is kept of it in the tree.

    python tests/chart/charts.py --write     golden renderings and the kustomize base (make chart)

Golden renderings lie in tests/data/chart; the kustomize base in deploy/kustomize is the default rendering without
Helm's own labels, and with the namespace.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "rubato"
GOLDEN = ROOT / "tests" / "data" / "chart"
KUSTOMIZE = ROOT / "deploy" / "kustomize"
NAMESPACE = "rubato-system"
KUBE_VERSION = "1.36.3"
LIMIT_S = 120
ALL_OPTIONS = GOLDEN / "all-options.values.yaml"
HELM_LABELS = ("helm.sh/chart", "app.kubernetes.io/managed-by")
HELM_ANNOTATIONS = ("helm.sh/", "argocd.argoproj.io/hook")
PREAMBLE = "# Written by tests/chart/charts.py from helm/rubato. Do not edit: run `make chart`.\n"


class Loader(yaml.SafeLoader):
    """Reads 3e-04 as the number that Kubernetes reads; PyYAML would make a text of it."""


Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
                             list("-+0123456789"))


class HelmError(Exception):
    pass


class Helm:
    """helm with its own folders and, where given, a cluster."""

    def __init__(self, folder, kubeconfig=None):
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": str(folder), "KUBECONFIG": str(kubeconfig or "/dev/null"),
            **{f"HELM_{kind}_HOME": str(pathlib.Path(folder) / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}}
        self.program = shutil.which("helm")
        if not self.program:
            raise HelmError("helm is not in PATH: run under scripts/with-tools")

    def try_run(self, *words, limit_s=LIMIT_S):
        return subprocess.run([self.program, *map(str, words)], capture_output=True, text=True,
                              env=self.environment, timeout=limit_s, cwd=ROOT)

    def run(self, *words, **more):
        done = self.try_run(*words, **more)
        if done.returncode != 0:
            raise HelmError(f"helm {' '.join(map(str, words))}: {done.stderr.strip()}")
        return done.stdout

    def template(self, *more, release="rubato", namespace=NAMESPACE):
        """The rendering; hooks stand in it too."""
        return self.run("template", release, CHART, "--namespace", namespace, "--kube-version", KUBE_VERSION, *more)


def objects(text):
    return [found for found in yaml.load_all(text, Loader) if found]


def key(found):
    return found["kind"], found["metadata"].get("namespace", ""), found["metadata"]["name"]


def plain(found):
    """The object without what only Helm needs."""
    metadata = found["metadata"]
    for name in HELM_LABELS:
        metadata.get("labels", {}).pop(name, None)
    annotations = {name: value for name, value in metadata.get("annotations", {}).items()
                   if not name.startswith(HELM_ANNOTATIONS)}
    metadata.pop("annotations", None)
    if annotations:
        metadata["annotations"] = annotations
    return found


def is_hook(found):
    return "helm.sh/hook" in found["metadata"].get("annotations", {})


def namespace_object():
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {
        "name": NAMESPACE, "labels": {"app.kubernetes.io/part-of": "rubato",
                                      "pod-security.kubernetes.io/enforce": "restricted"}}}


def dump(found):
    return PREAMBLE + "---\n".join(yaml.safe_dump(item, sort_keys=False, width=120) for item in found)


def kustomization(*resources):
    return PREAMBLE + yaml.safe_dump({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
                                      "resources": list(resources)}, sort_keys=False)


def kept_files(helm):
    """{path: text} of everything that is written from the chart."""
    default = helm.template()
    found = objects(default)
    crds = [plain(item) for item in found if item["kind"] == "CustomResourceDefinition"]
    once = [plain(item) for item in objects(default) if is_hook(item)]
    rest = [plain(item) for item in found
            if item["kind"] != "CustomResourceDefinition" and not is_hook(item)]
    return {
        # The schemas are those of crds/, and compared with them elsewhere.
        GOLDEN / "default.yaml": without_crds(default),
        GOLDEN / "all-options.yaml": without_crds(helm.template("--values", ALL_OPTIONS)),
        KUSTOMIZE / "base" / "crds.yaml": dump(crds),
        KUSTOMIZE / "base" / "namespace.yaml": dump([namespace_object()]),
        KUSTOMIZE / "base" / "operator.yaml": dump(rest),
        KUSTOMIZE / "base" / "kustomization.yaml": kustomization("namespace.yaml", "crds.yaml", "operator.yaml"),
        KUSTOMIZE / "defaults" / "defaults.yaml": dump(once),
        KUSTOMIZE / "defaults" / "kustomization.yaml": kustomization("defaults.yaml"),
    }


def without_crds(text):
    parts = text.split("---\n# Source: ")
    return "---\n# Source: ".join(part for part in parts if not part.startswith("rubato/templates/crds.yaml"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--write", action="store_true", required=True, help="write the files")
    parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for path, text in kept_files(Helm(folder)).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
                print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main())
