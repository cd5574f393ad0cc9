"""Jobs come and go on a local cluster while nodes lose their power, and what its processes hold in memory is
measured after each tenth: who keeps something of each job grows.

    make bench-local-churn      or: RUBATO_BUILD=build/bench scripts/with-tools python tests/bench/local_churn.py
                                    [--jobs 500] [--at-once 6]

rubato-apiserver, two operators and four nodes, as `rubatoctl local up` starts them, but that Events are kept for
five seconds instead of an hour: they would be most of what grows. Each job trains some steps with one or two workers, is
seen complete, and is deleted. After each tenth all jobs are gone for longer than Events live. A node that has lost its
power is started again under its name, so its localnode is a new process: the first node never loses power, and is the
one that is measured. Ends with 1 when one of the four holds 5 % more in the second half than in the first, the first
tenth left out; the least of either half is compared, as chance only adds.
"""

import argparse
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))
from cluster import claim_network, free_port_at  # noqa: E402
from control_plane import ControlPlaneError, Process, free_port, wait_until  # noqa: E402
from jobs import Job, sample_text  # noqa: E402
from local_server import LocalServer  # noqa: E402
from table import markdown  # noqa: E402

NODES, SLOTS, LEASE_S, EVENT_TTL_S = 4, 2, 3, 5
REST_S = EVENT_TTL_S + 65  # expired events are looked for once a minute, when one is made
JOBS_PER_LOSS = 20
DOWN_S = 5.0
JOB_LIMIT_S = 180
HISTORY = 200  # changes of a kind that the API server keeps for watches: full after the first tenth
MOST_GROWTH = 0.05
RESOURCE = "rubato.dev/slot"


class Local:
    """What `rubatoctl local up` makes, with processes that can be looked at and killed."""

    def __init__(self, folder, build):
        self.folder, self.bin = pathlib.Path(folder), pathlib.Path(build) / "bin"
        self.claims = self.folder / "claims"
        self.network, self.network_claim = claim_network()
        self.server = LocalServer(self.folder / "api", "--crds", ROOT / "crds", "--event-ttl", EVENT_TTL_S,
                                  "--history", HISTORY)
        self.operators, self.nodes, self.off = {}, {}, {}

    def __enter__(self):
        self.server.__enter__()
        self.server.kubectl("create", "namespace", "rubato-system", check=False)
        ports = [free_port() for _ in range(2)]
        for number, port in enumerate(ports):
            self.operators[f"operator-{number}"] = Process(f"operator-{number}", [
                self.bin / "rubato-operator", "--kubeconfig", self.server.kubeconfig, "--identity",
                f"operator-{number}", "--listen", f"127.0.0.1:{port}", "--coordinators",
                ",".join(f"127.0.0.1:{p}" for p in ports), "--gpu-resource", RESOURCE,
                "--lease-seconds", LEASE_S, "--min-gain", "-1"], self.folder / f"operator-{number}.log")
        for number in range(1, NODES + 1):
            self.start_node(number)
        wait_until(lambda: len(self.get("nodes")) == NODES and self.leader(), 60, "nodes and a leader")
        tokens = self.claims / "default" / "tokens" / "tokens.bin"
        self.tokenize(sample_text(), tokens)
        return self

    def __exit__(self, kind, value, trace):
        for process in [*self.nodes.values(), *self.operators.values()]:
            process.stop()
        self.server.__exit__(kind, value, trace)
        self.network_claim.close()

    def start_node(self, number):
        address = f"127.{self.network}.{number}.1"
        self.nodes[number] = Process(f"n{number}", [
            self.bin / "rubato-localnode", "--kubeconfig", self.server.kubeconfig, "--name", f"n{number}",
            "--address", address, "--port", free_port_at(address), "--slots", SLOTS, "--resource", RESOURCE,
            "--root", self.folder / "nodes" / f"n{number}", "--claims", self.claims,
            "--client-ca", self.server.state / "ca.crt"], self.folder / f"n{number}.log")

    def tokenize(self, text, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([self.bin / "rubato-tokenize", "-o", path, "-"], input=text.encode(), check=True,
                       capture_output=True)

    def get(self, kind):
        return self.server.get(kind, "-A")["items"]

    def leader(self):
        found = self.server.kubectl("-n", "rubato-system", "get", "lease", "rubato-operator", "-o", "json", check=False)
        holder = (json.loads(found.stdout)["spec"].get("holderIdentity") or "") if found.returncode == 0 else ""
        name = holder.rsplit("_", 1)[0]
        return name if name in self.operators else None

    def cut_power(self, number):
        os.killpg(self.nodes[number].child.pid, signal.SIGKILL)
        self.nodes[number].child.wait()
        self.off[number] = time.monotonic() + DOWN_S

    def look_after_nodes(self):
        for number in [n for n, when in self.off.items() if time.monotonic() >= when]:
            del self.off[number]
            self.start_node(number)

    def check(self):
        for process in [self.server.process, *self.operators.values(), self.nodes[1]]:
            if not process.is_running():
                raise ControlPlaneError(f"{process.name} ended:\n{process.tail()}")

    def resident_mib(self):
        leader = self.leader()
        standby = next(name for name in self.operators if name != leader)
        of = {"leader": self.operators[leader], "standby": self.operators[standby], "API server": self.server.process,
              "localnode": self.nodes[1]}
        return {name: resident_mib(process.child.pid) for name, process in of.items()}


def resident_mib(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def manifest(local, number):
    job = Job(f"churn-{number}", steps=12, gpus=(1, 1 + number % 2), batch=4, micro=1, length=32, layers=1, hidden=32,
              every=6, claim="checkpoints", ledger=False)
    job.cluster = local
    spec = job.manifest()
    # A job's own folder: the volume outlives them all.
    spec["spec"]["training"]["checkpoint"]["path"] = f"/ckpt/{number}"
    return job, spec


def claims(local):
    job, _ = manifest(local, 0)
    return [item for item in job.manifests()["items"] if item["kind"] == "PersistentVolumeClaim"]


class Churn:
    def __init__(self, local, jobs, at_once):
        self.local, self.jobs, self.at_once = local, jobs, at_once
        self.begun = self.gone = self.losses = 0
        self.present, self.samples, self.random = {}, [], random.Random(1)

    def run(self):
        began = time.monotonic()
        for claim in claims(self.local):
            self.local.server.kubectl("apply", "-f", "-", input=json.dumps(claim))
        for tenth in range(1, 11):
            self.train_until(tenth * self.jobs // 10)
            self.rest()
            self.samples.append((self.gone, time.monotonic() - began, self.local.resident_mib()))
            print(f"{self.gone} jobs, {self.losses} losses, {self.samples[-1]}", file=sys.stderr, flush=True)

    def train_until(self, count):
        while self.gone < count:
            self.local.check()
            self.local.look_after_nodes()
            while self.begun < count and len(self.present) < self.at_once:
                self.begin_one()
            self.end_those_that_are_over()
            time.sleep(0.3)

    def begin_one(self):
        job, spec = manifest(self.local, self.begun)
        self.local.server.kubectl("apply", "-f", "-", input=json.dumps(spec))
        self.present[job.name] = time.monotonic()
        self.begun += 1
        if self.begun % JOBS_PER_LOSS == 0 and not self.local.off:
            self.local.cut_power(self.random.randrange(2, NODES + 1))
            self.losses += 1

    def end_those_that_are_over(self):
        there = {item["metadata"]["name"]: item for item in self.local.get("trainingjobs")}
        for name, began in list(self.present.items()):
            if name not in there:
                del self.present[name]
                self.gone += 1
                continue
            state = there[name].get("status", {}).get("state")
            if state == "Failed":
                raise ControlPlaneError(f"{name} failed: {json.dumps(there[name]['status'], indent=1)}")
            if state == "Complete" and "deletionTimestamp" not in there[name]["metadata"]:
                self.local.server.kubectl("delete", "trainingjob", name, "--wait=false")
            if time.monotonic() - began > JOB_LIMIT_S:
                raise ControlPlaneError(f"{name} is there after {JOB_LIMIT_S} s: {json.dumps(there[name], indent=1)}")

    def rest(self):
        """Longer than Events live; the last one makes the server look for those that have expired."""
        time.sleep(REST_S)
        self.local.look_after_nodes()
        self.local.server.kubectl("create", "-f", "-", input=json.dumps({
            "apiVersion": "v1", "kind": "Event", "metadata": {"generateName": "rest-", "namespace": "default"},
            "reason": "Rest", "message": "rest", "type": "Normal",
            "involvedObject": {"kind": "Node", "name": "n1"}}))
        time.sleep(2)

    def growth(self, name):
        values = [sample[2][name] for sample in self.samples]
        half = len(values) // 2
        return min(values[half:]) / min(values[1:half]) - 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=6)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Local(folder, os.environ["RUBATO_BUILD"]) as local:
        churn = Churn(local, args.jobs, args.at_once)
        churn.run()
    names = list(churn.samples[0][2])
    print(markdown(["jobs that came and went", "minutes", *(f"{name}, MiB" for name in names)],
                   [[gone, f"{seconds / 60:.1f}", *(f"{held[name]:.1f}" for name in names)]
                    for gone, seconds, held in churn.samples]))
    growths = {name: churn.growth(name) for name in names}
    print(f"\nNodes lost their power {churn.losses} times. Least of the second half over least of the first, the first "
          f"tenth left out: " + ", ".join(f"{name} {100 * value:+.1f} %" for name, value in growths.items())
          + f" (goal: at most {100 * MOST_GROWTH:.0f} %).")
    sys.exit(any(value > MOST_GROWTH for value in growths.values()))


if __name__ == "__main__":
    main()
