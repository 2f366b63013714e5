"""Two nodes with their parts of the flat network, a stranger on their underlay, and a pod, all as network
namespaces.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from ipaddress import IPv4Address

import pytest

from deploy.kube.client import ApiClient
from deploy.kube.informer import Informer
from deploy.neonvm import tap
from deploy.neonvm.addressing import flat_mac
from deploy.neonvm.network import commands, netns
from deploy.neonvm.overlay import node_network
from deploy.neonvm.overlay.node_network import WATCHED, NodeNetwork, NodeNetworkDependencies
from deploy.neonvm.overlay.node_plan import OverlayNode
from protocol.kubernetes.objects import Json, name_of
from protocol.kubernetes.resources import IP_ADDRESSES, NAMESPACES, NODES, PODS, VIRTUAL_MACHINES, Resource
from protocol.messages import ObjectName
from tests.fake_clock import FakeClock
from tests.neonvm.in_process import InProcess

PREFIX = "flat-test."
SETTLED = 0.1
"""Seconds in which a frame reaches everyone whom it may reach."""
PATIENCE = 30.0
EVERYBODY = "ff:ff:ff:ff:ff:ff"
STRANGER, POD = "10.9.0.66", "10.244.1.2"
ADDRESSES = {"a": "10.9.0.1", "b": "10.9.0.2"}
IP, ARP, RARP, IPV6 = 0x0800, 0x0806, 0x8035, 0x86DD
_HEADER = bytes(10)  # of a tap with offloads
_here: ContextVar[str] = ContextVar("_here")


def mac(written: str) -> bytes:
    return bytes.fromhex(written.replace(":", ""))


def frame(to: str, sender: str, kind: int, payload: bytes) -> bytes:
    return mac(to) + mac(sender) + kind.to_bytes(2, "big") + payload


def arp(sender: tuple[str, str], target: tuple[str, str], operation: int = 1) -> bytes:
    """A payload of ARP; ``sender`` and ``target`` are MAC and address."""
    ends = b"".join(mac(each[0]) + IPv4Address(each[1]).packed for each in (sender, target))
    return bytes.fromhex("00010800060400") + bytes([operation]) + ends


def ipv4(sender: str, receiver: str, words: bytes = b"hello", port: int = 1000) -> bytes:
    """A payload of IPv4 with UDP."""
    ends = IPv4Address(sender).packed + IPv4Address(receiver).packed
    udp = port.to_bytes(2, "big") + bytes.fromhex("03e9") + (8 + len(words)).to_bytes(2, "big") + bytes(2) + words
    head = bytes.fromhex("4500") + (20 + len(udp)).to_bytes(2, "big") + bytes.fromhex("000000004011")
    return head + _checksum(head + ends) + ends + udp


def _checksum(words: bytes) -> bytes:
    total = sum(int.from_bytes(words[at : at + 2], "big") for at in range(0, len(words), 2))
    return (0xFFFF - (total % 0xFFFF)).to_bytes(2, "big")


def packet(sender: str, receiver: str, words: bytes = b"hello") -> bytes:
    """A whole frame between two VMs."""
    return frame(flat_mac(receiver), flat_mac(sender), IP, ipv4(sender, receiver, words))


def question(sender: str, target: str) -> bytes:
    """An ARP request."""
    return frame(EVERYBODY, flat_mac(sender), ARP, arp((flat_mac(sender), sender), ("00:00:00:00:00:00", target)))


@dataclass
class Guest:
    """A guest that sends arbitrary frames."""

    address: str
    tap: int

    def send(self, *frames: bytes) -> None:
        for each in frames:
            os.write(self.tap, _HEADER + each)

    async def heard(self) -> list[bytes]:
        """The frames received since the last call."""
        await asyncio.sleep(SETTLED)
        found = []
        while True:
            try:
                found.append(os.read(self.tap, 4096)[len(_HEADER) :])
            except BlockingIOError:
                return found


def uid_of_vm(name: str) -> str:
    """Like a real UID, it may be part of an interface's name."""
    return f"uid-{name.replace('/', '-')}"


@dataclass
class FlatWorld:
    """``networks`` are the nodes' programs; ``caches`` are their caches."""

    client: ApiClient
    caches: dict[Resource, Informer]
    networks: dict[str, NodeNetwork] = field(default_factory=dict)
    guests: list[Guest] = field(default_factory=list)
    places: dict[str, ObjectName] = field(default_factory=dict)

    def store(self, kind: Resource, found: Json) -> None:
        self.caches[kind]._facts.learn(found, reread=True)

    def vm(self, name: str, node: str, address: str) -> None:
        """A VM of the API, ``namespace/name``, with its claim."""
        space, _, own = name.partition("/")
        status = {"extraNetIP": address, "node": node, "podName": f"{own}-1"}
        self.store(
            VIRTUAL_MACHINES, {"metadata": {"namespace": space, "name": own, "uid": uid_of_vm(name)}, "status": status}
        )
        parent = {"group": "vm.neon.tech", "resource": "virtualmachines", "namespace": space, "name": own}
        labels = {"autoscaling.neon.tech/flat-network-vm": uid_of_vm(name)}
        self.store(IP_ADDRESSES, {"metadata": {"name": address, "labels": labels}, "spec": {"parentRef": parent}})

    async def renew(self) -> None:
        for node, network in self.networks.items():
            _here.set(PREFIX + node)
            await network.renew()
            network.reason = ""

    async def guest(
        self,
        name: str,
        node: str,
        address: str,
        pod: str = "",
        owner: tuple[str, str] = ("", ""),
        *,
        patience: float = PATIENCE,
    ) -> Guest:
        """The guest of a VM's object, attached on ``node`` as any pod is."""
        space, _, own = name.partition("/")
        kind, uid = owner if owner[0] else ("VirtualMachine", uid_of_vm(name))
        metadata: Json = {
            "name": pod or f"{own}-1",
            "labels": {"vm.neon.tech/name": own},
            "ownerReferences": [{"apiVersion": "vm.neon.tech/v1", "kind": kind, "name": own, "uid": uid}],
        }
        spec: Json = {"nodeName": node, "containers": [{"name": "neonvm-runner", "image": "x"}]}
        made = await self.client.create(
            PODS, space, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        )
        place = f"place-{len(self.places)}"
        self.places[place] = name_of(made)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            _here.set(PREFIX + node)
            await asyncio.wait_for(self.networks[node].serve(place, theirs), patience)
            _, descriptors, _, _ = socket.recv_fds(ours, 4096, 1)
        self.guests.append(Guest(address, descriptors[0]))
        return self.guests[-1]

    async def both(self, *, same_space: bool = True) -> tuple[Guest, Guest]:
        """Guests on node a and on node b."""
        self.vm("shop/one", "a", "10.111.0.1")
        self.vm("shop/two" if same_space else "bank/two", "b", "10.111.0.2")
        await self.renew()
        one = await self.guest("shop/one", "a", "10.111.0.1")
        two = await self.guest("shop/two" if same_space else "bank/two", "b", "10.111.0.2")
        await self.heard_nothing_more()
        return one, two

    async def heard_nothing_more(self) -> None:
        """Discard the frames received so far."""
        for each in self.guests:
            await each.heard()


def ip(*lines: str) -> None:
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)


def inside(namespace: str, *command: str, given: str = "") -> str:
    """Output of a command in a namespace of the test."""
    there = ["ip", "netns", "exec", PREFIX + namespace, *command]
    done = subprocess.run(there, input=given, text=True, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def udp_from(namespace: str, receiver: str, words: bytes) -> None:
    """One datagram to the tunnel's port, with a plain socket."""
    made = netns.call_in(PREFIX + namespace, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with made:
        made.sendto(words, (receiver, 8479))


def raw_udp_from(namespace: str, sender: str, receiver: str, words: bytes) -> None:
    """The same with a forged sender, as a pod with NET_RAW can send it."""

    def make() -> socket.socket:
        return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)

    udp = (
        (40000).to_bytes(2, "big") + (8479).to_bytes(2, "big") + (8 + len(words)).to_bytes(2, "big") + bytes(2) + words
    )
    head = bytes.fromhex("4500") + (20 + len(udp)).to_bytes(2, "big") + bytes.fromhex("0000000040110000")
    with netns.call_in(PREFIX + namespace, make) as made:
        made.sendto(head + IPv4Address(sender).packed + IPv4Address(receiver).packed + udp, (receiver, 0))


def tunnelled(inner: bytes) -> bytes:
    """A frame as a node sends it through the tunnel."""
    return bytes.fromhex("08000000") + (4097 << 8).to_bytes(4, "big") + inner


@asynccontextmanager
async def flat_world(
    monkeypatch: pytest.MonkeyPatch, *, isolated: bool = True, underlay: tuple[str, ...] = ()
) -> AsyncIterator[FlatWorld]:
    """Two nodes that know each other."""
    run = commands.run

    async def run_here(*command: str, lines: list[str] | tuple[str, ...] = ()) -> str:
        return await run("ip", "netns", "exec", _here.get(), *command, lines=lines)

    def opened(name: str, make: Callable[[str], int] = tap.open_tap) -> int:
        return netns.call_in(_here.get(), lambda: make(name))

    monkeypatch.setattr(node_network, "run", run_here)
    monkeypatch.setattr(node_network, "open_tap", opened)
    clock, client = FakeClock(), InProcess().client()
    world = FlatWorld(client, {kind: Informer(client, kind, clock) for kind in WATCHED})

    async def holder(place: str) -> ObjectName | None:
        return world.places.get(place)

    _remove()
    try:
        ip(f"netns add {PREFIX}switch")
        if _lacks_nftables():
            pytest.skip("this kernel has no nftables for bridged frames")
        _make()
        for node, address in ADDRESSES.items():
            status = {"addresses": [{"type": "InternalIP", "address": address}]}
            world.store(NODES, {"metadata": {"name": node}, "status": status})
            deps = NodeNetworkDependencies(client, world.caches, clock, holder, isolated, underlay)
            world.networks[node] = NodeNetwork(OverlayNode(node, address, 1500), deps)
        for space in ("shop", "bank"):
            await client.create(NAMESPACES, "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}})
        await world.renew()
        yield world
    finally:
        for each in world.guests:
            os.close(each.tap)
        _remove()


def _lacks_nftables() -> bool:
    tried = ["ip", "netns", "exec", f"{PREFIX}switch", "nft", "-f", "-"]
    rules = "table bridge trial { chain c { type filter hook input priority 0; }; }\ndelete table bridge trial\n"
    return subprocess.run(tried, input=rules, text=True, check=False, capture_output=True).returncode != 0


def _make() -> None:
    ip(*(f"netns add {PREFIX}{each}" for each in ("a", "b", "stranger", "pod")))
    inside("switch", "ip", "-batch", "-", given="link add br0 type bridge\nlink set br0 up\n")
    for name, address in (*ADDRESSES.items(), ("stranger", STRANGER)):
        _cable(name, address)
    ip(f"link add eth0 netns {PREFIX}pod type veth peer name pod0 netns {PREFIX}a")
    inside(
        "pod",
        "ip",
        "-batch",
        "-",
        given=f"address add {POD}/24 dev eth0\nlink set eth0 up\nroute add default via 10.244.1.1\n",
    )
    inside("a", "ip", "-batch", "-", given="address add 10.244.1.1/24 dev pod0\nlink set pod0 up\n")
    inside(
        "a", "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.pod0.rp_filter=0"
    )
    nat = 'type nat hook postrouting priority srcnat; oifname "eth0" ip saddr 10.244.0.0/16 masquerade;'
    masquerade = f"table ip cni {{ chain post {{ {nat} }}; }}"
    inside("a", "nft", "-f", "-", given=masquerade)


def _cable(name: str, address: str) -> None:
    ip(f"link add eth0 netns {PREFIX}{name} type veth peer name to-{name} netns {PREFIX}switch")
    inside("switch", "ip", "link", "set", f"to-{name}", "master", "br0", "up")
    inside(name, "ip", "-batch", "-", given=f"link set lo up\naddress add {address}/24 dev eth0\nlink set eth0 up\n")


def _remove() -> None:
    for each in netns.RUN.glob(f"{PREFIX}*") if netns.RUN.is_dir() else ():
        subprocess.run(["ip", "netns", "del", each.name], check=True)
