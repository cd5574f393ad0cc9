"""What scripts/, .ci/run, tests/skipped, deploy/build and cmake/cuda.cmake do on machines unlike this one. Stand-ins
come first in PATH."""

import os
import pathlib
import re
import select
import shutil
import signal
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 60
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(look NONE)
include(cmake/cuda.cmake)
add_custom_target(nothing ALL)
"""
# As scripts/build-cuda: `--print` fails before it was called without.
KIT = """#!/bin/sh
if [ "$1" = --print ]; then cat "$(dirname "$0")/kit"; else echo /the/kit >"$(dirname "$0")/kit"; fi
"""


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


class Machine:
    """Where some programs are others, and the caches are empty."""

    def __init__(self, folder):
        self.folder, self.bin = folder, folder / "bin"
        self.environment = os.environ | {"PATH": f"{self.bin}:{os.environ['PATH']}",
                                         "XDG_CACHE_HOME": str(folder / "a cache")}
        self.environment.pop("CUDA_HOME", None)

    def has(self, name, text):
        program(self.bin / name, text)

    def run(self, *words, **environment):
        return subprocess.run(list(map(str, words)), env=self.environment | environment, capture_output=True, text=True,
                              timeout=LIMIT_S, check=False)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_images_are_built_as_root_with_what_was_set_up_before(machine):
    machine.has("id", "#!/bin/sh\necho 1000\n")
    said = machine.run(ROOT / "deploy" / "build", "--from", "build/my tree", "worker-cuda")
    assert said.returncode == 1
    cache = str(machine.folder / "a cache").replace(" ", r"\ ")
    assert said.stderr.endswith(
        rf"What to do: sudo XDG_CACHE_HOME={cache} deploy/build --from build/my\ tree worker-cuda" + "\n")
    assert (machine.folder / "a cache" / "rubato" / "logs").is_dir()  # its owner is not root


def test_gpu_check_in_a_folder_with_a_space(machine):
    machine.has("nvidia-smi", '#!/bin/sh\ncase "$*" in *compute_cap*) echo 9.0 ;; *) echo "a card" ;; esac\n')
    # Writes what it is asked for: objects, and a program that finds nothing wrong.
    writes = '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nprintf "#!/bin/sh\\n" >"$2" && chmod +x "$2"\n'
    machine.has("g++", writes)
    toolkit = machine.folder / "a toolkit"
    program(toolkit / "bin" / "nvcc", '#!/bin/sh\n[ "$1" = --version ] || exec g++ "$@"\n')
    program(toolkit / "lib" / "libcudart_static.a", "")
    out = machine.folder / "an out"
    done = machine.run(ROOT / "scripts" / "gpu-check", "kernels", CUDA_HOME=str(toolkit), GPU_CHECK_OUT=str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all is well" in done.stdout
    assert {path.suffix for path in (out / "objects").iterdir()} == {".o"}


class Tree:
    """A project with our cmake/cuda.cmake and scripts/setup, in which a stand-in fetches the compiler."""

    def __init__(self, machine):
        self.machine, self.root, self.usual = machine, machine.folder / "tree", machine.folder / "usual"
        for path in ("cmake/cuda.cmake", "scripts/lib.sh", "scripts/setup"):
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, self.root / path)
        rules = self.root / "cmake" / "cuda.cmake"
        rules.write_text(rules.read_text().replace("/usr/local/cuda", str(self.usual)))
        program(self.root / "scripts" / "build-cuda", KIT)
        (self.root / "CMakeLists.txt").write_text(PROJECT)

    def configure(self, *words, **environment):
        return self.machine.run("cmake", "-G", "Ninja", "-S", self.root, "-B", self.root / "build", *words,
                                **environment)

    def toolkit(self, number):
        folder = self.machine.folder / f"cuda-{number}"
        (folder / "include").mkdir(parents=True)
        (folder / "include" / "cublasLt.h").touch()
        (folder / "include" / "cuda.h").write_text(f"#define CUDA_VERSION {number}\n#define CUDA_VERSION_TEXT x\n")
        return folder


@pytest.fixture
def tree(machine):
    machine.has("dpkg-query", '#!/bin/sh\nshift 2\nprintf "installed %s\\n" "$@"\n')  # nothing is lacking
    return Tree(machine)


def test_a_build_that_was_configured_before_finds_the_compiler_for_gpus(machine, tree):
    old = tree.toolkit(12040)
    assert f"left out ({old} is CUDA 12.4, not 13; scripts/setup cuda" in tree.configure(CUDA_HOME=str(old)).stdout
    building = ["cmake", "--build", tree.root / "build"]
    assert "CUDA backend" not in machine.run(*building).stdout
    done = machine.run(tree.root / "scripts" / "setup", "cuda")
    assert done.returncode == 0, done.stderr
    assert "compiled with /the/kit/bin/nvcc" in machine.run(*building).stdout
    assert "CUDA backend" not in machine.run(*building).stdout


def test_a_toolkit_of_the_machine_is_taken_where_it_is_of_the_right_version(tree):
    fit, old = tree.toolkit(13010), tree.toolkit(12080)
    assert f"compiled with {fit}/bin/nvcc" in tree.configure(CUDA_HOME=str(fit)).stdout
    assert f"compiled with {fit}/bin/nvcc" in tree.configure(f"-DRUBATO_CUDA={fit}").stdout
    refused = tree.configure(f"-DRUBATO_CUDA={old}")
    assert refused.returncode != 0 and f"{old} is CUDA 12.8, not 13" in " ".join(refused.stderr.split())
    assert "left out" in tree.configure("-DRUBATO_CUDA=OFF").stdout


def test_a_toolkit_that_is_unfit_does_not_hide_another(tree):
    fit, old = tree.toolkit(13010), tree.toolkit(12080)
    assert f"left out ({tree.root} has no include/cublasLt.h; scripts/setup" in \
        tree.configure(CUDA_HOME=str(tree.root)).stdout
    tree.usual.symlink_to(fit)
    assert f"compiled with {tree.usual}/bin/nvcc" in tree.configure().stdout
    assert f"compiled with {tree.usual}/bin/nvcc" in tree.configure(CUDA_HOME=str(old)).stdout
    assert f"compiled with {fit}/bin/nvcc" in tree.configure(CUDA_HOME=str(fit)).stdout


def test_the_compiler_for_gpus_is_fetched_for_a_checkout_that_cannot_be_written(machine, tree):
    machine.has("touch", "#!/bin/sh\nexit 1\n")
    done = machine.run(tree.root / "scripts" / "setup", "cuda")
    assert done.returncode == 0 and "run cmake again" in done.stderr and "set up: cuda" in done.stderr


TESTS_PASSED = "100% tests passed, 0 tests failed out of 2"
# `make test` prints what ctest and tests/skipped print; `make test-cluster` what the file beside it says, and may wait.
MAKE = f"""#!/bin/sh
case $1 in
  test) cat <<END
1/2 Test #1: alone ...***Skipped   0.01 sec
{TESTS_PASSED}

Skipped:
  3 disks: no namespaces

END
  ;;
  test-cluster) echo "the cluster begins"; exec sh cluster-test ;;
esac
"""


@pytest.fixture
def ci(machine):
    """A project with our .ci/run, in which all else is a stand-in that is done at once."""
    root = machine.folder / "tree"
    (root / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", root / ".ci")
    for path in ("scripts/setup", "tests/cluster/cluster"):
        program(root / path, "#!/bin/sh\n")
    machine.has("cmake", "#!/bin/sh\n")
    machine.has("make", MAKE)
    (root / "cluster-test").touch()
    return root


def test_ci_ends_with_what_was_done_and_skipped(machine, ci):
    done = machine.run(ci / ".ci" / "run")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = done.stdout.split("\nStages:\n")[1]
    assert [line.split()[0] for line in summary.splitlines()[:10]] == [
        "setup", "joined", "build", "cuda", "tools", "test", "cluster", "asan", "tsan", "fuzz"]
    assert all(line.endswith(" s  ok") for line in summary.splitlines()[:10])
    assert "alone ...***Skipped" in summary and "Skipped:\n  3 disks: no namespaces" in summary
    assert summary.endswith(TESTS_PASSED + "\n")


def test_ci_begins_no_cluster_and_no_lane_when_it_is_late(machine, ci):
    done = machine.run(ci / ".ci" / "run", SECONDS="6000")  # where bash begins to count
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the cluster begins" not in done.stdout
    assert done.stdout.count("not done: no time left") == 4
    assert done.stdout.endswith(TESTS_PASSED + "\n")


def test_ci_fails_when_a_test_of_the_cluster_failed_before_its_time_was_over(machine, ci):
    (ci / "cluster-test").write_text("echo '1/2 Test #1: e2e ...***Failed'; exit 124\n")
    done = machine.run(ci / ".ci" / "run")
    assert done.returncode == 1 and re.search(r"^  cluster +\d+ s  failed \(1\)$", done.stdout, re.M), done.stdout


def set_up(ci, part, text):
    program(ci / "scripts" / "setup", f'#!/bin/sh\n[ "$1" = {part} ] || exit 0\n{text}\n')


def test_ci_fails_when_what_it_fetches_beside_the_build_does(machine, ci):
    set_up(ci, "cluster", "echo no room; exit 3")
    done = machine.run(ci / ".ci" / "run")
    assert done.returncode == 3 and "\nno room\n" in done.stdout
    summary = done.stdout.split("\nStages:\n")[1]
    assert re.search(r"^  build +\d+ s  ok\n  cuda +\d+ s  ok\n  tools +\d+ s  failed \(3\)\n", summary, re.M), summary
    assert "  test " not in summary


def test_ci_fetches_no_cluster_where_none_can_run_and_does_without_the_compiler_for_gpus(machine, ci):
    program(ci / "tests" / "cluster" / "cluster", "#!/bin/sh\nexit 77\n")
    program(ci / "scripts" / "setup", '#!/bin/sh\necho "asked for $1"\n[ "$1" != cuda ]\n')
    done = machine.run(ci / ".ci" / "run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "asked for tests" in done.stdout and "asked for cluster" not in done.stdout
    assert re.search(r"^  cuda +\d+ s  skipped", done.stdout, re.M)


WAITS = "mkfifo never\necho waits\nread line <never\n"


def told_to_end(machine, ci, word):
    """Runs it until something waits; returns what it says, when nothing runs any more."""
    left, theirs = os.pipe()  # which all have that it starts
    # Who started us may ignore it, and so would all that we start.
    command = ["env", f"--default-signal={word.name[3:]}", ci / ".ci" / "run"]
    with subprocess.Popen(command, env=machine.environment, stdout=subprocess.PIPE, text=True,
                          pass_fds=[theirs]) as running:
        os.close(theirs)
        said = ""
        while "waits" not in said:
            line = running.stdout.readline()
            assert line, said
            said += line
        running.send_signal(word)
        said += running.communicate(timeout=LIMIT_S)[0]
    assert running.returncode == 128 + word
    assert select.select([left], [], [], LIMIT_S)[0] == [left], "something runs on"
    os.close(left)
    return said


@pytest.mark.parametrize("word", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT], ids=lambda s: s.name)
def test_ci_that_is_told_to_end_says_how_far_it_came(machine, ci, word):
    (ci / "cluster-test").write_text(WAITS)
    said = told_to_end(machine, ci, word)
    assert "not done: told to end" in said and said.endswith(TESTS_PASSED + "\n")


def test_ci_that_is_told_to_end_ends_what_runs_beside_it(machine, ci):
    set_up(ci, "cluster", WAITS)
    said = told_to_end(machine, ci, signal.SIGTERM)
    assert re.search(r"^  tools +\d+ s  not done: told to end$", said, re.M), said


def test_what_the_programs_of_tests_skipped_is_told(machine):
    log = machine.folder / "build" / "Testing" / "Temporary" / "LastTest.log"
    log.parent.mkdir(parents=True)
    log.write_text("1/2 Test: disks\n[ RUN      ] Disks.One\n/x/disks_test.cc:25: Skipped\nno namespaces\n\n"
                   "[  SKIPPED ] Disks.One (0 ms)\n/x/disks_test.cc:25: Skipped\nno namespaces\n"
                   "2/2 Test: images\nSKIPPED [3] tests/x.py:45: built without CUDA\n3 skipped\n")
    said = machine.run(ROOT / "tests" / "skipped", machine.folder / "build")
    assert said.stdout.split("\n") == ["", "Skipped:", "      2 disks: no namespaces",
                                       "      1 images: SKIPPED [3] tests/x.py:45: built without CUDA", "", ""]
    log.write_text("1/1 Test: disks\n[       OK ] Disks.One (0 ms)\n")
    silent = machine.run(ROOT / "tests" / "skipped", machine.folder / "build")
    assert (silent.returncode, silent.stdout) == (0, "")
