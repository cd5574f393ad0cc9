"""Small things that all benchmarks print with."""

import dataclasses
import statistics


@dataclasses.dataclass
class Spread:
    median: float
    low: float
    high: float
    count: int

    def text(self, form="{:.3g}"):
        return f"{form.format(self.median)} ({form.format(self.low)}–{form.format(self.high)})"


def spread(values):
    return Spread(statistics.median(values), min(values), max(values), len(values))


def markdown(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)
