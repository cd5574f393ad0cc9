"""What the compiler made of our CUDA kernels, as a table that is kept with the sources (kernels.txt).

    machine_code.py KIT OBJECT...            compares; 0, 1 (rules are broken, or the table is another one) or
                                             77 (KIT has no disassembler, or is not the pinned compiler)
    machine_code.py KIT OBJECT... --write    writes the table

A row is a kernel on one architecture. Rules, whatever the table says: no local memory (a spill, an array with an index
that is not known), no atomics; in kernels that are bound by memory registers for three quarters of the warps; no calls
and no fused multiply-adds in kernels of exact sums; tensor cores in kernels that are for them.
"""

import argparse
import difflib
import pathlib
import re
import subprocess
import sys

TABLE = pathlib.Path(__file__).with_name("kernels.txt")
PINNED = "release 13.0, V13.0.88"
SKIPPED = 77
REGISTERS, REGISTER_GRAIN, WARPS_MOST = 65536, 256, 64  # of a multiprocessor; registers are given to warps in grains
EXACT = "exact.cu"  # its kernels are sums that nothing may round
TENSOR = "attention_bf16_"
COMPUTING = "attention_"  # what is not bound by memory
WARPS_LEAST = WARPS_MOST * 3 // 4  # of the others
COLUMNS = [  # title, instructions
    ("ld.128", r"LDG\S*\.128"), ("ld", r"LDG(?!\S*\.128)"), ("st.128", r"STG\S*\.128"), ("st", r"STG(?!\S*\.128)"),
    ("shared", r"(LDS|STS|LDSM)\b"), ("mma", MMA := r"HG?MMA\b"), ("fma", r"FFMA\b"), ("double", r"D(ADD|MUL|FMA)\b"),
    ("mufu", r"MUFU\b"), ("shfl", r"(SHFL|REDUX|CREDUX)\b"), ("bar", r"BAR\b"), ("call", r"CALL\b")]
LOCAL, ATOMIC = r"(LDL|STL)\b", r"(ATOM|ATOMG|ATOMS|RED)\b"
HEADING = """\
What the compiler made of our kernels, on each architecture: registers of a thread, warps of a multiprocessor (of 64)
for which these leave room, and instructions: all of them, loads and stores of global memory (of 16 bytes, of less), of
shared memory, tensor cores, fused multiply-adds in f32, arithmetic in double, special functions, shuffles, barriers,
calls. machine_code.py makes this table, and machine_code_test holds the build to it; sources, options and compiler
decide all of it.

"""


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def short_name(mangled):
    """The kernel without its namespaces, parameters and the compiler's mark of its file."""
    name = run("c++filt", mangled).strip()
    name = re.sub(r"rubato::worker::cuda::|bf16::|\(anonymous namespace\)::|^void ", "", name)
    depth = 0
    for at, letter in enumerate(name):  # up to the parameters: the first parenthesis outside of <>
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0:
            return name[:at]
    return name


def registers_of(text):
    """{(architecture, kernel): registers}."""
    found, arch = {}, None
    for line in text.splitlines():
        if line.startswith("arch = "):
            arch = line.split()[-1]
        elif line.strip().startswith("Function "):
            kernel = line.split()[1].rstrip(":")
        elif (match := re.search(r"REG:(\d+)", line)):
            found[arch, kernel] = int(match[1])
    return found


def instructions_of(text):
    """{(architecture, kernel): [instruction]}."""
    found, arch = {}, None
    for line in text.splitlines():
        if (match := re.match(r"\s*code for (\S+)", line)):
            arch = match[1]
        elif (match := re.match(r"\s*Function : (\S+)", line)):
            all_of = found.setdefault((arch, match[1]), [])
        elif (match := re.match(r"\s*/\*[0-9a-f]{4,6}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", line)):
            if match[1] != "NOP":  # what fills the end of a kernel
                all_of.append(match[1])
    return found


def count(instructions, pattern):
    return sum(re.match(pattern, one) is not None for one in instructions)


def rows_of(kit, path):
    """(file, kernel, architecture, registers, instructions), in the table's order."""
    tool = str(kit / "bin" / "cuobjdump")
    registers = registers_of(run(tool, "-res-usage", path))
    rows = [(pathlib.Path(path).name.removesuffix(".o"), short_name(kernel), arch, registers[arch, kernel], code)
            for (arch, kernel), code in instructions_of(run(tool, "-sass", path)).items()]
    return sorted(rows, key=lambda row: (row[1], int(re.sub(r"\D", "", row[2]))))


def warps_of(registers):
    return min(WARPS_MOST, REGISTERS // (-(-registers * 32 // REGISTER_GRAIN) * REGISTER_GRAIN))


def broken_rules(file, registers, code):
    if count(code, LOCAL):
        yield "local memory"
    if count(code, ATOMIC):
        yield "atomics"
    if not file.startswith(COMPUTING) and warps_of(registers) < WARPS_LEAST:
        yield f"{registers} registers, which leave room for {warps_of(registers)} warps of {WARPS_MOST}"
    if file == EXACT and count(code, r"CALL\b"):
        yield "calls"
    if file == EXACT and count(code, r"FFMA\b"):
        yield "fused multiply-adds, of which a sum that is exact has none"
    if file.startswith(TENSOR) and not count(code, MMA):
        yield "no tensor cores"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kit", type=pathlib.Path)
    parser.add_argument("objects", nargs="+")
    parser.add_argument("--write", action="store_true")
    words = parser.parse_args()
    tools = [words.kit / "bin" / name for name in ("nvcc", "cuobjdump", "nvdisasm")]
    if not all(tool.exists() for tool in tools):
        print(f"left out: {words.kit}/bin has no cuobjdump and nvdisasm")
        return SKIPPED
    if PINNED not in run(str(tools[0]), "--version"):
        print(f"left out: the compiler is not that of scripts/setup cuda ({PINNED})")
        return SKIPPED
    failed = 0
    table = HEADING + f"{'':<12}{'registers':>10}{'warps':>7}{'all':>6}"
    table += "".join(f"{title:>7}" for title, _ in COLUMNS) + "\n"
    for path in sorted(words.objects):
        rows = rows_of(words.kit, path)
        named = ""
        for file, kernel, arch, registers, code in rows:
            for rule in broken_rules(file, registers, code):
                print(f"{kernel} on {arch} ({file}): {rule}")
                failed = 1
            if named != (named := kernel):
                table += f"{file.removesuffix('.cu')}: {kernel}\n"
            table += f"    {arch:<8}{registers:>10}{warps_of(registers):>7}{len(code):>6}"
            table += "".join(f"{count(code, pattern):>7}" for _, pattern in COLUMNS) + "\n"
    if words.write:
        TABLE.write_text(table)
    elif table != (written := TABLE.read_text()):
        lines = difflib.unified_diff(written.splitlines(True), table.splitlines(True), TABLE.name, "what was built")
        print("".join(lines))
        print("where that is meant: the same command with --write")
        failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
