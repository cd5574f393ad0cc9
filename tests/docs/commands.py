"""The fenced blocks of a page, as commands and what is shown below them."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/install.md")
PROGRAMS = ("make", "docker", "kubectl", "helm", "export", "build/release/bin/rubatoctl")


def blocks(page):
    """The text of each fenced block, in order."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)
    return [block for language, block in found if not language]


def commands(block):
    """[(command, [lines shown below it])]; a block in which nobody types anything has none."""
    lines = iter(block.splitlines())
    found = []
    for line in lines:
        typed = line.removeprefix("$ ")
        if typed.split(" ")[0] not in PROGRAMS:
            if found:
                found[-1][1].append(line)
            continue
        while typed.endswith("\\"):
            typed = typed[:-1].rstrip() + " " + next(lines).strip()
        found.append((re.split(r"\s{2,}#", typed)[0].rstrip(), []))
    return found


def typed_in(page):
    """Every command of a page, in order, with what is shown below it."""
    return [pair for block in blocks(page) for pair in commands(block)]
