"""What README.md, docs/install.md, docs/pytorch.md and docs/runbook.md tell a person to type: each command is run here,
as it stands there and in that order, or is in ELSEWHERE with the test that runs it. Programs of this build stand in for
those of build/release.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import yaml

from commands import FENCE, PAGES, ROOT, blocks, commands, typed_in
from control_plane import ControlPlane, ControlPlaneError, wait_until

sys.path.append(str(ROOT / "tests" / "runbook"))
import named_tests  # noqa: E402

BIN = pathlib.Path(os.environ["RUBATO_BUILD"]) / "bin"
COMMAND_S = 180
TRAINS_S = 180
WATCHED_S = 3  # of what goes on until somebody interrupts it
WATCHES = ("kubectl get trainingjobs -w", "kubectl get tj -w", "build/release/bin/rubatoctl top")

# Too long, or with more than this machine has: who runs it instead.
ELSEWHERE = {
    "make demo": "local_demo",
    "make demo-pytorch": "local_demo_pytorch",
    "make release": "make test-images, from the same preset",
    "make test": "this is one of its tests",
    "make test-cluster": ".ci/run",
    "make images": "images_test",
    "docker build -f deploy/operator.Dockerfile -t registry.example/rubato-operator:0.1.0 .": "make test-images",
    "docker build -f deploy/worker.Dockerfile -t registry.example/rubato-worker:0.1.0 .": "make test-images",
    "docker build -f deploy/worker-cuda.Dockerfile -t registry.example/rubato-worker-cuda:0.1.0 .":
        "images_test, of programs that are built",
    "docker build -f deploy/pytorch.Dockerfile --build-arg BASE=your/pytorch:tag"
    " --build-arg WORKER=registry.example/rubato-worker:0.1.0 -t registry.example/my-training:1 .":
        "e2e_pytorch_test and images_test, of what it adds",
    "pip install build/wheel/rubato-*.whl": "pytorch_package_test",
    "python examples/pytorch/kjv.py kjv.txt 100 states": "pytorch_package_test, fewer steps",
    # With a GPU, or folders from Hugging Face, of which this machine has none.
    "scripts/setup cuda && make release": "make release, and .ci/run where the compiler of CUDA is",
    "export LD_LIBRARY_PATH=$(scripts/build-cuda --print)/lib": "images_test, of the libraries that lie there",
    "build/release/bin/rubatoctl local up --gpus auto": "gpus_test, with made-up GPUs",
    "build/release/bin/rubatoctl local data --tokenizer gpt2 --claim gpt2-data --file train.tokens text.txt":
        "rubatoctl_commands_test, with a made-up tokenizer",
    "build/release/bin/rubatoctl local data --tokenizer llama --claim llama-data --file train.tokens text.txt":
        "rubatoctl_commands_test, with a made-up tokenizer",
    "cp -r llama ~/.local/state/rubato/local/claims/default/llama-data":
        "worker_alone_llama, of workers that start from such a folder",
    "kubectl apply -f examples/gpt2-124m.yaml": "bad_manifests_test",
    "kubectl apply -f examples/llama-finetune.yaml": "bad_manifests_test",
    "build/release/bin/rubatoctl tokenize --tokenizer gpt2 --out train.tokens text.txt":
        "tokenizers_oracle, with a tokenizer of that kind",
    "build/release/bin/rubatoctl export --out my-gpt2 --dtype bf16"
    " --checkpoint ~/.local/state/rubato/local/claims/default/gpt2-data/checkpoints":
        "worker_oracle, of another checkpoint",
    "build/release/bin/rubatoctl export --checkpoint checkpoints --out my-gpt2 --dtype bf16":
        "worker_oracle, of another checkpoint",
    "kubectl wait --for=condition=Ready pod/fill-gpt2-data": "nobody: its image is Debian's, from a registry",
    "kubectl cp train.tokens fill-gpt2-data:/claim/train.tokens": "nobody: it needs that pod",
    "kubectl cp fill-gpt2-data:/claim/checkpoints checkpoints": "nobody: it needs that pod",
    # They wait for pods of the operator, which need a kubelet.
    "kubectl -n rubato-system rollout status deployment/rubato-operator": "e2e_chart_test",
    "kubectl -n rubato-system get lease rubato-operator": "e2e_chart_test",
    "kubectl wait --for=condition=Ready pod/kjv-data": "e2e_test",
    "kubectl attach -i kjv-data < kjv.txt": "e2e_test",
}
QUICK_START = "build/release/bin/rubatoctl local up --nodes 4"
JOB = "gpt-kjv"  # of the quick start
# Two ways to end are told one after the other: before the second it is installed again.
SECOND_END = "kubectl delete trainingjobs --all --all-namespaces"
RESTRICTED = "restricted"  # a namespace
NODE = '{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-7"}}'  # that the page names
TRUST = "kubectl -n rubato-system create secret generic rubato-operator-trust"  # the operator makes it


class Shell:
    """Runs commands from the top of the tree."""

    def __init__(self, kubeconfig=None, home=None):
        self.environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
        if home:
            self.environment["HOME"] = str(home)
            self.environment["XDG_STATE_HOME"] = str(home / "state")
        if kubeconfig:
            self.environment["KUBECONFIG"] = str(kubeconfig)
        self.environment["PATH"] = f"{BIN}:{self.environment['PATH']}"

    def run(self, command):
        """What it prints; it must succeed, or still go on where it is one that does."""
        words = command.replace("build/release/bin", str(BIN))
        watched = command in WATCHES
        limit = ["timeout", "--foreground", str(WATCHED_S)] if watched else []
        done = subprocess.run([*limit, "bash", "-c", words], cwd=ROOT, env=self.environment, capture_output=True,
                              text=True, timeout=COMMAND_S)
        assert done.returncode in ((0, 124) if watched else (0,)), f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout


def test_every_command_is_run_by_some_test():
    typed = [command for page in PAGES for command, _ in typed_in(page)]
    assert len(typed) > 20, typed
    here = {command for _, command in readme_cluster()}
    here |= {*install_commands(), *readme_on_a_cluster(), *first_look()}
    unknown = [command for command in typed if command not in here and command not in ELSEWHERE]
    assert not unknown, f"run these, or say in ELSEWHERE who does: {unknown}"
    gone = [command for command in ELSEWHERE if command not in typed]
    assert not gone, f"nobody is told to type these any more: {gone}"


def test_who_runs_it_instead_is_there():
    programs = named_tests.defined()[1]
    for command, who in ELSEWHERE.items():
        named = re.findall(r"\b[a-z0-9]+(?:_[a-z0-9]+)+\b", who)
        assert named or re.match("make |\\.ci/run|this is |nobody: ", who), f"{command}: {who}"
        assert set(named) <= programs, f"{command}: {set(named) - programs} is no test"


def test_the_helper_reads_pages():
    page = "$ kubectl get tj\nNAME   STATE\ngpt    Running\nhelm install a b \\\n  --set c=d   # why\n"
    assert commands(page) == [("kubectl get tj", ["NAME   STATE", "gpt    Running"]),
                              ("helm install a b --set c=d", [])]


def test_the_helper_compares_tables():
    page = ["NAME   LOSS    GOODPUT   RESCALES   AGE", "gpt    2.184   0.93                 24s"]
    assert cells(page) == {"NAME": "gpt", "LOSS": "2.184", "GOODPUT": "0.93", "RESCALES": "", "AGE": "24s"}
    assert is_like({"NAME": "gpt", "LOSS": "3.1", "GOODPUT": "0.2", "RESCALES": "1", "AGE": "2m3s"}, cells(page))
    assert not is_like({"NAME": "gpt", "LOSS": "3.1", "GOODPUT": "", "RESCALES": "1", "AGE": "2m3s"}, cells(page))


# ---- make -----------------------------------------------------------------------------------------


def targets_in(text):
    """What `make` is told on a page, in a block or in `code`: every word that is a target."""
    in_blocks = "\n".join(match["block"] for match in re.finditer(FENCE, text, re.M | re.S))
    told = re.findall(r"^(?:\$ )?make( [^#\n]*)", in_blocks, re.M) + re.findall(r"`make(\s[^`]*)`", text)
    return {word for words in told for word in re.findall(r"(?<=\s)[a-z][a-z0-9-]*(?=\s|$)", words.split("=")[0])}


def test_the_helper_finds_targets():
    page = "`make a` make b, `make\nc-2 d` `make e X=f` `make g-NAME`\n```\n$ make h   # why\nmake i\n```\nmake j\n"
    assert targets_in(page) == {"a", "c-2", "d", "e", "h", "i"}


def test_make_knows_every_target_that_a_page_names():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md",
             *sorted((ROOT / "docs").rglob("*.md"))]
    targets = set().union(*(targets_in(page.read_text()) for page in pages))
    assert {"demo", "release", "test", "images", "bench-coordinator"} <= targets and len(targets) > 40
    for target in sorted(targets):
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_S)
        assert done.returncode == 0 and done.stdout, f"make {target}: {done.stderr}"
    known = set(re.findall(r"^    ([a-z-]+)\) echo", (ROOT / "tests" / "bench" / "run").read_text(), re.M))
    assert {target.removeprefix("bench-") for target in targets if target.startswith("bench-")} <= known


# ---- README: a cluster of your own -----------------------------------------------------------------


def readme_cluster():
    """[(lines shown, command)] of the quick start."""
    block = next(block for block in blocks("README.md") if QUICK_START in block)
    return [(shown, command) for command, shown in commands(block)]


def first_look():
    """What docs/runbook.md has a person type, of a job called NAME."""
    return [command for command, _ in typed_in("docs/runbook.md")]


def test_quick_start(tmp_path):
    shell = Shell(home=tmp_path)
    try:
        for shown, command in readme_cluster():
            if command in ELSEWHERE:
                continue
            if command.startswith("export KUBECONFIG="):
                shell.environment["KUBECONFIG"] = kubeconfig
                continue
            if shown:
                show_the_same(shell, command, shown)
                continue
            said = shell.run(command)
            if command == QUICK_START:
                kubeconfig = re.search(r"^export KUBECONFIG=(.+)$", said, re.M)[1]
        for command in first_look():
            shell.run(command.replace("NAME", JOB))
    finally:
        shell.run("build/release/bin/rubatoctl local down --purge")


def show_the_same(shell, command, shown):
    """The same table: columns, and a row whose cells are of the same kind; what is blank on the page may be there."""
    wanted = cells(shown)
    said = []

    def is_so():
        said[:] = shell.run(command).splitlines()
        return len(said) == 2 and is_like(cells(said), wanted)

    try:
        wait_until(is_so, TRAINS_S, f"`{command}` to print what README shows")
    except ControlPlaneError as error:
        pytest.fail(f"{error}\n" + "\n".join(said))


def cells(table):
    """{column: cell} of a head and one row below it; a cell stands below its column's name."""
    starts = [match.start() for match in re.finditer(r"\S+", table[0])]
    return {table[0][start:end].strip(): table[1][start:end].strip()
            for start, end in zip(starts, [*starts[1:], None], strict=True)}


def is_like(found, wanted):
    return list(found) == list(wanted) and all(kind(found[name]) == kind(cell) for name, cell in wanted.items() if cell)


def kind(word):
    """A word with its numbers made alike: 4/2-4 and 31k are 0/0-0 and 0k; a time is a time."""
    if re.fullmatch(r"([0-9]+[dhms])+", word):
        return "time"
    return re.sub(r"[0-9]+(\.[0-9]+)?k?", "0", word)


# ---- docs/install.md, and README's cluster ----------------------------------------------------------


def install_commands():
    return [command for command, _ in typed_in("docs/install.md") if command not in ELSEWHERE]


def readme_on_a_cluster():
    on_a_cluster = [block for block in blocks("README.md") if "make images" in block or "fill.yaml" in block]
    return [command for block in on_a_cluster for command, _ in commands(block) if command not in ELSEWHERE]


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    with ControlPlane(controller_manager=True) as plane:
        yield Shell(plane.kubeconfig, tmp_path_factory.mktemp("home"))


def test_install_page(shell):
    page = install_commands()
    shell.run(f"echo '{NODE}' | kubectl apply -f -")
    installed = next(command for command in page if command.startswith("helm install"))
    for command in page:
        if command == SECOND_END:
            shell.run(installed)
            shell.run(TRUST)
            serves_all_kinds(shell)
        shell.run(command)


def serves_all_kinds(shell):
    """A CRD that is deleted before its storage is up keeps its finalizer, in some API servers for ever: the instances
    cannot be listed ("storage is (re)initializing"), and nobody tries again."""
    shell.run("kubectl wait --for=condition=Established crd -l app.kubernetes.io/part-of=rubato")
    shell.run("kubectl get trainingjobs,trainingqueues,schedulingpolicies,throughputprofiles --all-namespaces")


def test_readme_on_a_cluster(shell):
    for command in readme_on_a_cluster():
        if "gpt-kjv.yaml" in command:
            shell.run("kubectl wait --for=condition=Established crd -l app.kubernetes.io/part-of=rubato")
        shell.run(command)


def of_pages():
    """[(page, manifest)] of ours that are whole, on all pages."""
    found = [(page.name, manifest) for page in sorted((ROOT / "docs").glob("*.md"))
             for block in blocks(page.relative_to(ROOT), "yaml") for manifest in yaml.safe_load_all(block)]
    return [(page, manifest) for page, manifest in found
            if manifest.get("apiVersion", "").startswith("rubato.dev/") and "metadata" in manifest]


def test_manifests_of_all_pages_are_accepted(shell, tmp_path):
    shell.run("kubectl apply --server-side --force-conflicts -f crds")
    shell.run("kubectl wait --for=condition=Established -f crds")
    pages = of_pages()
    assert {page for page, _ in pages} >= {"cells.md", "policies.md", "queues.md", "throughput.md"}
    for page, manifest in pages:
        path = tmp_path / f"of-{page}.json"
        path.write_text(json.dumps(manifest | {"metadata": {"name": "of-a-page"}}))  # there is a `default` already
        shell.run(f"kubectl create --dry-run=server --validate=strict -f {path}")


def test_the_pod_of_the_runbook_is_admitted_where_pods_are_restricted(shell, tmp_path):
    [text] = blocks("docs/runbook.md", "yaml")
    pod = yaml.safe_load(text)
    claims, [job] = of_example("PersistentVolumeClaim"), of_example("TrainingJob")
    assert pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] in [c["metadata"]["name"] for c in claims]
    path = job["spec"]["training"]["checkpoint"]["path"]
    assert pod["spec"]["containers"][0]["volumeMounts"][0]["mountPath"] == path
    assert pod["spec"]["containers"][0]["command"][-1] == path
    admitted(shell, tmp_path, pod)


def test_the_pod_of_the_example_fills_the_claim_of_its_job(shell, tmp_path):
    claim, pod = yaml.safe_load_all((ROOT / "examples" / "data.yaml").read_text())
    assert claim in of_example("PersistentVolumeClaim")
    [job] = of_example("TrainingJob")
    reads, [writes] = job["spec"]["template"]["spec"], pod["spec"]["containers"]
    assert writes["image"] == reads["containers"][0]["image"]
    assert job["spec"]["training"]["data"]["path"] in writes["command"]
    assert pod["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}
    assert reads["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert writes["volumeMounts"][0]["mountPath"] == reads["containers"][0]["volumeMounts"][0]["mountPath"]
    admitted(shell, tmp_path, claim, pod)


@pytest.mark.parametrize("name", ("gpt2-124m", "llama-finetune"))
def test_what_is_copied_into_a_claim_is_where_its_job_reads(shell, tmp_path, name):
    [claim], [job] = of_example("PersistentVolumeClaim", name), of_example("TrainingJob", name)
    called, spec = claim["metadata"]["name"], job["spec"]["template"]["spec"]
    assert f"--claim {called} --file train.tokens" in (ROOT / "README.md").read_text()
    training = job["spec"]["training"]
    assert training["data"]["path"] == "/data/train.tokens"
    assert training["model"].get("initFrom") in (None, "/data/llama")
    assert training["checkpoint"]["path"] == "/data/checkpoints"
    [volume], [mount] = spec["volumes"], spec["containers"][0]["volumeMounts"]
    assert volume["persistentVolumeClaim"] == {"claimName": called} and mount["mountPath"] == "/data"
    fill = yaml.safe_load((ROOT / "examples" / "fill.yaml").read_text().replace("CLAIM", called))
    assert fill["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": called}
    admitted(shell, tmp_path, claim, fill)


def of_example(kind, name=JOB):
    manifests = yaml.safe_load_all((ROOT / "examples" / f"{name}.yaml").read_text())
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def admitted(shell, folder, *manifests):
    """A real API server takes them, and Pod Security *restricted* their pods."""
    shell.run(f"kubectl create namespace {RESTRICTED} --dry-run=client -o yaml | kubectl apply -f -")
    shell.run(f"kubectl label namespace {RESTRICTED} --overwrite pod-security.kubernetes.io/enforce=restricted")
    shell.run(f"kubectl -n {RESTRICTED} wait --for=create serviceaccount/default --timeout=60s")
    for manifest in manifests:
        path = folder / "manifest.json"
        path.write_text(json.dumps(manifest | {"metadata": manifest["metadata"] | {"namespace": RESTRICTED}}))
        shell.run(f"kubectl apply --dry-run=server --validate=strict -f {path}")
