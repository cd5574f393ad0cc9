"""The recorded run (record.py), and promtool on it: an expression's answers at a time, the alerts that fire."""

import json
import pathlib
import re
import subprocess

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = ROOT / "tests" / "data" / "metrics" / "run.json"
LIMIT_S = 120
TARGET = {"instance": "operator-0", "job": "rubato"}  # what Prometheus adds to what it scrapes


def promtool(*words, **more):
    return subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True, timeout=LIMIT_S, **more)


class Run:
    def __init__(self):
        kept = json.loads(RUN.read_text())
        self.interval_s, self.scrapes, self.series = kept["interval_s"], kept["scrapes"], kept["series"]
        self.events = {name: at for name, at in kept["events"]}
        self.end_s = (self.scrapes - 1) * self.interval_s

    def names(self):
        return {re.match(r"[a-z_:A-Z0-9]+", name).group() for name in self.series}

    def input_series(self):
        """As promtool reads it: a series that leaves is stale at once, as a scrape says it."""
        return [{"series": with_target(name), "values": " ".join(values(runs))} for name, runs in self.series.items()]


def with_target(name):
    extra = ",".join(f'{label}="{value}"' for label, value in TARGET.items())
    return f"{name[:-1]},{extra}}}" if name.endswith("}") else f"{name}{{{extra}}}"


def values(runs):
    was_there = False
    for value, times in runs:
        if value is None:
            if was_there:
                yield "stale"
                times -= 1
            yield from ["_"] * times
        else:
            yield from [repr(value)] * times
        was_there = value is not None


def evaluate(run, folder, tests, rules=None):
    """tests: [(expression, seconds, expected samples)]; promtool's output, "" when all hold."""
    cases = [{"expr": expr, "eval_time": f"{int(at)}s", "exp_samples": expected} for expr, at, expected in tests]
    document = {"rule_files": [], "evaluation_interval": f"{run.interval_s}s",
                "tests": [{"interval": f"{run.interval_s}s", "input_series": run.input_series(),
                           "promql_expr_test": cases}]}
    if rules is not None:
        path = folder / "rules.yaml"
        path.write_text(yaml.safe_dump(rules))
        document["rule_files"] = [path.name]
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump(document, width=1 << 20))
    done = promtool("test", "rules", path.name, cwd=folder)
    return "" if done.returncode == 0 else done.stdout + done.stderr


ONE = [{"labels": "{}", "value": 1}]
