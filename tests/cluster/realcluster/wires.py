"""The network: a switch (a bridge in the namespace of a machine without services) and one cable per machine.

A cut cable has no carrier on either side; nothing is reset, packets go nowhere. Delay needs the kernel's
netem; loss is done by nftables where netem is missing.
"""

from __future__ import annotations

from realcluster.errors import ClusterError, run
from realcluster.machine import Machine

NETWORK = "10.77.0"  # inside of the namespaces; every cluster may use the same
MASTER_ADDRESS = f"{NETWORK}.2"
API_PORT = 6443
FIRST_NODE = 10
NODES_MAX = 200  # numbers are never used twice in the life of a cluster
POD_NETWORK = "10.244"
SERVICE_NETWORK = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"
LOSS_PARTS = 10000  # loss is counted in hundredths of a percent


def node_address(number: int) -> str:
    return f"{NETWORK}.{FIRST_NODE + number}"


def pod_network(number: int) -> str:
    return f"{POD_NETWORK}.{number}.0/24"


def has_netem() -> bool:
    """Tried on a cable that nobody uses, in a namespace of its own."""
    words = ["unshare", "--net", "sh", "-c",
             "ip link add name d0 type veth peer name d1 && tc qdisc add dev d0 root netem delay 1ms"]
    return run(words, check=False).returncode == 0


class Switch:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def prepare(self) -> None:
        self._ip("link add br0 type bridge", "link set br0 up")

    def plug(self, machine: Machine, address: str) -> None:
        """Gives a machine its network: eth0, and the way to every other machine's pods."""
        port, here, there = _port(machine), self.machine.pid, machine.pid
        if here is None or there is None:
            raise ClusterError(f"{machine.name}: cannot be plugged in, it is off")
        # After a power cut the sockets that it left without a process keep the old network for minutes.
        run(self.machine.inside("ip", "link", "delete", port, spaces="n"), check=False)
        run(["ip", "link", "add", port, "netns", here, "type", "veth", "peer", "name", "eth0", "netns", there])
        self._ip(f"link set {port} master br0", f"link set {port} up")
        lines = [f"addr add {address}/24 dev eth0", "link set eth0 up",
                 f"route add {SERVICE_NETWORK} dev eth0 src {address}"]  # kube-proxy turns it elsewhere
        for number in range(1, NODES_MAX + 1):
            if node_address(number) != address:
                lines.append(f"route add {pod_network(number)} via {node_address(number)}")
        _batch(machine, lines)
        machine.run("sysctl", "-qw", "net.ipv4.ip_forward=1")

    def cut(self, machine: Machine) -> None:
        self._ip(f"link set {_port(machine)} down")

    def restore(self, machine: Machine) -> None:
        self._ip(f"link set {_port(machine)} up")

    def is_cut(self, machine: Machine) -> bool:
        found = run(self.machine.inside("ip", "-o", "link", "show", _port(machine), spaces="n"), check=False)
        return found.returncode != 0 or ",UP" not in found.stdout

    def disturb(self, machine: Machine, delay_ms: float = 0, loss_percent: float = 0) -> None:
        """What comes to the machine and what leaves it is late by delay_ms, or lost so often. Zeros: undisturbed."""
        port = _port(machine)
        for words in (f"tc qdisc del dev {port} root", f"nft delete table netdev {port}"):
            run(self.machine.inside(*words.split(), spaces="n"), check=False)
        run(machine.inside("tc", "qdisc", "del", "dev", "eth0", "root", spaces="n"), check=False)
        if delay_ms:
            if not has_netem():
                raise ClusterError("this kernel has no netem (CONFIG_NET_SCH_NETEM): a cable cannot be slow here")
            half = f"netem delay {delay_ms}ms"
            self.machine.run(*f"tc qdisc add dev {port} root {half}".split(), spaces="n")
            machine.run(*f"tc qdisc add dev eth0 root {half}".split(), spaces="n")
        if loss_percent:
            parts = round(loss_percent * LOSS_PARTS / 100)
            rule = f"numgen random mod {LOSS_PARTS} < {parts} drop"
            chains = "".join(f"chain {hook} {{\n type filter hook {hook} device {port} priority 0\n {rule}\n}}\n"
                             for hook in ("ingress", "egress"))
            rules = f"table netdev {port} {{\n{chains}}}\n"
            self.machine.run("nft", "-f", "-", spaces="n", data=rules.encode())

    def _ip(self, *lines: str) -> None:
        _batch(self.machine, lines)


def _port(machine: Machine) -> str:
    return f"p-{machine.name}"


def _batch(machine: Machine, lines: list[str] | tuple[str, ...]) -> None:
    machine.run("ip", "-batch", "-", spaces="n", data=("\n".join(lines) + "\n").encode())
