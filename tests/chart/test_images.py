"""The images: what is in them, what is said of them, and that their programs run as a restricted pod runs them."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

import pytest
from charts import ROOT, Helm, objects
from control_plane import ControlPlane, free_port, wait_until
from sandbox import USER, Image

sys.path.append(str(ROOT / "tests" / "runbook"))
from installed import FOR_TESTS  # noqa: E402

# A build folder, or "source" (make test-images).
FROM = os.environ.get("RUBATO_IMAGES_FROM", os.environ.get("RUBATO_BUILD", ROOT / "build" / "release"))
BUILD_LIMIT_S = 3000 if FROM == "source" else 900
LIMIT_S = 60
NAMES = ["operator", "worker", "worker-cuda"]
SIZE_MAX = {"operator": 50e6, "worker": 115e6, "worker-cuda": 900e6}  # bytes; about 33, 100 and 860 MB when this was written
OF_WORKER = {"rubato-agent", "rubato-worker", "rubato-script", "rubato-tokenize", "rubatoctl"}
PROGRAMS = {"operator": {"rubato-operator"}, "worker": OF_WORKER, "worker-cuda": OF_WORKER}


def why_no_cuda():
    """Why the image for GPUs is not made of this build; empty: it is."""
    if FROM == "source":
        return "compiling the worker once more, with CUDA, takes too long"
    kit = subprocess.run([ROOT / "scripts" / "build-cuda", "--print"], capture_output=True, check=False)
    worker = pathlib.Path(FROM) / "bin" / "rubato-worker"
    has_cuda = kit.returncode == 0 and b"libcublasLt" in worker.read_bytes()
    return "" if has_cuda else "the worker was built without CUDA: scripts/setup cuda brings its compiler"


class Made(dict):
    """By name; who asks for the image for GPUs where it is not made is skipped."""

    def __getitem__(self, name):
        if name not in self:
            pytest.skip(why_no_cuda())
        return super().__getitem__(name)


@pytest.fixture(scope="session")
def archives():
    if os.geteuid() != 0:
        pytest.skip("images are built as root")
    names = [name for name in NAMES if name != "worker-cuda" or not why_no_cuda()]
    subprocess.run([ROOT / "deploy" / "build", "--from", FROM, *names], check=True, timeout=BUILD_LIMIT_S)
    named = subprocess.run([ROOT / "deploy" / "build", "--from", FROM, "--print", *names], check=True, text=True,
                           capture_output=True).stdout.split()
    return Made(zip(names, map(pathlib.Path, named), strict=True))


@pytest.fixture(scope="session")
def images(archives, tmp_path_factory):
    return Made({name: Image(archive, tmp_path_factory.mktemp(name)) for name, archive in archives.items()})


def paths(archive):
    with tarfile.open(archive) as tar:
        for layer in json.load(tar.extractfile("manifest.json"))[0]["Layers"]:
            with tarfile.open(fileobj=tar.extractfile(layer)) as inside:
                yield from inside.getmembers()


@pytest.mark.parametrize("name", NAMES)
def test_holds_programs_and_their_libraries_only(archives, name):
    assert archives[name].stat().st_size < SIZE_MAX[name]
    members = list(paths(archives[name]))
    files = {member.name: member for member in members if member.isfile()}
    programs = {path.rsplit("/", 1)[-1] for path, member in files.items()
                if member.mode & 0o111 and ".so" not in path}
    assert programs == PROGRAMS[name]  # no shell among them
    assert not [member.name for member in members if member.mode & 0o6000], "set-uid or set-gid"
    writable = [member.name for member in members if member.mode & 0o002 and not member.issym()]
    assert [path.strip("./") for path in writable] == ["tmp"]


@pytest.mark.parametrize("name", NAMES)
def test_holds_nothing_made_for_tests(archives, name):
    """Fault points and the ledger of samples are in the image `testing` alone."""
    with tarfile.open(archives[name]) as tar:
        for layer in json.load(tar.extractfile("manifest.json"))[0]["Layers"]:
            data = tar.extractfile(layer).read()
            assert [word for word in FOR_TESTS if word in data] == []


@pytest.mark.parametrize("name", NAMES)
def test_says_what_it_is(images, name):
    config = images[name].config
    assert config["User"] == "65532:65532"  # a number: the kubelet cannot look names up
    labels = config["Labels"]
    assert labels["org.opencontainers.image.title"] == f"rubato-{name}"
    assert labels["org.opencontainers.image.licenses"].split(" AND ")[0] == "Apache-2.0"
    assert re.fullmatch(r"\d+\.\d+\.\d+", labels["org.opencontainers.image.version"])
    assert re.fullmatch(r"[0-9a-f]{40}|unknown", labels["org.opencontainers.image.revision"])


@pytest.mark.parametrize("name", NAMES)
def test_sbom_names_what_is_inside(archives, name):
    sbom = json.loads(archives[name].with_name(f"rubato-{name}.spdx.json").read_text())
    assert sbom["spdxVersion"] == "SPDX-2.3"
    names = {package["name"] for package in sbom["packages"]}
    assert {"libc6", "libssl3", "libprotobuf32", f"rubato-{name}"} <= names
    assert not names & {"apt", "dpkg", "bash", "coreutils", "perl-base"}
    library = {"./usr/lib/rubato/python/rubato/librubato_pytorch.so"} if name != "operator" else set()
    programs = {f"./usr/bin/{program}" for program in PROGRAMS[name]}
    assert {file["fileName"] for file in sbom["files"]} == programs | library
    ids = [item["SPDXID"] for item in [*sbom["packages"], *sbom["files"]]]
    assert len(ids) == len(set(ids))
    assert {link["relatedSpdxElement"] for link in sbom["relationships"]} == set(ids)


def test_building_again_gives_the_same_bytes(archives, tmp_path):
    archive = archives["operator"]
    first = archive.read_bytes()
    kept = tmp_path / "kept.tar"
    shutil.copy(archive, kept)
    archive.with_name(archive.name + ".stamp").unlink()
    subprocess.run([ROOT / "deploy" / "build", "--from", FROM, "operator"], check=True, timeout=300)
    assert archive.read_bytes() == first


def test_programs_start_and_say_what_they_want(images):
    for name in images:
        for program in PROGRAMS[name]:
            status, said = images[name].run([f"/usr/bin/{program}", "--help"])
            wanted = 2 if program in ("rubato-worker", "rubato-script") else 0  # only an agent starts these
            assert status == wanted and program in said, said


def test_rubatoctl_looks_at_checkpoints_on_a_volume(images):
    """As the pod of docs/runbook.md does; /tmp stands for the volume."""
    listing = ["/usr/bin/rubatoctl", "checkpoint", "list", "/tmp"]
    assert images["worker"].run(listing) == (0, "no checkpoints in /tmp\n")


def test_programs_run_beside_the_libraries_of_another_image(images, tmp_path):
    """As in an image of deploy/pytorch.Dockerfile."""
    for program in ("rubato-agent", "rubato-script"):
        beside = shutil.copy(ROOT / "deploy" / "beside", tmp_path / program)
        said = subprocess.run([beside, "--version"], env={"RUBATO_ROOT": str(images["worker"].root)}, text=True,
                              capture_output=True, check=True, timeout=LIMIT_S).stdout
        assert program in said


def test_python_package_loads_its_library_with_the_python_of_another_image(images):
    said = subprocess.run(["/usr/bin/python3", "-B", "-c", "import rubato.engine as e; print(e._load().rubato_version())"],
                          env={"PYTHONPATH": str(images["worker"].root / "usr/lib/rubato/python")}, text=True,
                          capture_output=True, check=True, timeout=LIMIT_S).stdout
    assert said.startswith("b'rubato ")


def test_worker_for_gpus_says_what_is_missing(images):
    """On a machine without a driver; with one, it names its GPU."""
    image = images["worker-cuda"]
    assert "RUBATO_DEVICE=cuda" in image.config["Env"]
    worker = ["/usr/bin/rubato-worker", "--device"]
    status, said = image.run(worker)
    assert (status, said.startswith("cuda:0: cuda/")) == (0, True) or \
        (status == 2 and "rubato-worker: opening cuda:0: there is no NVIDIA driver here" in said), said
    # What a template says in `env` comes after what the image says.
    status, said = image.run(worker, environment={"RUBATO_DEVICE": "cpu"})
    assert status == 0 and said.startswith("cpu: "), said
    # The image for processors says so, too.
    status, said = images["worker"].run(worker)
    assert status == 0 and said.startswith("cpu: "), said


@pytest.mark.parametrize("library", ["libcublasLt.so.13", "libnccl.so.2"])
def test_libraries_are_where_the_loader_looks(images, library):
    """The worker opens them when it has found a GPU, which no machine of CI has."""
    loader = ["/lib64/ld-linux-x86-64.so.2", "--preload", library]
    status, said = images["worker-cuda"].run([*loader, "/usr/bin/rubato-worker", "--version"],
                                             environment={"LD_BIND_NOW": "1"})
    assert status == 0 and said.startswith("rubato-worker "), said


@pytest.mark.parametrize("name", ["nvidia-cublas", "nvidia-nccl-cu13"])
def test_sbom_names_libraries_for_gpus(archives, name):
    sbom = json.loads(archives["worker-cuda"].with_name("rubato-worker-cuda.spdx.json").read_text())
    [library] = [package for package in sbom["packages"] if package["name"] == name]
    assert library["externalRefs"][0]["referenceLocator"] == f"pkg:pypi/{name}@{library['versionInfo']}"
    files = {path.name.removeprefix("./") for path in paths(archives["worker-cuda"])}
    assert any(path.startswith(library["comment"].removeprefix("licence text in /") + "/licenses/") for path in files)


@pytest.mark.parametrize("name,device", [("worker", None), ("worker-cuda", "cuda")])
def test_agent_runs_as_pid_one_without_rights(images, tmp_path, name, device):
    """It starts its worker, dials its coordinator (there is none), and leaves in order when told to."""
    secrets = tmp_path / "job"
    secrets.mkdir()
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-subj", "/CN=ca", "-keyout", secrets / "tls.key", "-out", secrets / "tls.crt"],
                   check=True, capture_output=True)
    shutil.copy(secrets / "tls.crt", secrets / "ca.crt")
    (secrets / "token").write_text("0" * 64)
    for path in secrets.iterdir():  # what a volume with fsGroup looks like
        os.chown(path, 0, USER)
        path.chmod(0o440)
    process = images[name].start(None, {
        "RUBATO_JOB": "default/alone", "RUBATO_JOB_UID": "u", "RUBATO_POD_NAME": "alone-w0", "RUBATO_POD_UID": "p",
        "RUBATO_POD_IP": "127.0.0.1", "RUBATO_SECRET_DIR": "/var/run/rubato/job",
        "RUBATO_COORDINATORS": f"127.0.0.1:{free_port()}", "RUBATO_GRACE_SECONDS": "1"},
        mounts={"/var/run/rubato/job": str(secrets)})
    try:
        wait_until(lambda: children(process.pid, "rubato-worker") or ended(process), LIMIT_S, "a worker of the agent")
        [agent] = children(process.pid, "rubato-agent")
        [worker] = children(process.pid, "rubato-worker")
        told = dict(line.split("=", 1) for line in pathlib.Path(f"/proc/{worker}/environ").read_text().split("\0") if line)
        assert told.get("RUBATO_DEVICE") == device  # what the image says reaches the worker
        for pid in (agent, worker):
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
            assert re.search(rf"^Uid:\s+{USER}\s+{USER}\s+{USER}", status, re.MULTILINE)
            assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
            assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE)
        assert re.search(r"^NSpid:.*\s1$", pathlib.Path(f"/proc/{agent}/status").read_text(), re.MULTILINE)
        os.kill(agent, 15)
        assert process.wait(LIMIT_S) in (0, 143)
    finally:
        process.kill()
        process.wait()


def ended(process):
    if process.poll() is not None:
        pytest.fail(f"ended with {process.returncode}: {process.stdout.read()}")
    return False


def children(pid, name):
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rsplit(")", 1)[1].split()
            program = os.path.basename((path.parent / "cmdline").read_bytes().split(b"\0")[0].decode())
        except OSError:
            continue
        found.append((int(path.parent.name), int(words[1]), program))
    below, mine = {pid}, []
    for _ in range(4):  # unshare, python, agent, worker
        below |= {child for child, parent, _ in found if parent in below}
    mine = [child for child, _, program in found if child in below and program == name]
    return mine


def test_operator_leads_from_its_image(images, tmp_path):
    """In-cluster configuration: the account's token from a volume, the API server's address from the environment."""
    with ControlPlane(controller_manager=True) as plane:
        plane.kubectl("apply", "--server-side", "-f", ROOT / "crds")
        plane.kubectl("create", "namespace", "rubato-system")
        rights = [found for found in objects(Helm(tmp_path).template()) if found["kind"] in
                  ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")]
        wait_until(lambda: plane.kubectl("get", "namespace", "kube-node-lease", check=False).returncode == 0, LIMIT_S,
                   "namespace kube-node-lease")
        plane.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": rights}))
        account = tmp_path / "account"
        account.mkdir()
        token = plane.kubectl("create", "token", "-n", "rubato-system", "rubato-operator").stdout.strip()
        (account / "token").write_text(token)
        shutil.copy(plane.client_ca, account / "ca.crt")
        (account / "namespace").write_text("rubato-system")
        for path in [account, *account.iterdir()]:
            path.chmod(0o755)
        tmp_path.chmod(0o755)
        host, port = plane.url.removeprefix("https://").split(":")
        process = images["operator"].start(
            [*images["operator"].config["Entrypoint"], f"--listen=127.0.0.1:{free_port()}", "--identity=image"],
            {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port},
            mounts={"/var/run/secrets/kubernetes.io/serviceaccount": str(account)})
        try:
            def leads():
                found = plane.kubectl("-n", "rubato-system", "get", "lease", "rubato-operator", "-o", "json",
                                      check=False)
                return found.returncode == 0 and json.loads(found.stdout)["spec"]["holderIdentity"].startswith(
                    "image_")
            wait_until(lambda: leads() or ended(process), LIMIT_S, "the operator to lead")
            [operator] = children(process.pid, "rubato-operator")
            os.kill(operator, 15)
            assert process.wait(LIMIT_S) == 0
        finally:
            process.kill()
            process.wait()
