"""How the time and memory of one decision of the scheduler grow with the cluster, from 64 to 100 000 GPUs: a table,
and a plot of it with logarithmic axes.

    python tests/bench/scheduler_growth.py --bench build/bench/bin/scheduler_bench --svg docs/images/scheduler-growth.svg
"""

import argparse
import dataclasses
import math
import pathlib
import re
import subprocess

from table import markdown

SIZES = (  # nodes of 8 GPUs, GPU types, jobs
    (8, 1, 45),
    (32, 1, 180),
    (64, 2, 360),
    (256, 3, 1440),
    (1024, 4, 3000),
    (4096, 5, 6000),
    (12500, 6, 10000),
)
TIMES = re.compile(r"cold ([\d.]+) ms; warm p50 ([\d.]+) ms, p99 ([\d.]+) ms")
MEMORY = re.compile(r"memory: ([\d.]+) MiB")

WIDTH, HEIGHT = 380, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 34, 44
STYLE = """<style>
  text { font: 12px sans-serif; fill: #777 }
  .grid { stroke: #777; stroke-opacity: 0.3; stroke-width: 1 }
  .p50, .memory { stroke: #2a78b8; fill: #2a78b8 }
  .p99 { stroke: #d0661f; fill: #d0661f; stroke-dasharray: 6 3 }
  polyline { fill: none !important; stroke-width: 2 }
  circle { stroke: none !important }
</style>"""


@dataclasses.dataclass
class Point:
    gpus: int
    types: int
    jobs: int
    cold_ms: float
    p50_ms: float
    p99_ms: float
    mib: float


def measure(bench, size, case, rounds):
    nodes, types, jobs = size
    words = ["--nodes", nodes, "--types", types, "--jobs", jobs, "--case", case, "--rounds", rounds]
    done = subprocess.run([bench, *map(str, words)], capture_output=True, text=True, check=True)
    times, memory = TIMES.search(done.stdout), MEMORY.search(done.stdout)
    if not times or not memory:
        raise SystemExit(f"{bench} says neither times nor memory: {done.stdout!r}")
    return Point(8 * nodes, types, jobs, *map(float, times.groups()), float(memory[1]))


class Axis:
    """Powers of ten, from below the least to above the most; `start` and `end` in pixels."""

    def __init__(self, values, start, end):
        self.low = math.floor(math.log10(min(values)))
        self.high = max(math.ceil(math.log10(max(values))), self.low + 1)
        self.start, self.end = start, end

    def at(self, value):
        part = (math.log10(value) - self.low) / (self.high - self.low)
        return round(self.start + part * (self.end - self.start), 1)

    def ticks(self):
        return [10**power for power in range(self.low, self.high + 1)]


def number(value):
    return f"{value:,.0f}".replace(",", " ") if value >= 1 else f"{value:g}"


def panel(title, points, lines, offset):
    """`lines`: (class, label, values by point)."""
    across = Axis([point.gpus for point in points], offset + LEFT, offset + WIDTH - RIGHT)
    up = Axis([max(v, 0.01) for _, _, values in lines for v in values], HEIGHT - BOTTOM, TOP)
    parts = [f'<text x="{offset + LEFT}" y="18">{title}</text>']
    for tick in across.ticks():
        x = across.at(tick)
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{number(tick)}</text>')
    for tick in up.ticks():
        y = up.at(tick)
        parts.append(f'<line class="grid" x1="{across.start}" x2="{across.end}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{across.start - 6}" y="{y + 4}" text-anchor="end">{number(tick)}</text>')
    middle = (across.start + across.end) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">GPUs</text>')
    for i, (name, label, values) in enumerate(lines):
        places = [(across.at(point.gpus), up.at(max(v, 0.01))) for point, v in zip(points, values)]
        parts.append(f'<polyline class="{name}" points="{" ".join(f"{x},{y}" for x, y in places)}"/>')
        parts += [f'<circle class="{name}" cx="{x}" cy="{y}" r="3"/>' for x, y in places]
        y = TOP + 16 + 18 * i
        parts.append(f'<line class="{name}" x1="{across.start + 10}" x2="{across.start + 40}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{across.start + 46}" y="{y + 4}">{label}</text>')
    return parts


def plot(points):
    times = [("p50", "p50", [p.p50_ms for p in points]), ("p99", "p99", [p.p99_ms for p in points])]
    memory = [("memory", "most memory of the process", [p.mib for p in points])]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {HEIGHT}" role="img" '
        'aria-label="Time and memory of one decision of the scheduler over GPUs">',
        STYLE,
        *panel("time of one warm decision, ms", points, times, 0),
        *panel("memory, MiB", points, memory, WIDTH),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", required=True)
    parser.add_argument("--svg", required=True, type=pathlib.Path)
    parser.add_argument("--case", default="plain", help="of scheduler_bench")
    parser.add_argument("--rounds", type=int, default=100, help="warm ones of each size; 20 from 32 768 GPUs on")
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="how many of them, the smallest first")
    args = parser.parse_args()
    points = []
    for size in SIZES[: args.sizes]:
        rounds = min(args.rounds, 20) if size[0] >= 4096 else args.rounds
        points.append(measure(args.bench, size, args.case, rounds))
    args.svg.parent.mkdir(parents=True, exist_ok=True)
    args.svg.write_text(plot(points))
    print(f"![Time and memory of one decision over GPUs, both axes logarithmic](images/{args.svg.name})\n")
    print(
        markdown(
            ["GPUs", "types", "jobs", "cold", "warm: p50", "p99", "most memory of the process"],
            [
                (number(p.gpus), p.types, number(p.jobs), f"{p.cold_ms:g} ms", f"{p.p50_ms:g} ms", f"{p.p99_ms:g} ms",
                 f"{p.mib:.0f} MiB")
                for p in points
            ],
        )
    )


if __name__ == "__main__":
    main()
