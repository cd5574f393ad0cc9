"""A cluster: switch, control plane, nodes, volumes, images. Everything the command line offers, as methods.

    cluster = Cluster("mine")
    cluster.up(nodes=3, slots=1)        # or: with Cluster.running("mine", nodes=3) as cluster:
    cluster.kubectl("get", "nodes")
    cluster.cut("n2")                   # restore, power_cut, freeze, thaw, add_node …
    cluster.down()

Another process may open the same cluster by its name. Changes hold a lock. up() of what is up is no change;
down() also takes what a crash has left.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from realcluster import cgroups, images, probe, wires
from realcluster.errors import ClusterError, run, wait_for
from realcluster.machine import Machine, start_time
from realcluster.node import Node, supports_overlay
from realcluster.plane import Plane, open_door
from realcluster.state import DEFAULT_NAME, Record, State

RESOURCE = "rubato.dev/slot"
NODE_LIMIT_S = 150.0  # usual: 10
KUBECTL_LIMIT_S = 60.0
VOLUME_SIZE = "100Gi"  # of a static volume: a claim takes any that is large enough
MASTER, SWITCH = "master", "switch"

Say = Callable[[str], None]


def quiet(_: str) -> None:
    pass


class Cluster:
    def __init__(self, name: str = DEFAULT_NAME, say: Say = quiet) -> None:
        self.state = State(name)
        self.name, self.folder, self.say = name, self.state.folder, say
        self._record: Record | None = None

    # ---- parts ----

    @property
    def record(self) -> Record:
        if self._record is None:
            self._record = self.state.load()
        return self._record

    def machine(self, name: str) -> Machine:
        return Machine(self.folder / "machines" / name, cgroups.Group(f"{self.record.id}/{name}"), name,
                       self.record.id)

    @property
    def switch(self) -> wires.Switch:
        return wires.Switch(self.machine(SWITCH))

    @property
    def plane(self) -> Plane:
        return Plane(self.folder, self.machine(MASTER), self.record.programs)

    def node(self, name: str) -> Node:
        known = self.record.nodes.get(name)
        if known is None:
            raise ClusterError(f"no node '{name}' (there are: {', '.join(self.record.nodes) or 'none'})")
        return Node(self.machine(name), known["number"], self.record.programs, self.folder,
                    self.record.snapshotter)

    def nodes(self) -> list[Node]:
        return [self.node(name) for name in self.record.nodes]

    # ---- life ----

    @classmethod
    @contextlib.contextmanager
    def running(cls, name: str, nodes: int = 3, slots: int = 1, say: Say = quiet,
                archives: Iterable[pathlib.Path] = ()) -> Iterator[Cluster]:
        """For tests: a cluster that ends with the block, or with this process."""
        cluster = cls(name, say)
        try:
            cluster.up(nodes, slots, archives, owner=os.getpid())
            yield cluster
        finally:
            cluster.down()

    def up(self, nodes: int, slots: int, archives: Iterable[pathlib.Path] = (), owner: int | None = None) -> None:
        with self.state.locked():
            if self.is_up():
                self.say(f"cluster {self.name} is up already")
                return
            if self.state.exists():
                self.say(f"cluster {self.name}: clearing what an earlier run left")
                self._down()
            try:
                self._up(nodes, slots, archives, owner)
            except BaseException:
                kept = self.save_logs(self.folder.with_name(f"{self.name}.failed-logs"))
                self._down()
                self.say(f"cluster {self.name}: logs kept in {kept}")
                raise

    def is_up(self) -> bool:
        return self.state.exists() and self.machine(MASTER).is_on() and self.machine(SWITCH).is_on()

    def down(self) -> None:
        with self.state.locked():
            if self.state.exists():
                self._record = None
                self._down()

    def _up(self, nodes: int, slots: int, archives: Iterable[pathlib.Path], owner: int | None) -> None:
        began = time.monotonic()
        programs = probe.find_programs()
        tool = images.tool_image()
        record = self._record = self.state.create()
        record.programs = programs
        record.snapshotter = "overlayfs" if supports_overlay(self.folder) else "native"
        for folder in (self.state.shared, self.state.images):
            folder.mkdir(exist_ok=True)
        if owner is not None:
            self._keep(owner)
        for archive in (tool, *archives):
            self._store_image(archive)
        self._start_plane()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            made = [self._new_node(slots) for _ in range(nodes)]
            prepared = [pool.submit(self._prepare_node, node) for node in made]
            self.plane.wait_ready()
            self.plane.start_controllers()
            self.say(f"API server ready after {time.monotonic() - began:.1f} s")
            self._provide_defaults()
            for future in prepared:
                future.result()
        self._await_nodes(made)
        self.say(f"cluster {self.name}: {nodes} nodes Ready after {time.monotonic() - began:.1f} s")

    def _start_plane(self) -> None:
        door, port = open_door()
        self.record.door_port = port
        self.state.save(self.record)
        master, switch = self.machine(MASTER), self.switch
        switch.machine.switch_on()
        switch.prepare()
        with door:
            master.switch_on(fds=[door.fileno()])
            switch.plug(master, wires.MASTER_ADDRESS)
            self.plane.issue_certificates(port)
            self.plane.start(door.fileno())

    def _provide_defaults(self) -> None:
        """Pods need the default account of their namespace, which the controller-manager makes."""
        wait_for(lambda: self.kubectl("get", "serviceaccount", "default", check=False).returncode == 0,
                 NODE_LIMIT_S, "default service account")

    def _down(self) -> None:
        """Also of a cluster that is half there. Nodes first, then who they speak to."""
        machines = [path.name for path in (self.folder / "machines").glob("*")]
        group = cgroups.Group(self.record.id)
        for name in sorted(machines, key=lambda name: name in (MASTER, SWITCH)):
            pid = self.machine(name).pid
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        group.kill()
        group.remove()
        keeper = self.record.keeper
        if keeper and keeper["pid"] != os.getpid() and start_time(keeper["pid"]) == keeper["start"]:
            os.kill(keeper["pid"], signal.SIGTERM)
        shutil.rmtree(self.folder)
        self._record = None

    def _keep(self, owner: int) -> None:
        """A process that outlives us and takes the cluster down when `owner` has ended."""
        command = [str(probe.ROOT / "tests" / "cluster" / "cluster"), "--name", self.name, "keep", str(owner)]
        keeper = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, start_new_session=True)
        self.record.keeper = {"pid": keeper.pid, "start": start_time(keeper.pid) or 0}
        self.state.save(self.record)

    # ---- nodes ----

    def add_node(self, slots: int = 1) -> Node:
        """A new node, with every image that was loaded; Ready when this returns."""
        with self.state.locked():
            self._record = None
            node = self._new_node(slots)
            self._prepare_node(node)
        self._await_nodes([node])
        return node

    def power_cut(self, name: str) -> None:
        """Nobody hears a goodbye: the cable first, then every process of it at once. The disk stays."""
        node = self.node(name)
        if node.machine.is_on():
            self.switch.cut(node.machine)
        node.machine.power_cut()

    def power_on(self, name: str) -> Node:
        """Boots a node that had lost its power, with the disk it had."""
        node = self.node(name)
        self._prepare_node(node)
        self._await_nodes([node])
        return node

    def remove_node(self, name: str) -> None:
        """Ends a node for good, as an administrator would: the host, then its object, then the disk."""
        self.power_cut(name)
        self.kubectl("delete", "node", name, "--ignore-not-found", "--wait=false")
        with self.state.locked():
            self._record = None
            shutil.rmtree(self.folder / "machines" / name, ignore_errors=True)
            self.record.nodes.pop(name, None)
            self.state.save(self.record)

    def cut(self, name: str) -> None:
        self.switch.cut(self.node(name).machine)

    def restore(self, name: str) -> None:
        self.switch.restore(self.node(name).machine)

    def disturb(self, name: str, delay_ms: float = 0, loss_percent: float = 0) -> None:
        self.switch.disturb(self.node(name).machine, delay_ms, loss_percent)

    def freeze(self, name: str) -> None:
        self.node(name).machine.freeze()

    def thaw(self, name: str) -> None:
        self.node(name).machine.thaw()

    def _new_node(self, slots: int) -> Node:
        number = self.record.next_number
        if number > wires.NODES_MAX:
            raise ClusterError(f"this cluster has had {wires.NODES_MAX} nodes, which is all it has addresses for")
        name = f"n{number}"
        self.record.next_number += 1
        self.record.nodes[name] = {"number": number, "slots": slots}
        self.state.save(self.record)
        return self.node(name)

    def _prepare_node(self, node: Node) -> None:
        """Host, network, runtime, images, kubelet."""
        node.machine.switch_on()
        self.switch.plug(node.machine, node.address)
        node.start_runtime()
        for archive in sorted(self.state.images.glob("*.tar")):
            node.load(archive)
        kubeconfig = self.plane.issue_node(node.name, node.address)
        self.plane.wait_ready()  # a kubelet that finds nobody waits long before it asks again
        node.start_kubelet(kubeconfig, self.plane.pki)

    def _await_nodes(self, nodes: Sequence[Node]) -> None:
        """Until they are Ready and offer their slots."""
        for node in nodes:
            try:
                wait_for(lambda: self.is_ready(node.name), NODE_LIMIT_S, f"node {node.name} Ready")
            except ClusterError as error:
                raise ClusterError(f"{error}\n{node.machine.tails()}") from None
            self._offer_slots(node.name)

    def _offer_slots(self, name: str) -> None:
        path = f"/status/capacity/{RESOURCE.replace('/', '~1')}"
        slots = str(self.record.nodes[name]["slots"])
        self.kubectl("patch", "node", name, "--subresource=status", "--type=json", "-p",
                     json.dumps([{"op": "add", "path": path, "value": slots}]))
        wait_for(lambda: self.get("node", name)["status"]["allocatable"].get(RESOURCE) == slots, NODE_LIMIT_S,
                 f"{RESOURCE} of {name}")

    def is_ready(self, name: str) -> bool:
        found = self.kubectl("get", "node", name, "-o", "json", check=False)
        if found.returncode != 0:
            return False
        conditions = json.loads(found.stdout)["status"].get("conditions") or []
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    # ---- images and volumes ----

    def load(self, *archives: pathlib.Path) -> None:
        """Gives docker-archives to all nodes that have power, and to those that come."""
        stored = [self._store_image(pathlib.Path(archive)) for archive in archives]
        living = [node for node in self.nodes() if node.machine.is_on()]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(node.load, archive) for archive in stored for node in living]:
                done.result()

    def tag(self, image: str, name: str) -> None:
        """Gives an image that the nodes have another name; those that come later do not know it."""
        for node in self.nodes():
            node.tag(image, name)

    def _store_image(self, archive: pathlib.Path) -> pathlib.Path:
        stored = self.state.images / archive.name
        hidden = stored.with_suffix(".new")
        shutil.copyfile(archive, hidden)
        hidden.rename(stored)
        return stored

    def volume(self, claim: str, namespace: str = "default", size: str = VOLUME_SIZE) -> pathlib.Path:
        """Makes a static ReadWriteMany volume that waits for the claim; returns its folder, which lies on no
        node's disk. A volume whose claim was deleted waits anew, with what was in it."""
        folder = self.state.shared / namespace / claim
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)  # pods run as whoever they want
        name = f"{namespace}-{claim}"
        self.kubectl("apply", "-f", "-", data={
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {"capacity": {"storage": size}, "accessModes": ["ReadWriteMany", "ReadWriteOnce", "ReadOnlyMany"],
                     "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "",
                     "claimRef": {"namespace": namespace, "name": claim},
                     "hostPath": {"path": str(folder), "type": "Directory"}}})
        found = self.get("pv", name)
        if found.get("status", {}).get("phase") == "Released":
            self.kubectl("patch", "pv", name, "--type=json", "-p",
                         '[{"op": "remove", "path": "/spec/claimRef/uid"}]')
        return folder

    # ---- use ----

    def environment(self) -> dict[str, str]:
        tools = str(pathlib.Path(self.record.programs["kubectl"]).parent)
        return {**os.environ, "KUBECONFIG": str(self.plane.kubeconfig),
                "KUBECACHEDIR": str(self.folder / "kubectl-cache"), "PATH": f"{tools}:{os.environ.get('PATH', '')}"}

    def kubectl(self, *words: object, data: Any = None, check: bool = True,
                limit_s: float = KUBECTL_LIMIT_S) -> subprocess.CompletedProcess[str]:
        """kubectl as the administrator, from the host; `data` is its standard input, as JSON unless text."""
        text = data if isinstance(data, str) or data is None else json.dumps(data)
        command = [self.record.programs["kubectl"], "--kubeconfig", str(self.plane.kubeconfig), *map(str, words)]
        done = run(command, data=None if text is None else text.encode(), environment=self.environment(),
                   check=False, limit_s=limit_s)
        if check and done.returncode != 0:
            raise ClusterError(f"kubectl {shlex.join(map(str, words))}: {done.stderr.strip()}")
        return done

    def get(self, *words: object) -> Any:
        """`kubectl get … -o json`, read."""
        return json.loads(self.kubectl("get", *words, "-o", "json").stdout)

    def stop_service(self, service: str, machine: str = MASTER, kill: bool = False) -> None:
        self.machine(machine).stop_service(service, kill=kill)

    def start_service(self, service: str, machine: str = MASTER) -> None:
        self.machine(machine).start_service(service)
        if machine == MASTER:
            self.plane.wait_ready()

    # ---- looking ----

    def status(self) -> dict[str, Any]:
        """What runs, from outside: of the machines, not of what Kubernetes thinks."""
        machines = {}
        for name in (SWITCH, MASTER, *self.record.nodes):
            machine = self.machine(name)
            power = "off" if not machine.is_on() else "frozen" if machine.group.is_frozen() else "on"
            cable = "" if name == SWITCH or power == "off" else "cut" if self.switch.is_cut(machine) else "good"
            machines[name] = {"power": power, "cable": cable, "services": {
                service: "running" if seen["pid"] else f"ended ({seen['lastExit']})"
                for service, seen in machine.status().items()} if power != "off" else {}}
        return {"name": self.name, "folder": str(self.folder), "kubeconfig": str(self.plane.kubeconfig),
                "snapshotter": self.record.snapshotter, "machines": machines}

    def save_logs(self, where: pathlib.Path) -> pathlib.Path:
        """Copies the logs of all machines and pods, and what Kubernetes says of itself if it answers."""
        shutil.rmtree(where, ignore_errors=True)
        where.mkdir(parents=True)
        for machine in (self.folder / "machines").glob("*"):
            shutil.copytree(machine / "logs", where / machine.name, dirs_exist_ok=True)
            if (machine / "disk" / "log" / "pods").exists():
                run(["cp", "-r", machine / "disk" / "log" / "pods", where / machine.name / "pods"], check=False)
        if self.state.exists() and self.is_up() and self.plane.is_ready():
            for words in ("get nodes,pods,pv,pvc,leases -A -o wide", "get events -A --sort-by=.lastTimestamp",
                          "get trainingjobs -A -o yaml"):
                said = self.kubectl(*words.split(), check=False)
                (where / f"{words.split()[1].split(',')[0]}.txt").write_text(said.stdout + said.stderr)
        return where
