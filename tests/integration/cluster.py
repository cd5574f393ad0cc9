"""An elastic cluster on one machine, for tests: a real control plane, two operators, and nodes that run pods
as processes. Everything is gone after `with`.

    with ControlPlane(controller_manager=True) as plane, Cluster(plane, build) as cluster:
        cluster.add_nodes(2)
        job = cluster.apply(Job("small", steps=40))
        job.wait_state("Complete", 60)

A node is one rubato-localnode with its pods: Node.kill() is a power cut, Node.freeze() stops everything on it
without closing anything.
"""

import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import time

import processes
from control_plane import ControlPlaneError, Process, free_port, wait_until
from watching import SlotRule, Watch, conditions_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESOURCE = "rubato.dev/slot"
CLAIM_PORT = 9999  # nobody listens there
LEASE_S = 5  # of the operators: a fail-over takes this long
READY_LIMIT_S = 120
KINDS = "trainingjobs,trainingqueues,schedulingpolicies,throughputprofiles"
LOG_TAIL_LINES = 15


class Node:
    def __init__(self, cluster, name, number, slots, gpus=()):
        """gpus: what makes localnode offer GPUs instead of so many slots; see gpu_flags()."""
        self.cluster, self.name, self.slots = cluster, name, slots
        self.root = cluster.folder / "nodes" / name
        self.is_frozen = False
        address = f"127.{cluster.network}.{number}.1"
        self.process = Process(name, [
            cluster.bin / "rubato-localnode", "--kubeconfig", cluster.plane.kubeconfig, "--name", name,
            "--address", address, "--port", free_port_at(address), *(gpus or ("--slots", slots)),
            "--resource", RESOURCE, "--root", self.root, "--claims", cluster.claims,
            "--client-ca", cluster.plane.client_ca], cluster.folder / f"{name}.log")

    @property
    def pid(self):
        return self.process.child.pid

    def workers(self):
        """The living rubato-worker processes: {pod name: [pid …]}."""
        found = {}
        for pid in processes.tree(self.pid):
            if processes.name_of(pid) == "rubato-worker":
                pod = processes.environment_of(pid).get("RUBATO_POD_NAME", "?")
                found.setdefault(pod, []).append(pid)
        return found

    def kill(self):
        """A power cut. All at once: SIGKILL of the process group takes localnode and, by the kernel, its pods."""
        os.killpg(self.pid, signal.SIGKILL)
        self.process.child.wait()

    def freeze(self):
        self.is_frozen = True
        processes.freeze(self.pid)

    def thaw(self):
        self.is_frozen = False
        processes.thaw(self.pid)

    def is_running(self):
        return self.process.is_running()

    def stop(self):
        if self.is_running():
            if self.is_frozen:
                self.kill()
            else:
                self.process.stop()


def gpu_flags(folder, count, product):
    """For a node with so many GPUs, made up in a folder: what the driver shows of them, and no driver."""
    devices, driver = folder / "dev", folder / "driver"
    devices.mkdir(parents=True)
    for minor in range(count):
        about = driver / "gpus" / f"0000:0{minor}:00.0"
        about.mkdir(parents=True)
        (about / "information").write_text(f"Model: \t {product}\nGPU UUID: \t GPU-{minor}\nDevice Minor: \t {minor}\n")
        (devices / f"nvidia{minor}").touch()
    for name in ("nvidiactl", "nvidia-uvm"):
        (devices / name).touch()
    return ("--gpus", "auto", "--gpu-devices", devices, "--gpu-driver", driver)


def free_port_at(address):
    for _ in range(100):
        port = random.randrange(10000, 20000)
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
                return port
            except OSError:
                continue
    raise ControlPlaneError(f"no free port at {address}")


class Cluster:
    def __init__(self, plane, build, operators=2, operator_flags=(), operator_kubeconfig=None):
        """operator_kubeconfig(plane): makes whom the operators run as, once their namespace is there, or a
        list with one for each of them; the administrator otherwise."""
        self.plane, self.bin = plane, pathlib.Path(build) / "bin"
        self.folder = plane.folder
        self.claims = self.folder / "claims"
        self.network, self.network_claim = claim_network()
        self.operator_count, self.operator_flags = operators, list(operator_flags)
        self.operator_kubeconfig = operator_kubeconfig or (lambda plane: plane.kubeconfig)
        self.operators, self.nodes, self.jobs = {}, {}, {}
        self.node_number = 0
        self.slot_rule = SlotRule(RESOURCE)
        self.watches = []

    # ---- life ----

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind, value, trace):
        self.stop()

    def start(self):
        self.plane.kubectl("apply", "--server-side", "-f", ROOT / "crds")
        # A CRD is served a moment after it is established.
        wait_until(lambda: self.plane.kubectl("get", KINDS, check=False).returncode == 0, READY_LIMIT_S,
                   "our kinds are served")
        self.plane.kubectl("create", "namespace", "rubato-system")
        wait_until(lambda: self.plane.kubectl("get", "namespace", "kube-node-lease",
                                              check=False).returncode == 0, READY_LIMIT_S,
                   "namespace kube-node-lease")
        kubeconfigs = self.operator_kubeconfig(self.plane)
        if not isinstance(kubeconfigs, list):
            kubeconfigs = [kubeconfigs] * self.operator_count
        ports = set()
        while len(ports) < self.operator_count:
            ports.add(free_port())
        coordinators = ",".join(f"127.0.0.1:{port}" for port in ports)
        for number, port in enumerate(ports):
            name = f"operator-{number}"
            self.operators[name] = Process(name, [
                self.bin / "rubato-operator", "--kubeconfig", kubeconfigs[number], "--identity", name,
                "--listen", f"127.0.0.1:{port}", "--coordinators", coordinators,
                "--gpu-resource", RESOURCE, "--lease-seconds", LEASE_S,
                "--min-gain", "-1",  # nodes share two cores: a slot more may bring nothing here
                *self.operator_flags],
                self.folder / f"{name}.log")
        self.leases = self._watch("/apis/coordination.k8s.io/v1/namespaces/rubato-system/leases")
        self.node_objects = self._watch("/api/v1/nodes")
        self.pods = self._watch("/api/v1/pods", self.slot_rule)
        self.trainings = self._watch("/apis/rubato.dev/v1alpha1/trainingjobs")
        wait_until(self.leader, READY_LIMIT_S, "an operator that leads")

    def _watch(self, path, on_event=None):
        self.watches.append(Watch(self.plane, path, on_event))
        return self.watches[-1]

    def stop(self):
        for node in self.nodes.values():
            node.stop()
        for operator in self.operators.values():
            operator.stop()
        for watch in self.watches:
            watch.ending.set()
        self.network_claim.close()

    def check_nothing_left(self):
        """After stop(). The kernel ends the pods of a node that was killed, a moment after it."""
        try:
            wait_until(lambda: not self.left_behind() and not self.mounts_left(), READY_LIMIT_S, "nothing is left")
        except ControlPlaneError as error:
            raise ControlPlaneError(f"{error}: {self.left_behind()} {self.mounts_left()}") from None

    def left_behind(self):
        """Processes of this cluster that still live; to be called after stop()."""
        mine = str(self.folder).encode()
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            try:
                line = pathlib.Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if mine in line and b"/bin/rubato-" in line and processes.is_alive(int(name)):
                found.append((int(name), line.replace(b"\0", b" ").decode(errors="replace")))
        return found

    def mounts_left(self):
        return [line for line in pathlib.Path("/proc/mounts").read_text().splitlines()
                if str(self.folder) in line]

    def check(self):
        """Raises what a watch found, and when a process of ours has ended that should run."""
        for watch in self.watches:
            watch.check()

    def said(self, text):
        """Has an operator logged this?"""
        return any(text in pathlib.Path(operator.log).read_text(errors="replace")
                   for operator in self.operators.values())

    def explain(self):
        """The ends of all logs, for the message of a failed test."""
        parts = []
        for process in [*self.operators.values(), *(node.process for node in self.nodes.values())]:
            tail = "\n".join(process.tail().splitlines()[-LOG_TAIL_LINES:])
            parts.append(f"---- {process.name}\n{tail}")
        return "\n".join(parts)

    # ---- nodes ----

    def add_node(self, slots=1, gpus=()):
        self.node_number += 1
        name = f"n{self.node_number}"
        self.slot_rule.add_node(name, slots)
        self.nodes[name] = node = Node(self, name, self.node_number, slots, gpus)
        wait_until(lambda: self._is_ready(name) or self._check_node(node), READY_LIMIT_S,
                   f"node {name} ready")
        return node

    def add_nodes(self, count, slots=1):
        return [self.add_node(slots) for _ in range(count)]

    def _is_ready(self, name):
        return conditions_of(self.node_objects.get(name, "")).get("Ready", {}).get("status") == "True"

    @staticmethod
    def _check_node(node):
        if not node.is_running():
            raise ControlPlaneError(f"{node.name} ended:\n{node.process.tail()}")
        return False

    def remove_node(self, node):
        """Ends a node for good, as an administrator would: the process, then the object."""
        node.stop()
        self.plane.kubectl("delete", "node", node.name, "--wait=false", check=False)
        self.nodes.pop(node.name, None)

    def clear(self, limit_s):
        """Ends the jobs of a test, but those that are kept for others, and all nodes; the nodes whatever happens."""
        passing = [job for job in self.jobs.values() if not job.keep]
        for job in passing:
            if job.object() is not None:
                job.delete()
        try:
            for job in passing:
                job.wait_gone(limit_s)
        finally:
            for node in list(self.nodes.values()):
                self.remove_node(node)

    def cordon(self, node, on=True):
        self.plane.kubectl("cordon" if on else "uncordon", node.name)

    def node_of(self, pod_name):
        pod = self.pods.get(pod_name)
        return self.nodes[pod["spec"]["nodeName"]]

    # ---- operators ----

    def leader(self):
        """The name of the operator that leads; None while nobody does."""
        lease = self.leases.get("rubato-operator", "rubato-system")
        holder = lease and lease["spec"].get("holderIdentity") or ""
        name = holder.rsplit("_", 1)[0]
        return name if name in self.operators and self.operators[name].is_running() else None

    def term(self):
        """Rises with each new leader, also where an operator follows itself."""
        return self.plane.get("-n", "rubato-system", "lease/rubato-operator")["spec"].get("leaseTransitions")

    # ---- jobs ----

    def apply(self, job):
        job.cluster = self
        self.jobs[job.name] = job
        job.prepare()
        self.plane.kubectl("apply", "-f", "-", input=json.dumps(job.manifests()))
        return job

    def tokenize(self, text, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([self.bin / "rubato-tokenize", "-o", path, "-"], input=text.encode(), check=True,
                       capture_output=True)


def claim_network():
    """(x, socket): 127.x.y.z is ours as long as the socket is open; others may run the same tests."""
    for number in random.sample(range(64, 127), 63):
        claim = socket.socket()
        try:
            claim.bind((f"127.{number}.255.254", CLAIM_PORT))
            return number, claim
        except OSError:
            claim.close()
    raise ControlPlaneError("all networks from 127.64 to 127.126 are claimed")


def wait_quickly(condition, limit_s, what, poll_s=0.01):
    """As wait_until, for moments within a step."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise ControlPlaneError(f"{what}: not within {limit_s} s")
        time.sleep(poll_s)
    return found
