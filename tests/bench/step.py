"""Training speed of one worker on one thread against PyTorch, eager and compiled, same model, same
shapes: the demo model and GPT-2 124M, in f32 and in bf16 (PyTorch under autocast). Ours and theirs in turn, so that a
busy minute hits all alike.

    make bench-step            or: scripts/with-tools python tests/bench/step.py [--runs 5] [--shapes demo 124m]
"""

import argparse
import pathlib
import re
import subprocess
import sys

from table import markdown, spread

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHAPES = {
    "demo": ["--preset", "kjv", "--micro", "8", "--steps", "20"],
    "124m": ["--preset", "gpt2-124m", "--sequence", "256", "--micro", "2", "--micro-batches", "2", "--steps", "3"],
}
PRECISIONS = {"f32": [], "bf16": ["--bf16"]}  # bf16 does not end where the processor has none
COMPILE_LIMIT_S = 300


def rates(command, limit=None):
    """(tokens/s by wall clock, tokens per CPU second, what exact reduction adds to a micro-batch in % over a plain sum
    and over numerics version 1, or None), or None when it did not end well."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return None
    wall = re.search(r"([\d.]+) tokens/s \(median", done.stdout)
    cpu = re.search(r"per CPU second ([\d.]+)", done.stdout)
    if done.returncode != 0 or not wall or not cpu:
        print(done.stdout[-500:], done.stderr[-500:], file=sys.stderr)
        return None
    exact = re.search(r"micro-batch ([\d.]+) ms, quantise ([\d.]+) ms .* plain f32 sum ([\d.]+) ms; "
                      r"numerics version 1 ([\d.]+) ms", done.stdout)
    if not exact:
        return float(wall[1]), float(cpu[1]), None
    micro, ours, *others = map(float, exact.groups())
    return float(wall[1]), float(cpu[1]), [100 * (ours - other) / micro for other in others]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    args = parser.parse_args()
    torch = [sys.executable, "-B", str(ROOT / "tests/bench/pytorch_baseline.py")]
    rows, costs = [], []
    for shape in args.shapes:
        words = SHAPES[shape]
        variants = {}
        for precision, flag in PRECISIONS.items():
            variants[precision, "ours"] = [str(ROOT / "build/bench/bin/tokens_per_second"), *words, *flag]
            variants[precision, "PyTorch eager"] = torch + words + flag
            if not args.no_compile:
                variants[precision, "PyTorch compiled"] = torch + words + flag + ["--compile"]
        seen = {name: [] for name in variants}
        for run in range(args.runs):
            for name, command in variants.items():
                got = rates(command, COMPILE_LIMIT_S)
                if got:
                    seen[name].append(got)
                print(f"{shape} run {run + 1}/{args.runs} {' '.join(name)}: {got}", file=sys.stderr)
        ours = {precision: spread([wall for wall, _, _ in seen[precision, "ours"]]).median
                for precision in PRECISIONS if seen[precision, "ours"]}
        costs.append([shape, *(spread([cost[i] for _, _, cost in seen["f32", "ours"]]).text("{:.2f}") for i in (0, 1))])
        for (precision, program), values in seen.items():
            if not values or precision not in ours:
                rows.append([shape, precision, program, "did not end", "", "", ""])
                continue
            wall, cpu = spread([w for w, _, _ in values]), spread([c for _, c, _ in values])
            rows.append([shape, precision, program, wall.text("{:.0f}"), cpu.text("{:.0f}"),
                         f"{ours[precision] / wall.median:.2f}", f"{wall.median / ours['f32']:.2f}"])
    print(markdown(["model", "precision", "program", "tokens/s: median (min–max)", "tokens per CPU second",
                    "ours / this", "this / ours in f32"], rows))
    print("\nBoth reductions send 4 bytes an element; exact costs what quantising takes beyond a plain f32 sum. "
          "Numerics version 1 rounded to nearest. In % of a micro-batch's CPU time, three sums in turn:\n")
    print(markdown(["model", "exact over plain", "exact over exact of version 1"], costs))


if __name__ == "__main__":
    main()
