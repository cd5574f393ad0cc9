"""What it costs to be elastic while nothing fails: a PyTorch script under runtime pytorch against the same model,
samples and optimizer under plain PyTorch, with one worker and with two.

    make bench-pytorch-tax     or: RUBATO_BUILD=$PWD/build/bench scripts/with-tools python tests/bench/pytorch_tax.py
                                   [--runs 5] [--worlds 1 2] [--models gpt2-30m llama-30m gpt2-124m] [--tokens 1024 256]

Both sides take turns step by step in the same processes (pytorch_tax_train.py), with one thread each, so that a busy
minute hits both. One worker trains without a cluster, beside a loop that accumulates gradients. Two are pods of a local
cluster with a real API server and TLS between them, beside DistributedDataParallel over gloo, which is not encrypted.

The tax is the median over the pairs of what a step of the engine takes beyond the plain one beside it, by the clock and
in CPU seconds of the processes, those of the engine's threads included. Where other work has the cores the clock says
nothing, and CPU seconds are what is left. Prints tables, writes build/bench/pytorch_tax.json.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))
from cluster import Cluster  # noqa: E402
from control_plane import ControlPlane  # noqa: E402
from script_jobs import TorchJob, package_environment  # noqa: E402
from table import markdown, spread  # noqa: E402

SCRIPT = pathlib.Path(__file__).parent / "pytorch_tax_train.py"
MICRO_BATCHES = 8
MODELS = ["gpt2-30m", "llama-30m", "gpt2-124m"]
GOALS = {(1, 1024): 3, (1, 256): 10, (2, 1024): 6, (2, 256): 18}  # (workers, tokens): %
LIMIT_S = 3600
WALL, CPU = 0, 1


def tax_job(name, words, world, steps):
    return TorchJob(name, script=SCRIPT, gpus=(world, world), steps=steps, batch=(MICRO_BATCHES, 1),
                    arguments=["/ckpt/found", *map(str, words)])


def alone(words):
    with tempfile.TemporaryDirectory(prefix="rubato-tax-") as folder:
        out = pathlib.Path(folder) / "found"
        subprocess.run([sys.executable, "-B", str(SCRIPT), str(out), *map(str, words)], check=True, stdout=sys.stderr,
                       env={**os.environ, **package_environment()})
        return json.loads(out.read_text())


def together(build, world, cases, runs):
    """Of each case; what several workers found, as one: the longest of their times, the sum of their CPU seconds."""
    found = {}
    with ControlPlane(controller_manager=True) as plane, Cluster(plane, build) as cluster:
        cluster.add_nodes(world)
        try:
            for model, tokens in cases:
                words = [model, tokens, runs]
                job = cluster.apply(tax_job(f"tax-{model}-{tokens}", words, world, runs + 1))
                job.wait_state("Complete", LIMIT_S)
                of_rank = [json.loads((job.checkpoints / f"found.{rank}").read_text()) for rank in range(world)]
                rows = [{side: (max(row[side][WALL] for row in rows), sum(row[side][CPU] for row in rows))
                         for side in ("plain", "engine")} for rows in zip(*(each["rows"] for each in of_rank))]
                found[model, tokens] = of_rank[0] | {"rows": rows}
                job.delete()
                job.wait_gone(60)
        except BaseException:
            print(cluster.explain(), file=sys.stderr)
            raise
    return found


def taxes(rows, which):
    """Of each pair, in %."""
    return [100 * (row["engine"][which] / row["plain"][which] - 1) for row in rows]


def tax_row(world, model, tokens, found):
    rows = found["rows"]
    cells = [world, model, tokens]
    for which in (WALL, CPU):
        cells += [spread([row[side][which] for row in rows]).text("{:.2f}") for side in ("plain", "engine")]
        cells.append(spread(taxes(rows, which)).text("{:+.1f}"))
    goal = GOALS.get((world, tokens)) if "30m" in model else None
    by_clock = statistics.median(taxes(rows, WALL))
    return [*cells, "" if goal is None else f"≤ {goal}: {'met' if by_clock <= goal else 'missed'}", len(rows)]


def part_row(world, model, tokens, found):
    parts, steps = found["parts"], len(found["rows"])
    of_step = {name: sum(seconds) / steps for name, seconds in parts.items()}
    quantise = statistics.median(parts["engine: micro-batch"]) / found["parameters"]
    names = ("script: compute", "script: apply", "engine: micro-batch", "engine: decide", "engine: begin")
    return [world, model, tokens, *(f"{1e3 * of_step.get(name, 0):.0f}" for name in names), f"{1e9 * quantise:.2f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="pairs of steps")
    parser.add_argument("--worlds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--models", nargs="+", default=MODELS[:2], choices=MODELS)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 256], help="of a micro-batch")
    parser.add_argument("--out", default=str(ROOT / "build/bench/pytorch_tax.json"))
    args = parser.parse_args()
    cases = [(model, tokens) for model in args.models for tokens in args.tokens]
    found = {}
    for world in args.worlds:
        if world == 1:
            of_world = {case: alone([*case, args.runs]) for case in cases}
        else:
            of_world = together(os.environ["RUBATO_BUILD"], world, cases, args.runs)
        found |= {(world, *case): each for case, each in of_world.items()}
    out = pathlib.Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps([{"case": case, **each} for case, each in found.items()], indent=1))
    print(f"Steps of {MICRO_BATCHES} micro-batches, one thread a process, AdamW, clipping. Median (min–max).\n")
    print(markdown(["workers", "model", "tokens a micro-batch", "plain PyTorch, s a step", "runtime pytorch, s",
                    "tax, %", "plain, CPU s a step", "runtime pytorch, CPU s", "tax in CPU, %", "goal, %", "n"],
                   [tax_row(*case, each) for case, each in found.items()]))
    print("\nWhere the CPU time of a step of runtime pytorch goes, in rank 0, ms: the script's requests, and the "
          "engine between them. The last column is the engine's time for one micro-batch, quantised and added.\n")
    print(markdown(["workers", "model", "tokens", "script: 8 micro-batches or its share", "script: optimizer",
                    "engine: after micro-batches", "engine: exchange, judge, mean", "engine: to the next step",
                    "ns a parameter"], [part_row(*case, each) for case, each in found.items()]))


if __name__ == "__main__":
    main()
