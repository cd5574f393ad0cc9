"""This build against that of another commit, in turn on one machine, so that a busy minute hits both: training speed
of one worker, of two on the local cluster, and the exchange alone.

    make bench-versus BASE=8917aee [RUNS=20]      the other commit is built below build/versus
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

from table import markdown, spread

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLUSTER = "cluster, kjv"
CLUSTER_PROGRAMS = ["rubato-operator", "rubato-localnode", "rubato-agent", "rubato-worker", "rubato-tokenize", "rubato-apiserver"]
STEP = r"([\d.]+) tokens/s \(median.* per CPU second ([\d.]+)"
RING = r"median=([\d.]+)s .* cpu=([\d.]+)s"
# Program and words, what it prints (wall, CPU), whether more is better.
PROGRAMS = {
    "step, kjv": (["tokens_per_second", "--preset", "kjv", "--micro", "8", "--steps", "20"], STEP, True),
    "step, 124M": (["tokens_per_second", "--preset", "gpt2-124m", "--sequence", "256", "--micro", "2", "--micro-batches", "2",
                    "--steps", "3"], STEP, True),
    "ring, 2 members, 64 MiB": (["collective_bench", "--members", "2", "--mebibytes", "64", "--rounds", "10"], RING, False),
    "ring, 4 members, 16 MiB": (["collective_bench", "--members", "4", "--mebibytes", "16", "--rounds", "10"], RING, False),
}
SCALING = """
import json, sys
sys.path[:0] = ["tests/bench", "tests"]
import scaling
one, two, _ = scaling.measure(sys.argv[1], "kjv", int(sys.argv[2]))
print(json.dumps([one, two]))
"""
BLOCK = 5  # pairs of phases on one cluster


def build_base(commit, targets):
    tree = ROOT / "build/versus" / commit
    if not tree.exists():
        subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
        subprocess.run(["git", "worktree", "add", "--detach", str(tree), commit], cwd=ROOT, check=True)
    for words in (["-S", ".", "-B", "build/bench", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"],
                  ["--build", "build/bench", "--target", *targets]):
        subprocess.run(["cmake", *words], cwd=tree, check=True, stdout=sys.stderr)
    return tree


def figures(tree, command, pattern):
    done = subprocess.run([str(tree / "build/bench/bin" / command[0]), *command[1:]], capture_output=True, text=True, check=True)
    return [float(n) for n in re.search(pattern, done.stdout).groups()]


def scaling_of(tree, runs):
    done = subprocess.run([sys.executable, "-B", "-c", SCALING, str(tree / "build/bench"), str(runs)], cwd=tree,
                          stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def compare(seen, more_is_better):
    """How much slower this build is, in %, by medians."""
    then, now = (spread(values).median for values in seen)
    return 100 * ((then / now if more_is_better else now / then) - 1)


def row_of(name, seen, more_is_better):
    return [name, *(spread(values).text("{:.4g}") for values in seen), f"{compare(seen, more_is_better):+.1f} %", len(seen[0])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", required=True, help="a commit")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    args = parser.parse_args()
    chosen = {name: how for name, how in PROGRAMS.items() if args.only in name}
    needed = {command[0] for command, _, _ in chosen.values()} | set(CLUSTER_PROGRAMS if args.only in CLUSTER else [])
    trees = [build_base(args.base, sorted(needed)), ROOT]
    rows = []
    for name, (command, pattern, more_is_better) in chosen.items():
        seen = [[], []]
        for run in range(args.runs):
            for side, tree in enumerate(trees):
                seen[side].append(figures(tree, command, pattern))
            print(f"{name}: {run + 1} of {args.runs}", file=sys.stderr)
        for which, what in enumerate(("wall", "CPU")):
            rows.append(row_of(f"{name}: {what}", [[figure[which] for figure in side] for side in seen], more_is_better))
    if args.only in CLUSTER:
        seen = [[[], []], [[], []]]
        for done in range(0, args.runs, BLOCK):
            for side, tree in enumerate(trees):
                for which, seconds in enumerate(scaling_of(tree, min(BLOCK, args.runs - done))):
                    seen[which][side] += seconds
        rows += [row_of(f"cluster, kjv, {words}: s a step", seen[which], False) for which, words in enumerate(("1 worker", "2 workers"))]
    print(markdown(["what", f"{args.base}: median (min–max)", "this build", "slower by", "n"], rows))


if __name__ == "__main__":
    main()
