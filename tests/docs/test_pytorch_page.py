"""docs/pytorch.md as a tutorial: the blocks of Python of a chapter are one script, which is run; a real API server
accepts the manifests. Its commands: test_commands.py.
"""

import json
import os
import pathlib
import re
import subprocess

import pytest
import yaml

from commands import FENCE, ROOT, blocks, scripts
from control_plane import ControlPlane, free_port, wait_until
from script_jobs import package_environment

PAGE = "docs/pytorch.md"
SCRIPT_S = 120  # importing torch takes seconds, and the cores are shared
ESTABLISHED_S = 60


def run_chapter(title, folder, **environment):
    """What the script of the chapter prints, in that folder, with the package of this build."""
    [script] = [script for chapter, script in scripts(PAGE).items() if chapter.startswith(title)]
    path = folder / pathlib.Path(PAGE).name
    path.write_text(script)
    done = subprocess.run(["python", path], cwd=folder, env={**os.environ, **package_environment(), **environment},
                          text=True, capture_output=True, timeout=SCRIPT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_nothing_of_the_page_is_left_out():
    languages = {match["language"] for match in re.finditer(FENCE, (ROOT / PAGE).read_text(), re.M | re.S)}
    assert languages == {"", "python", "yaml"}
    assert len(scripts(PAGE)) == 2, "each has a test below"
    assert len(blocks(PAGE, "yaml")) == 2, "so has each of these"


def test_lines_of_a_script_have_the_numbers_that_they_have_on_the_page():
    lines = (ROOT / PAGE).read_text().splitlines()
    for script in scripts(PAGE).values():
        assert all(line in ("", lines[number]) for number, line in enumerate(script.splitlines()))


def test_the_elastic_script_trains(tmp_path):
    printed = run_chapter("Runtime pytorch", tmp_path)
    steps = [int(step) for step in re.findall(r"^(\d+) \d+\.\d+ 1$", printed, re.M)]
    assert steps[:100] == list(range(1, 101)), printed
    assert (tmp_path / "states" / "LATEST").exists()


def test_the_script_of_torchrun_tells_its_progress(tmp_path):
    told = tmp_path / "progress"
    run_chapter("Runtimes torchrun", tmp_path, RUBATO_PROGRESS_FILE=str(told))
    assert json.loads(told.read_text()).keys() == {"step", "loss", "tokens"}


def test_the_example_of_torchrun_goes_on_from_its_checkpoint(tmp_path):
    text = tmp_path / "kjv.txt"
    text.write_bytes(b"In the beginning God created the heaven and the earth. " * 40)

    def steps_of(world, steps):
        port = free_port()
        ranks = [subprocess.Popen(["python", ROOT / "examples/pytorch/torchrun_kjv.py", text, str(steps), tmp_path],
                                  env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world),
                                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                                       "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
                                  stdout=subprocess.PIPE, text=True) for rank in range(world)]
        printed = [rank.communicate(timeout=SCRIPT_S)[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * world
        return [int(step) for step in re.findall(rf"^step (\d+)/{steps}: loss \d.*, {world} ", printed[0], re.M)]

    assert steps_of(2, 3) == [1, 2, 3]
    assert steps_of(1, 5) == [4, 5]


@pytest.fixture(scope="module")
def plane():
    with ControlPlane() as plane:
        plane.kubectl("apply", "-f", ROOT / "crds/trainingjobs.yaml")
        wait_until(lambda: plane.kubectl("get", "tj", check=False).returncode == 0, ESTABLISHED_S, "jobs to be served")
        yield plane


def job_of(example):
    manifests = yaml.safe_load_all((ROOT / "examples" / f"{example}.yaml").read_text())
    return next(manifest for manifest in manifests if manifest["kind"] == "TrainingJob")


def test_manifests_are_accepted(plane):
    spec, variables = (yaml.safe_load(block) for block in blocks(PAGE, "yaml"))
    elastic, as_it_is = job_of("pytorch-kjv"), job_of("torchrun")
    elastic["spec"] |= spec["spec"]
    as_it_is["spec"]["template"]["spec"]["containers"][0] |= variables
    for job in (elastic, as_it_is):
        plane.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(job))
    elastic["spec"]["training"]["batch"]["nosuch"] = 1
    refused = plane.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(elastic), check=False)
    assert 'unknown field "spec.training.batch.nosuch"' in refused.stderr
