"""Loss curves of one small model with 512 micro-batches a step: the exact sum follows f32 sums, within a bound that
numerics version 1, which rounds each contribution to nearest, misses. `make bench-numerics` does it over seeds, for
300 steps."""

import math
import os
import pathlib
import re
import subprocess

import pytest
from jobs import sample_text

PROGRAMS = pathlib.Path(os.environ["RUBATO_BUILD"]) / "bin"
STEPS, MICRO_BATCHES = 48, 512
BOUND = 5e-8  # rms over the steps; one CPU or GPU type gives the same curves each time


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    folder = tmp_path_factory.mktemp("curves")
    made = folder / "text.tok"
    subprocess.run([PROGRAMS / "rubato-tokenize", "--out", made], input=sample_text().encode(), check=True)
    return made


def curve(tokens, kind):
    said = subprocess.run([PROGRAMS / "loss_curve", "--data", tokens, "--sum", kind, "--seed", "2",
                           "--steps", str(STEPS), "--micro-batches", str(MICRO_BATCHES), "--learning-rate", "0.001"],
                          capture_output=True, text=True, check=True).stdout
    losses = [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)", said, re.M)]
    assert len(losses) == STEPS
    return losses


def test_the_exact_sum_learns_as_f32(tokens):
    f32 = curve(tokens, "f32")
    assert f32[-1] < f32[0] - 1, "it has learnt nothing"

    def distance(kind):
        return math.dist(curve(tokens, kind), f32) / math.sqrt(STEPS)

    distances = {kind: distance(kind) for kind in ("exact", "nearest")}
    print(f"from f32, rms over {STEPS} steps: {distances}")
    assert distances["exact"] < BOUND
    assert distances["nearest"] > BOUND, "version 1 is no longer worse: this test tells nothing"
