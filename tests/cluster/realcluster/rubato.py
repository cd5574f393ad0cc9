"""Rubato on a cluster, installed as an administrator would: images of deploy/build, the chart of helm/rubato.
And what `make cluster` adds for a person: volumes of the first example, with the text in them."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

from realcluster import ROOT
from realcluster.cluster import RESOURCE, Cluster
from realcluster.errors import PATIENCE, ClusterError, run

NAMESPACE = "rubato-system"
RELEASE = "rubato"
INSTALL_LIMIT_S = 240.0
BUILD_LIMIT_S = 540.0
EXAMPLE_CLAIMS = ("kjv-data", "kjv-checkpoints")
# A slot is a share of two cores here: one more need not bring anything. Fail over quickly.
# Without a SchedulingPolicy what is said here is in force, and a job may grow as often as it can.
VALUES = {"scheduler.gpuResource": RESOURCE, "scheduler.minGain": -1, "leaderElection.leaseSeconds": 5,
          "defaults.policy.create": False}


def build_images(build: pathlib.Path, *names: str) -> list[pathlib.Path]:
    """deploy/build from the programs in that build folder, all that ship unless named; what is built already is taken as it is."""
    done = run([ROOT / "deploy" / "build", "--from", build, *names], limit_s=BUILD_LIMIT_S)
    return [pathlib.Path(line) for line in done.stdout.split()]


def install(cluster: Cluster, build: pathlib.Path = ROOT / "build" / "release",
            values: Mapping[str, Any] | None = None) -> None:
    """Loads the images, and installs (or upgrades) the chart; both replicas are ready when this returns."""
    cluster.say("building the images")
    archives = build_images(build)
    cluster.say(f"loading {', '.join(archive.stem for archive in archives)} into the nodes")
    cluster.load(*archives)
    cluster.say("installing the chart")
    helm(cluster, "upgrade", "--install", RELEASE, str(ROOT / "helm" / "rubato"), "--create-namespace",
         *(word for key, value in {**VALUES, **(values or {})}.items()
           for word in ("--set-json", f"{key}={json.dumps(value)}")),
         *waits(INSTALL_LIMIT_S))
    cluster.say("Rubato is ready")


def waits(limit_s: float) -> tuple[str, str]:
    """Words for helm: until all is ready."""
    return "--wait", f"--timeout={limit_s * PATIENCE:.0f}s"


def helm(cluster: Cluster, *words: str) -> str:
    found = shutil.which("helm", path=cluster.environment()["PATH"])
    if found is None:
        raise ClusterError("helm is not built: run scripts/setup cluster")
    done = run([found, "--namespace", NAMESPACE, *words], environment=cluster.environment(), check=False,
               limit_s=INSTALL_LIMIT_S + 60)
    if done.returncode != 0:
        said = cluster.kubectl("get", "pods,events", "-n", NAMESPACE, check=False).stdout
        raise ClusterError(f"helm {words[0]}: {done.stderr.strip()}\n{said}")
    return done.stdout


def provide_example(cluster: Cluster, build: pathlib.Path = ROOT / "build" / "release") -> None:
    """What examples/gpt-kjv.yaml claims: the text, as tokens, and room for checkpoints."""
    data, _ = (cluster.volume(claim) for claim in EXAMPLE_CLAIMS)
    tokens = data / "kjv.tokens"
    if not tokens.exists():
        tokenize(build, run(["bible", "-f", "gen1:1-rev22:21"]).stdout.encode(), tokens)


def tokenize(build: pathlib.Path, text: bytes, path: pathlib.Path) -> None:
    run([build / "bin" / "rubato-tokenize", "-o", path, "-"], data=text)
    path.chmod(0o644)


