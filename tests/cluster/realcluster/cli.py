"""The command line of clusters: arguments to methods of Cluster, errors to one sentence."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import select
import subprocess
import sys
import time
from typing import Any

from realcluster import probe  # makes tests/integration importable
from authority import AuthorityError
from control_plane import ControlPlaneError
from realcluster.cluster import Cluster
from realcluster.errors import ClusterError
from realcluster.state import DEFAULT_NAME, cluster_names

CANNOT = 77  # what ctest takes for "skipped": this machine cannot run a cluster at all
NOT_SET_UP = 1
KEEP_POLL_S = 1.0
BEGAN = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:6.1f}s] {text}", file=sys.stderr, flush=True)


def do_probe(_: argparse.Namespace) -> int:
    if found := probe.unable():
        print("this machine cannot run a cluster:", *found, sep="\n  ")
        return CANNOT
    if found := probe.not_set_up() + probe.short_of():
        print("this machine could run a cluster, but:", *found, sep="\n  ")
        return NOT_SET_UP
    print("this machine can run a cluster")
    return 0


def do_up(options: argparse.Namespace) -> int:
    if found := probe.unable() + probe.not_set_up() + probe.short_of():
        raise ClusterError("this machine cannot run a cluster now:\n  " + "\n  ".join(found))
    cluster = Cluster(options.name, say)
    cluster.up(options.nodes, options.slots, options.image, options.owner)
    if options.rubato:
        from realcluster import rubato
        rubato.install(cluster)
        rubato.provide_example(cluster)
        say("try: kubectl apply -f examples/gpt-kjv.yaml; kubectl get tj -w")
    print(f"export KUBECONFIG={cluster.plane.kubeconfig}")
    return 0


def do_down(options: argparse.Namespace) -> int:
    for name in cluster_names() if options.all else [options.name]:
        Cluster(name, say).down()
        say(f"cluster {name} is gone")
    return 0


def do_status(options: argparse.Namespace) -> int:
    status = Cluster(options.name).status()
    if options.json:
        print(json.dumps(status, indent=1))
        return 0
    print(f"cluster {status['name']} in {status['folder']}\nexport KUBECONFIG={status['kubeconfig']}")
    print(f"{'MACHINE':8} {'POWER':7} {'CABLE':6} SERVICES")
    for name, seen in status["machines"].items():
        services = ", ".join(f"{service} {how}" for service, how in seen["services"].items()) or "-"
        print(f"{name:8} {seen['power']:7} {seen['cable'] or '-':6} {services}")
    return 0


def do_list(_: argparse.Namespace) -> int:
    for name in cluster_names():
        print(f"{name:20} {'up' if Cluster(name).is_up() else 'left by a crash: cluster --name ' + name + ' down'}")
    return 0


def do_env(options: argparse.Namespace) -> int:
    print(f"export KUBECONFIG={Cluster(options.name).plane.kubeconfig}")
    return 0


def do_load(options: argparse.Namespace) -> int:
    Cluster(options.name, say).load(*options.archive)
    return 0


def do_node(options: argparse.Namespace) -> int:
    cluster = Cluster(options.name, say)
    if options.action == "add":
        print(cluster.add_node(options.slots).name)
        return 0
    if not options.node:
        raise ClusterError(f"node {options.action}: which one? ({', '.join(cluster.record.nodes)})")
    {"kill": cluster.power_cut, "start": cluster.power_on, "remove": cluster.remove_node,
     "freeze": cluster.freeze, "thaw": cluster.thaw}[options.action](options.node)
    return 0


def do_freeze(options: argparse.Namespace) -> int:
    getattr(Cluster(options.name), options.command)(options.node)
    return 0


def do_cable(options: argparse.Namespace) -> int:
    getattr(Cluster(options.name), options.action)(options.node)
    return 0


def do_netem(options: argparse.Namespace) -> int:
    Cluster(options.name).disturb(options.node, options.delay, options.loss)
    return 0


def do_service(options: argparse.Namespace) -> int:
    cluster = Cluster(options.name)
    service = {"apiserver": "kube-apiserver"}.get(options.command, options.command)
    if options.action == "start":
        cluster.start_service(service)
    else:
        cluster.stop_service(service, kill=options.action == "kill")
    return 0


def do_volume(options: argparse.Namespace) -> int:
    namespace, _, claim = options.claim.rpartition("/")
    print(Cluster(options.name).volume(claim, namespace or "default", options.size))
    return 0


def do_exec(options: argparse.Namespace) -> int:
    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    return subprocess.run(Cluster(options.name).machine(options.machine).inside(*(words or ["bash"]))).returncode


def do_logs(options: argparse.Namespace) -> int:
    cluster = Cluster(options.name)
    if options.to:
        print(cluster.save_logs(options.to))
    else:
        for machine in [options.machine] if options.machine else cluster.status()["machines"]:
            print(cluster.machine(machine).tails())
    return 0


def do_keep(options: argparse.Namespace) -> int:
    """Waits for the owner's end, then for its cluster's."""
    try:
        owner = os.pidfd_open(options.owner)
        select.select([owner], [], [])
    except ProcessLookupError:
        pass
    Cluster(options.name).down()
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="cluster", description="A true Kubernetes cluster on this machine, each "
                                  "node in namespaces of its own. Needs root and scripts/setup cluster.")
    top.add_argument("--name", default=os.environ.get("RUBATO_CLUSTER", DEFAULT_NAME),
                     help="which cluster (default: $RUBATO_CLUSTER, else %(default)s)")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(run=run)
        return made

    def with_node(made: argparse.ArgumentParser) -> argparse.ArgumentParser:
        made.add_argument("node")
        return made

    command("probe", do_probe,
            f"can this machine? 0: yes; {NOT_SET_UP}: after set-up; {CANNOT}: no; says what is missing")
    up = command("up", do_up, "start a cluster; what is up stays as it is")
    up.add_argument("--nodes", type=int, default=3)
    up.add_argument("--slots", type=int, default=1, help="rubato.dev/slot that each node offers")
    up.add_argument("--image", type=pathlib.Path, action="append", default=[], help="docker-archive to load")
    up.add_argument("--owner", type=int, help="take it down when this process ends")
    up.add_argument("--rubato", action="store_true", help="install Rubato: images of deploy/, chart of helm/")
    command("down", do_down, "end it; leaves nothing, also after a crash").add_argument("--all", action="store_true")
    command("status", do_status, "what runs").add_argument("--json", action="store_true")
    command("list", do_list, "all clusters of this machine")
    command("env", do_env, "the line that points kubectl at it")
    command("load", do_load, "give images to all nodes").add_argument("archive", type=pathlib.Path, nargs="+")
    node = command("node", do_node, "add; kill: power cut; start: power back; remove: for good")
    node.add_argument("action", choices=["add", "kill", "start", "remove", "freeze", "thaw"])
    node.add_argument("node", nargs="?")
    node.add_argument("--slots", type=int, default=1)
    cable = command("cable", do_cable, "cut or restore a node's network")
    cable.add_argument("action", choices=["cut", "restore"])
    cable.add_argument("node")
    netem = with_node(command("netem", do_netem, "make a cable slow or lossy; without options: good again"))
    netem.add_argument("--delay", type=float, default=0, metavar="MS", help="each way; needs the kernel's netem")
    netem.add_argument("--loss", type=float, default=0, metavar="PERCENT", help="each way")
    for name, text in (("freeze", "stop everything on a node where it is"), ("thaw", "let it go on")):
        with_node(command(name, do_freeze, text))
    for name in ("apiserver", "etcd"):
        made = command(name, do_service, f"stop, kill or start {name}")
        made.add_argument("action", choices=["stop", "kill", "start"])
    volume = command("volume", do_volume, "a static RWX volume for a claim; prints its folder")
    volume.add_argument("claim", metavar="[NAMESPACE/]CLAIM")
    volume.add_argument("--size", default="100Gi")
    execute = command("exec", do_exec, "run a command on a machine (master, switch, n1 …)")
    execute.add_argument("machine")
    execute.add_argument("words", nargs=argparse.REMAINDER)
    logs = command("logs", do_logs, "the ends of all logs")
    logs.add_argument("machine", nargs="?")
    logs.add_argument("--to", type=pathlib.Path, help="copy all of them into this folder")
    command("keep", do_keep, "wait for a process to end, then take the cluster down").add_argument("owner", type=int)
    return top


def main() -> int:
    options = parser().parse_args()
    try:
        return options.run(options)
    except (AuthorityError, ClusterError, ControlPlaneError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
