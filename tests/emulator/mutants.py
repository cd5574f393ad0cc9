"""Mutants of our kernels on the emulator: what each barrier, mask, bound and index is good for.

    python3 -B tests/emulator/mutants.py BUILD                       all of them, some ten seconds each
    python3 -B tests/emulator/mutants.py BUILD barrier mask          those of these kinds
    python3 -B tests/emulator/mutants.py BUILD barrier:embedding.cu  the first of a kind in a file, and no other
    python3 -B tests/emulator/mutants.py --list

A mutant is one change of one place: a barrier is left out, a mask loses its upper half, a comparison is off by one, a
sum in an index becomes a difference, a lane has another part of a fragment. It is compiled with the flags of the build
folder, linked with the suite, and played until a value is wrong or the emulator finds a fault. Those that survive must
stand in SURVIVORS, with the reason, and those that stand there must survive. Needs build/dev with gpu_suite_on_emulator
built. Ends with 0 or 1.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = "worker/backend/cuda"
PROGRAM = "gpu_suite_on_emulator"
LIMIT_S = 180  # of one mutant: it hangs
ATTENTION = ("attention_forward.cu", "attention_backward.cu")
ATTENTION_BF16 = ("attention_bf16_forward.cu", "attention_bf16_backward.cu")
# What of the suite a file's kernels are in, and which files see it.
FILES = {
    "exact.cu": (("bits",), ("exact.cu",)),
    "embedding.cu": (("bits",), ("embedding.cu",)),
    "elementwise.cu": (("bits",), ("elementwise.cu",)),
    "rowwise.cu": (("bits", "values"), ("rowwise.cu",)),
    "attention_forward.cu": (("values",), ATTENTION[:1]),
    "attention_backward.cu": (("values",), ATTENTION[1:]),
    "attention_tiles.cuh": (("values",), ATTENTION),
    "attention_bf16_forward.cu": (("bf16",), ATTENTION_BF16[:1]),
    "attention_bf16_backward.cu": (("bf16",), ATTENTION_BF16[1:]),
    "attention_bf16.cuh": (("bf16",), ATTENTION_BF16),
}
# By file, kind and the line as it becomes: why no test sees it.
SURVIVORS = {
    ("rowwise.cu", "barrier", ";  // the last fold's results have been read"):
        "cross_entropy_kernel has another barrier between its two folds",
    ("rowwise.cu", "bound", "if (column <= c) {"):
        "one column more is summed, and nobody stores what comes of it",
    ("exact.cu", "bound", "return bits <= kInfinityBits && top < 2147483648.0f ? top : kBroken;"):
        "an infinity times a power of two is no less infinite, and does not fit 31 bits",
    ("exact.cu", "bound", "const int rounded = whole + (drawn <= threshold ? 1 : 0);"):
        "31 drawn bits that are the threshold: once in 2^31 elements",
    ("exact.cu", "bound", "const std::int64_t end = at <= chunks ? min(first + chunk, n) : first;"):
        "the chunk behind the last one begins at or behind n: it is empty either way",
    ("attention_bf16_forward.cu", "bound", "highest = score >= highest ? score : highest;"): "two that are equal",
    ("attention_bf16_forward.cu", "bound",
     "highest = fold_row(highest, [](float a, float b) { return a >= b ? a : b; });"): "two that are equal",
    ("attention_bf16_forward.cu", "bound",
     "for (std::int64_t key = 0; key <= first + kTile; key += kOthers<D>) {"):
        "one more tile of keys, none of them seen",
    ("attention_bf16_backward.cu", "bound",
     "for (std::int64_t key = 0; key <= first + kTile; key += kOthers<D>) {"):
        "one more tile of keys, none of them seen",
    ("attention_bf16_backward.cu", "bound",
     "for (std::int64_t query = first; query <= op.length; query += kOthers<D>) {"):
        "one more tile of queries, which are all behind the last one",
    ("attention_bf16_backward.cu", "bound",
     "row_lse[half] = row <= op.length ? lse[head.scalar + row] * kLog2E : 0.0f;"):
        "a row behind the last one: what comes of it is not stored",
    ("attention_bf16_backward.cu", "bound",
     "dot[half] = row <= op.length ? dots[head.scalar + row] : 0.0f;"):
        "a row behind the last one: what comes of it is not stored",
    ("attention_bf16.cuh", "bound", "constexpr int kOthers = D >= 64 ? 32 : 64;"):
        "how many rows are in shared memory at a time is a matter of speed",
}


class Mutant(NamedTuple):
    file: str
    kind: str
    line: int  # from 1
    text: str  # of the line, as it becomes

    def name(self):
        return f"{self.file}:{self.line} {self.kind}: {self.text.strip()}"

    def key(self):
        return self.file, self.kind, self.text.strip()


def replaced(line, match, text):
    return line[:match.start()] + text + line[match.end():]


def changes(line):
    """(kind, changed line) for each change of one line of a kernel."""
    code = line.split("//")[0]
    for match in re.finditer(r"__sync(threads|warp)\(\);", code):
        yield "barrier", replaced(line, match, ";")
    if re.search(r"__(shfl|reduce)\w*\(", code):
        for match in re.finditer(r"\bkAllLanes\b", code):
            yield "mask", replaced(line, match, "0x0000ffffu")
    other = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
    for match in re.finditer(r"(?<= )(<=?|>=?)(?= )", code):
        yield "bound", replaced(line, match, other[match[0]])
    for match in re.finditer(r"(?<=\w) \+ (?=[^\[\]]*\])", code):
        if code[:match.start()].count("[") > code[:match.start()].count("]"):
            yield "index", replaced(line, match, " - ")
    for match in re.finditer(r"(?<=lane\(\) [%/] )\d+", code):
        yield "fragment", replaced(line, match, str(2 * int(match[0])))


def mutants_of(file):
    """Those of its device code: what stands before the unnamed namespace ends, or all of a header."""
    for number, line in enumerate((ROOT / FOLDER / file).read_text().split("\n"), 1):
        if line == "}  // namespace":
            return
        for kind, text in changes(line):
            yield Mutant(file, kind, number, text)


class Bench:
    """Compiles, links and plays one mutant at a time, in a folder of its own."""

    def __init__(self, build, folder):
        self.build, self.folder = pathlib.Path(build).resolve(), pathlib.Path(folder)
        commands = json.loads((self.build / "compile_commands.json").read_text())
        self.compile = {pathlib.Path(c["file"]).name: c["command"] for c in commands
                        if c["file"].endswith(".cu") and FOLDER in c["file"]}
        printed = subprocess.run(["ninja", "-C", self.build, "-t", "commands", PROGRAM], check=True,
                                 capture_output=True, text=True).stdout
        self.link = next(line for line in reversed(printed.splitlines()) if f"-o tests/{PROGRAM} " in line)

    def run(self, command):
        return subprocess.run(command, shell=True, cwd=self.build, capture_output=True, text=True)

    def make(self, mutant):
        """The program; None: it does not compile."""
        lines = (ROOT / FOLDER / mutant.file).read_text().split("\n")
        lines[mutant.line - 1] = mutant.text
        place = self.folder / FOLDER / mutant.file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("\n".join(lines))
        link = self.link
        for source in FILES[mutant.file][1]:
            command, made = self.compile[source], str(self.folder / f"{source}.o")
            before = re.search(r" -o (\S+)", command)[1]
            command = command.replace(before, made).replace(" -I", f" -I{self.folder} -I", 1)
            if mutant.file == source:
                command = command.replace(str(ROOT / FOLDER / source), str(place))
            if self.run(command + " -w").returncode != 0:
                return None
            link = link.replace(before, made)
        program = self.folder / "program"
        linked = self.run(link.replace(f"-o tests/{PROGRAM} ", f"-o {program} "))
        place.unlink()
        if linked.returncode != 0:
            sys.exit(f"{mutant.name()}: it does not link\n{linked.stderr}")
        return program

    def play(self, program, words):
        """How it was caught; None: it was not."""
        began = time.monotonic()
        try:
            done = subprocess.run([program, "cuda", *words], timeout=LIMIT_S, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, env={**os.environ, "EMULATOR_FIRST": "1"})
        except subprocess.TimeoutExpired:
            return f"it hangs ({LIMIT_S} s)"
        told = [line.strip() for line in done.stdout.splitlines()
                if "FAILED" in line or line.startswith(("emulator:", "the device failed"))]
        if done.returncode == 0:
            return None
        return f"{time.monotonic() - began:.0f} s, {(told or [f'status {done.returncode}'])[0][:150]}"


def main(words):
    everything = [mutant for file in FILES for mutant in mutants_of(file)]
    if words == ["--list"]:
        print("\n".join(mutant.name() for mutant in everything))
        return 0
    if not words:
        sys.exit(__doc__)
    wanted = everything
    if words[1:]:
        wanted = []
        for word in words[1:]:
            kind, _, file = word.partition(":")
            chosen = [m for m in everything if m.kind == kind and file in ("", m.file)]
            wanted += chosen[:1] if file else chosen
    wrong, counts = [], {}
    for mutant in wanted:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(words[0], folder)
            program = bench.make(mutant)
            caught = program and bench.play(program, FILES[mutant.file][0])
        outcome = "not compiled" if program is None else "caught" if caught else "survived"
        print(f"{outcome}: {mutant.name()}" + (f"\n    {caught}" if caught else ""), flush=True)
        counts[outcome] = counts.get(outcome, 0) + 1
        if program is not None and (caught is None) != (mutant.key() in SURVIVORS):
            wrong.append(mutant)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    for mutant in wrong:
        print(f"{'caught, but' if mutant.key() in SURVIVORS else 'not caught, and not'} explained: {mutant.name()}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
