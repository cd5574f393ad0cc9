"""Does the exact sum cost anything in learning? The same small model (22 000 parameters, bytes of the King James
Bible) with 512 micro-batches a step, its gradients summed in f32, exactly, and exactly under numerics version 1, from
several seeds. Two curves of one seed should differ by far less than curves of different seeds: the goal is a quarter.
Training amplifies any difference in rounding, so the same is asked of f32 sums in the opposite order: the least to
expect.

    make bench-numerics        or: scripts/with-tools python tests/bench/numerics.py [--seeds 3] [--steps 300]
"""

import argparse
import concurrent.futures
import math
import os
import pathlib
import re
import statistics
import subprocess
import tempfile

from table import markdown, spread

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "build/bench/bin"
SUMS = {"f32": "f32, from the first to the last", "backwards": "f32, from the last to the first", "exact": "exact",
        "nearest": "exact, numerics version 1"}
GOAL = 0.25


def curve(tokens, kind, seed, args):
    """(training loss of each step, validation loss at the end, redone steps)"""
    done = subprocess.run([PROGRAMS / "loss_curve", "--data", tokens, "--sum", kind, "--seed", str(seed),
                           "--steps", str(args.steps), "--micro-batches", str(args.micro_batches),
                           "--learning-rate", str(args.learning_rate)],
                          capture_output=True, text=True, check=True).stdout
    losses = [float(text) for text in re.findall(r"^step \d+ loss (\S+)", done, re.M)]
    assert len(losses) == args.steps
    found = re.search(r"validation loss (\S+)\nredone steps (\d+)", done)
    return losses, float(found[1]), int(found[2])


def rms(values):
    return math.sqrt(statistics.fmean(v * v for v in values))


def between(curves, first):
    """The standard deviation between seeds, over the steps from `first` on."""
    return rms([statistics.stdev(at) for at in zip(*(losses[first:] for losses in curves))])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--micro-batches", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=3e-4, help="the API's default unless said")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    seeds = range(1, args.seeds + 1)
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        tokens = folder + "/kjv.tok"
        text = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, check=True).stdout
        subprocess.run([PROGRAMS / "rubato-tokenize", "--out", tokens], input=text, check=True, capture_output=True)
        running = {(kind, seed): pool.submit(curve, tokens, kind, seed, args)
                   for seed in seeds for kind in SUMS}
        curves = {key: future.result() for key, future in running.items()}

    rows, ratios = [], []
    for first, name in ((0, "all steps"), (args.steps * 2 // 3, "last third")):
        spread_of_seeds = between([curves["f32", seed][0] for seed in seeds], first)
        for kind in list(SUMS)[1:]:
            each = [rms([a - b for a, b in zip(curves[kind, seed][0][first:], curves["f32", seed][0][first:])])
                    for seed in seeds]
            rows.append([name, SUMS[kind], spread(each).text("{:.2g}"), f"{spread_of_seeds:.2g}",
                         f"{max(each) / spread_of_seeds:.3f}"])
            if kind == "exact":
                ratios.append(max(each) / spread_of_seeds)
    print(markdown(["of the training loss", "sum", "same seed against f32, rms: median (min–max)",
                    "between seeds, standard deviation", "worst / between"], rows))
    print()
    print(markdown(["sum", *(f"validation loss, seed {seed}" for seed in seeds), "redone steps"],
                   [[SUMS[kind], *(f"{curves[kind, seed][1]:.5f}" for seed in seeds),
                     sum(curves[kind, seed][2] for seed in seeds)] for kind in SUMS]))
    print(f"\n{args.micro_batches} micro-batches of 16 tokens a step, {args.steps} steps, learning rate "
          f"{args.learning_rate:g}. Goal: the exact sum's worst is at most {GOAL} of what lies between seeds: "
          f"{'kept' if max(ratios) <= GOAL else 'MISSED'}.")


if __name__ == "__main__":
    main()
