"""What README.md shows of `make demo` is what the demo prints, numbers aside; and the demo proves what it says."""

import os
import pathlib
import re
import subprocess

from commands import blocks

BIN = pathlib.Path(os.environ["RUBATO_BUILD"]) / "bin"
STEPS = 150  # README's has 600
LIMIT_S = 1100
FIRST_LINE = "== gpt-kjv (gpt2, 4 layers of 192) on 2 to 4 GPUs, 600 steps =="


def shape(line):
    """A line with its numbers, times and hashes made alike, and without why a pod was lost and what was kept."""
    line = re.sub(r"\[[#-]+\]", "[bar]", line)
    line = re.sub(r"\b[0-9a-f]{16}\b", "hash", line)
    line = re.sub(r"(?<= lost):.*", "", line)
    line = re.sub(r"\b([0-9]+(\.[0-9]+)?[dhms])+\b", "time", line)
    line = re.sub(r"[0-9]+(\.[0-9]+)?k?", "0", line)
    return " ".join(line.split()).replace("[ ", "[")  # "[  6.4s]" and "[101.5s]" are alike


def shown():
    """The lines of README's block; it is shortened, so others may be between."""
    [block] = [block for block in blocks("README.md") if block.startswith(FIRST_LINE)]
    return [line for line in block.splitlines() if line]


def not_printed(lines, output):
    printed = {shape(line) for line in output.splitlines()}
    return [line for line in lines if shape(line) not in printed]


def test_lines_are_compared_without_their_numbers():
    page = ["[ 41.5s] [###---]  82/600  loss 2.3398  GPUs 2  4.0k tokens/s  ETA 4m24s",
            "241    4 to 3   0.14s   0.58s   recover: pod a-w3 on node n4 lost: connection closed; 6 of 8 kept",
            "steps.bin   b3a07aa5006c906f   equal", "three words here"]
    output = ("[  9.5s] [####--]  9/150  loss 1.3  GPUs 4  980 tokens/s  ETA 7s\n60 4 to 3 0.1s 2s "
              "recover: pod a-w2 on node n3 lost: silent\nsteps.bin 0000000000000001 equal\nthree words there\n")
    assert not_printed(page, output) == ["three words here"]
    assert not_printed(shown(), "\n".join(shown())) == [] and len(shown()) > 15


def test_readme_shows_what_the_demo_prints():
    done = subprocess.run([BIN / "rubatoctl", "local", "demo", "--steps", str(STEPS)], capture_output=True, text=True,
                          timeout=LIMIT_S)
    assert done.returncode == 0 and "rubatoctl: " not in done.stderr, done.stdout + done.stderr
    missing = not_printed(shown(), done.stdout)
    assert not missing, "README.md shows, and the demo does not print:\n" + "\n".join(missing) + "\n\n" + done.stdout
