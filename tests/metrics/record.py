#!/usr/bin/env python3
"""Makes tests/data/metrics/run.json again: what an operator's /metrics says during a short real run, on a real API
server with workers that train. The rule tests and the dashboard's test run on it.

    RUBATO_BUILD=build/dev scripts/with-tools python tests/metrics/record.py     (six minutes)

In order: three nodes train `elastic`; `never` waits, as the cluster is too small; `late` misses its deadline; a node loses its
power and another comes; `pair` falls below its minimum, is parked and gives its GPU back; the operator is away for a
while. Each event is kept with its time, so that a test can say before and after.
"""

import argparse
import json
import os
import pathlib
import sys
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))

from cluster import Cluster  # noqa: E402
from control_plane import ControlPlane, free_port  # noqa: E402
from jobs import Job  # noqa: E402

INTERVAL_S = 5
LIMIT_S = 180
AWAY_S = 40
RUN = ROOT / "tests" / "data" / "metrics" / "run.json"
STEPS = 100000  # more than anybody waits for


class Late(Job):
    def manifest(self):
        made = super().manifest()
        made["spec"]["activeDeadlineSeconds"] = 15
        return made


def parse(text):
    """{series: value} of an exposition."""
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in text.splitlines() if line and not line.startswith("#")}


class Recorder:
    """Scrapes at whole intervals until stop(); a scrape that fails is `up 0` and nothing else."""

    def __init__(self, url):
        self.url, self.began, self.samples, self.events = url, time.monotonic(), [], []
        self.began_unix_s = time.time()
        self.text, self.ending = "", threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.ending.wait(max(0.0, self.began + len(self.samples) * INTERVAL_S - time.monotonic())):
            try:
                with urllib.request.urlopen(self.url, timeout=INTERVAL_S / 2) as answer:
                    self.text = answer.read().decode()
                self.samples.append({"up": 1.0} | parse(self.text))
            except OSError:
                self.samples.append({"up": 0.0})

    def mark(self, event):
        self.events.append([event, round(time.monotonic() - self.began, 1)])
        print(f"{self.events[-1][1]:6.1f} s  {event}", flush=True)

    def wait(self, seconds):
        time.sleep(seconds)

    def stop(self):
        self.ending.set()
        self.thread.join()

    def runs(self):
        """{series: [[value, how often], …]}, null where it was not there."""
        series = {}
        for at, sample in enumerate(self.samples):
            for name, value in sample.items():
                if "_timestamp_seconds" in name or name == "process_start_time_seconds":
                    value = round(value - self.began_unix_s, 3)  # the run begins at 0
                series.setdefault(name, [None] * len(self.samples))[at] = value
        return {name: run_lengths(values) for name, values in sorted(series.items())}


def run_lengths(values):
    runs = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1][1] += 1
        else:
            runs.append([value, 1])
    return runs


def story(cluster, recorder):
    cluster.add_nodes(3)
    # Slow steps: what a person would train, and few enough to keep.
    elastic = cluster.apply(Job("elastic", steps=STEPS, gpus=(1, 3), every=40, hidden=128, ledger=False))
    elastic.wait_state("Running", LIMIT_S)
    recorder.mark("elastic runs")
    recorder.wait(20)
    never = cluster.apply(Job("never", gpus=(8, 8)))
    late = cluster.apply(Late("late", steps=STEPS, gpus=(1, 1), hidden=128, ledger=False))
    recorder.mark("never and late are submitted")
    late.wait_state("Failed", LIMIT_S)
    recorder.mark("late has failed")
    recorder.wait(30)
    lost = next(iter(cluster.nodes.values()))
    lost.kill()
    recorder.mark("a node loses its power")
    recorder.wait(30)
    cluster.remove_node(lost)  # its pods are known to have ended now
    cluster.add_node()
    recorder.wait(20)
    elastic.patch({"suspend": True})
    elastic.wait_state("Suspended", LIMIT_S)
    recorder.mark("elastic is suspended")
    pair = cluster.apply(Job("pair", steps=STEPS, gpus=(2, 2), every=40, hidden=128, park_seconds=40, ledger=False))
    pair.wait_state("Running", LIMIT_S)
    recorder.wait(10)
    living = [node for node in cluster.nodes.values() if node.is_running()]
    used = {cluster.node_of(name).name for name in pair.workers()}
    for node in living:
        if node.name not in used:
            cluster.cordon(node)
    lost = next(node for node in living if node.name in used)
    lost.kill()
    pair.wait_state("Parked", LIMIT_S)
    recorder.mark("pair is parked")
    pair.wait_condition("Queued", "True", LIMIT_S)
    recorder.mark("pair has given its GPU back")
    recorder.wait(15)
    operator = next(iter(cluster.operators.values()))
    operator.stop()
    recorder.mark("the operator is away")
    recorder.wait(AWAY_S)
    operator.start()
    recorder.mark("the operator is started again")
    recorder.wait(30)
    assert never.state() == "Queued", never.state()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    port = free_port()
    with ControlPlane(controller_manager=True) as plane:
        with Cluster(plane, os.environ["RUBATO_BUILD"], operators=1,
                     operator_flags=["--probes", f"127.0.0.1:{port}"]) as cluster:
            recorder = Recorder(f"http://127.0.0.1:{port}/metrics")
            try:
                story(cluster, recorder)
            except BaseException:
                print(cluster.explain())
                raise
            finally:
                recorder.stop()
    RUN.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(runs, separators=(',', ':'))}"
                       for name, runs in recorder.runs().items())
    RUN.write_text(f'{{"interval_s": {INTERVAL_S}, "scrapes": {len(recorder.samples)},\n'
                   f'"events": {json.dumps(recorder.events)},\n"series": {{\n{lines}\n}}}}\n')
    print(f"wrote {RUN.relative_to(ROOT)}: {RUN.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
