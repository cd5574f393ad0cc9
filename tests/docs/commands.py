"""The fenced blocks of a page: commands and what is shown below them, and programs."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/install.md", "docs/pytorch.md", "docs/runbook.md")
PROGRAMS = ("make", "docker", "kubectl", "helm", "export", "pip", "python", "sed", "cp", "scripts/setup", "rubatoctl",
            "build/release/bin/rubatoctl")
FENCE = r"^```(?P<language>\w*)\n(?P<block>.*?)^```$"


def blocks(page, language=""):
    """The text of each fenced block, in order."""
    found = re.finditer(FENCE, (ROOT / page).read_text(), re.M | re.S)
    return [match["block"] for match in found if match["language"] == language]


def scripts(page):
    """{chapter: its blocks of Python as one script}; each line has the number that it has on the page."""
    text, chapter, lines = (ROOT / page).read_text(), None, {}
    for match in re.finditer(FENCE + r"|^# (?P<chapter>[^\n]*)$", text, re.M | re.S):
        chapter = match["chapter"] or chapter
        if match["language"] == "python":
            script = lines.setdefault(chapter, [])
            script += [""] * (text.count("\n", 0, match.start("block")) - len(script))
            script += match["block"].splitlines()
    return {chapter: "\n".join(script) + "\n" for chapter, script in lines.items()}


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
