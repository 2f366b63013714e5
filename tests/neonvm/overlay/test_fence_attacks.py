"""Attacks on the flat network, with real bridges, tunnels and nftables (needs root)."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator

import pytest

from deploy.neonvm.addressing import RETURNED_MAC, flat_mac
from deploy.neonvm.network import netns
from deploy.neonvm.network.announcement import announcement
from deploy.neonvm.overlay.endpoints import client_claim
from protocol.kubernetes.resources import IP_ADDRESSES, MIGRATIONS
from tests.neonvm.overlay.flat_world import (
    ADDRESSES,
    ARP,
    EVERYBODY,
    IP,
    IPV6,
    PREFIX,
    FlatWorld,
    arp,
    flat_world,
    frame,
    inside,
    ip,
    ipv4,
    mac,
    packet,
    question,
    raw_udp_from,
    tunnelled,
    udp_from,
)

pytestmark = pytest.mark.root
ONE, TWO, THREE, CLIENT = "10.111.0.1", "10.111.0.2", "10.111.0.3", "10.111.255.254"


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FlatWorld]:
    async with flat_world(monkeypatch) as made:
        yield made


def leads_to(node: str, address: str) -> str:
    """The node behind a MAC in the tunnel of ``node``; empty if there is none."""
    lines = inside(node, "bridge", "fdb", "show", "dev", "neonvm-vxlan").splitlines()
    found = [
        line.split(" dst ")[1].split()[0] for line in lines if line.startswith(flat_mac(address)) and " dst " in line
    ]
    return ",".join(found)


async def test_vms_of_a_namespace_reach_each_other(world: FlatWorld) -> None:
    one, two = await world.both()
    one.send(question(ONE, TWO), packet(ONE, TWO))
    assert await two.heard() == [question(ONE, TWO), packet(ONE, TWO)]
    answer = frame(flat_mac(ONE), flat_mac(TWO), ARP, arp((flat_mac(TWO), TWO), (flat_mac(ONE), ONE), 2))
    two.send(answer, packet(TWO, ONE))
    assert await one.heard() == [answer, packet(TWO, ONE)]


async def test_namespaces_are_isolated(world: FlatWorld) -> None:
    """Across nodes and on one node, for any receiver that the frame names."""
    one, two = await world.both(same_space=False)
    world.vm("bank/three", "a", THREE)
    await world.renew()
    three = await world.guest("bank/three", "a", THREE)
    await world.heard_nothing_more()
    for target in (TWO, THREE):
        mixed = frame(flat_mac(target), flat_mac(ONE), IP, ipv4(ONE, ONE))
        one.send(question(ONE, target), packet(ONE, target), mixed)
        one.send(frame(flat_mac(target), flat_mac(ONE), ARP, arp((flat_mac(ONE), ONE), (flat_mac(target), ONE), 2)))
    assert (await two.heard(), await three.heard()) == ([], [])
    two.send(packet(TWO, THREE))
    assert await three.heard() == [packet(TWO, THREE)]


async def test_namespaces_may_be_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    async with flat_world(monkeypatch, isolated=False) as world:
        one, two = await world.both(same_space=False)
        one.send(packet(ONE, TWO))
        assert await two.heard() == [packet(ONE, TWO)]


async def test_guest_sends_nothing_as_another(world: FlatWorld) -> None:
    """Theft of an address by ARP, of a MAC, of an IP; frames other than ARP and IPv4; tags."""
    one, two = await world.both()
    world.vm("shop/three", "a", THREE)
    await world.renew()
    three = await world.guest("shop/three", "a", THREE)
    await world.heard_nothing_more()
    own, its, everybody = flat_mac(THREE), flat_mac(TWO), EVERYBODY
    three.send(
        frame(everybody, own, ARP, arp((own, TWO), (everybody, TWO))),
        frame(everybody, own, ARP, arp((own, TWO), (everybody, ONE), 2)),
        frame(flat_mac(ONE), own, ARP, arp((own, TWO), (flat_mac(ONE), ONE), 2)),
        frame(flat_mac(ONE), own, ARP, arp((its, THREE), (flat_mac(ONE), ONE), 2)),
        frame(everybody, its, ARP, arp((its, TWO), (everybody, ONE))),
        frame(flat_mac(ONE), its, IP, ipv4(TWO, ONE)),
        frame(flat_mac(ONE), own, IP, ipv4(TWO, ONE)),
        frame(flat_mac(ONE), its, IP, ipv4(THREE, ONE)),
        frame(flat_mac(ONE), RETURNED_MAC, IP, ipv4(TWO, ONE)),
        frame(everybody, own, IP, ipv4(THREE, "255.255.255.255")),
        frame(flat_mac(ONE), own, IP, ipv4(THREE, ONE, port=67)),
        frame("01:00:5e:00:00:fb", own, IP, ipv4(THREE, "224.0.0.251")),
        frame("01:80:c2:00:00:0e", own, IPV6, bytes(60)),
        frame(flat_mac(ONE), own, IPV6, bytes(60)),
        frame(flat_mac(ONE), own, 0x88B5, bytes(60)),
        frame(flat_mac(ONE), own, 0x8100, bytes.fromhex("00010800") + ipv4(THREE, ONE)),
        frame(flat_mac(ONE), own, 0x88A8, bytes.fromhex("00010800") + ipv4(THREE, ONE)),
        frame("01:80:c2:00:00:00", its, 0x0027, bytes(60)),
        frame("01:80:c2:00:00:0e", its, 0x88CC, bytes(60)),
        announcement(its),
    )
    assert await one.heard() == []
    assert await two.heard() == []
    one.send(packet(ONE, TWO))
    assert (await two.heard(), await three.heard()) == ([packet(ONE, TWO)], [])


@pytest.mark.parametrize(
    "forged", [packet(TWO, ONE), announcement(flat_mac(TWO)), packet(ONE, TWO)], ids=["ip", "rarp", "own"]
)
async def test_stranger_packets_teach_the_tunnel_nothing(world: FlatWorld, forged: bytes) -> None:
    """One packet to the tunnel's port used to take over a VM's MAC: from a stranger, from a pod that its node
    masquerades, and from a pod that forges a node's address.
    """
    one, two = await world.both()
    packets = tunnelled(forged)
    for node, address in ADDRESSES.items():
        for place in ("stranger", "pod"):
            udp_from(place, address, packets)
            for sender in ("10.9.0.77", *ADDRESSES.values()):
                if place == "pod" or sender == "10.9.0.77":
                    raw_udp_from(place, sender, address, packets)
        assert node
    assert (await one.heard(), await two.heard()) == ([], [])
    assert (leads_to("a", TWO), leads_to("b", ONE)) == (ADDRESSES["b"], ADDRESSES["a"])
    one.send(packet(ONE, TWO))
    assert await two.heard() == [packet(ONE, TWO)]


async def test_node_claims_no_vm_of_another_node(world: FlatWorld) -> None:
    """Nor does an attacker with a forged node address: a VM's frames are accepted only from its node."""
    one, _ = await world.both()
    world.vm("shop/three", "a", THREE)
    await world.renew()
    three = await world.guest("shop/three", "a", THREE)
    raw_udp_from("stranger", ADDRESSES["b"], ADDRESSES["a"], tunnelled(packet(THREE, ONE)))
    assert (await one.heard(), leads_to("a", THREE)) == ([], "")
    one.send(packet(ONE, THREE))
    assert await three.heard() == [packet(ONE, THREE)]


@pytest.mark.parametrize(("underlay", "arrives"), [((), False), (("back0",), True)])
async def test_nodes_may_be_joined_by_another_interface(
    monkeypatch: pytest.MonkeyPatch, underlay: tuple[str, ...], arrives: bool
) -> None:
    """WireGuard of a cluster network: packets arrive on its interface, and return on the usual one."""
    async with flat_world(monkeypatch, underlay=underlay) as world:
        one, _ = await world.both()
        ip(f"link add eth1 netns {PREFIX}b type veth peer name back0 netns {PREFIX}a")
        inside("a", "ip", "-batch", "-", given="address add 10.8.0.1/24 dev back0\nlink set back0 up\n")
        inside("a", "sysctl", "-qw", "net.ipv4.conf.back0.rp_filter=0")
        way = "address add 10.8.0.2/24 dev eth1\nlink set eth1 up\nroute add 10.9.0.1/32 dev eth1 src 10.9.0.2\n"
        inside("b", "ip", "-batch", "-", given=way)
        udp_from("b", ADDRESSES["a"], tunnelled(packet(TWO, ONE)))
        assert (await one.heard() == [packet(TWO, ONE)]) == arrives


async def test_guest_does_not_reach_its_node(world: FlatWorld) -> None:
    """Frames for a group of 802.1D are handed to the node past the bridge's rules."""
    one, _ = await world.both()
    bridge = inside("a", "cat", "/sys/class/net/neonvm0/address").strip()
    with netns.call_in(f"{PREFIX}a", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as node:
        node.bind(("0.0.0.0", 1001))
        node.setblocking(False)
        for target in (*ADDRESSES.values(), "224.0.0.1"):
            asked = arp((flat_mac(ONE), ONE), ("00:00:00:00:00:00", target))
            for to in (bridge, EVERYBODY, "01:80:c2:00:00:00", "01:80:c2:00:00:0e"):
                one.send(frame(to, flat_mac(ONE), IP, ipv4(ONE, target)), frame(to, flat_mac(ONE), ARP, asked))
        assert await one.heard() == []
        with pytest.raises(BlockingIOError):
            node.recv(100)


async def test_guest_fills_no_table_of_connections(world: FlatWorld) -> None:
    """Neither by frames that br_netfilter passes to the node, nor by the tunnel's ports, which depend on the frames."""
    one, two = await world.both()
    one.send(*(frame(flat_mac(TWO), flat_mac(ONE), IP, ipv4(ONE, TWO, port=port)) for port in range(2000, 2300)))
    assert len(await two.heard()) == 300
    counts = [int(inside(node, "sysctl", "-n", "net.netfilter.nf_conntrack_count")) for node in ADDRESSES]
    assert max(counts) < 20


async def test_broadcasts_of_a_guest_are_bounded(world: FlatWorld) -> None:
    one, two = await world.both()
    began = time.monotonic()
    for _ in range(1000):
        one.send(question(ONE, TWO))
    took = time.monotonic() - began
    assert 50 <= len(await two.heard()) <= 200 + 50 * took
    one.send(packet(ONE, TWO))
    assert await two.heard() == [packet(ONE, TWO)]


async def test_unknown_mac_is_found_without_flooding_others(world: FlatWorld) -> None:
    """A frame for a MAC that no bridge has learned used to go to everyone."""
    one, two = await world.both()
    world.vm("shop/three", "b", THREE)
    await world.renew()
    three = await world.guest("shop/three", "b", THREE)
    one.send(packet(ONE, THREE))
    assert (await two.heard(), await three.heard()) == ([], [packet(ONE, THREE)])


async def test_vm_that_moves_is_followed_at_once(world: FlatWorld) -> None:
    """Only by its announcement, without a sync in between. Frames that its source returns arrive too."""
    one, two = await world.both()
    status = {"phase": "Running", "sourceNode": "b", "targetNode": "a", "targetPodName": "two-2"}
    names = {"namespace": "shop", "name": "move", "uid": "m1"}
    world.store(MIGRATIONS, {"metadata": names, "spec": {"vmName": "two"}, "status": status})
    await world.renew()
    target = await world.guest("shop/two", "a", TWO, "two-2", ("VirtualMachineMigration", "m1"))
    one.send(packet(ONE, TWO))
    assert (await two.heard(), await target.heard()) == ([packet(ONE, TWO)], [])
    target.send(announcement(flat_mac(TWO)))
    assert await two.heard() == [announcement(flat_mac(TWO))]
    returned = frame(flat_mac(TWO), RETURNED_MAC, IP, ipv4(ONE, TWO))
    two.send(returned)
    one.send(packet(ONE, TWO))
    assert sorted(await target.heard()) == sorted([returned, packet(ONE, TWO)])
    world.store(MIGRATIONS, {"metadata": names, "spec": {"vmName": "two"}, "status": {**status, "phase": "Succeeded"}})
    world.vm("shop/two", "a", TWO)
    await world.renew()
    two.send(announcement(flat_mac(TWO)), packet(TWO, ONE))
    assert await one.heard() == []
    target.send(packet(TWO, ONE))
    assert await one.heard() == [packet(TWO, ONE)]


async def test_fence_comes_back_after_a_flush(world: FlatWorld) -> None:
    """Reloading a node's firewall removes all tables. MACs learned before the fence is back are removed, too."""
    one, two = await world.both()
    inside("a", "nft", "flush", "ruleset")
    udp_from("stranger", ADDRESSES["a"], tunnelled(packet(TWO, ONE)))
    assert await one.heard() == [packet(TWO, ONE)]
    assert leads_to("a", TWO) == "10.9.0.66"
    await world.renew()
    assert leads_to("a", TWO) == ADDRESSES["b"]
    one.send(packet(ONE, TWO))
    assert await two.heard() == [packet(ONE, TWO)]
    udp_from("stranger", ADDRESSES["a"], tunnelled(packet(TWO, ONE)))
    assert await one.heard() == []


async def test_client_of_an_administrator_reaches_all_namespaces(world: FlatWorld) -> None:
    world.store(IP_ADDRESSES, client_claim(CLIENT, "a"))
    one, two = await world.both(same_space=False)
    ip(f"link add eth1 netns {PREFIX}pod address {flat_mac(CLIENT)} type veth peer name client0 netns {PREFIX}a")
    inside("a", "ip", "link", "set", "client0", "master", "neonvm0", "up")
    inside("pod", "ip", "-batch", "-", given=f"address add {CLIENT}/16 dev eth1\nlink set eth1 up\n")
    for guest in (one, two):
        udp_from("pod", guest.address, b"hello")
        assert question(CLIENT, guest.address) in await guest.heard()
        own, its = (flat_mac(guest.address), guest.address), (flat_mac(CLIENT), CLIENT)
        guest.send(frame(its[0], own[0], ARP, arp(own, its, 2)))
        assert any(mac(its[0]) == each[6:12] and each[12:14] == b"\x08\x00" for each in await guest.heard())


async def test_pod_that_no_vm_names_gets_no_tap(world: FlatWorld) -> None:
    """A pod's creator sets its owners and labels. A migration counts if it exists, belongs to this VM, and names this
    pod as its target.
    """
    world.vm("shop/one", "a", ONE)
    world.vm("shop/two", "a", TWO)
    status = {"phase": "Running", "sourceNode": "a", "targetNode": "a", "targetPodName": "two-2"}
    names = {"namespace": "shop", "name": "move", "uid": "m1"}
    world.store(MIGRATIONS, {"metadata": names, "spec": {"vmName": "two"}, "status": status})
    await world.renew()
    for pod, owner in (
        ("one-9", ("VirtualMachine", "uid-shop-one")),
        ("one-8", ("VirtualMachineMigration", "m1")),
        ("two-2", ("VirtualMachineMigration", "invented")),
    ):
        with pytest.raises(TimeoutError):
            await world.guest(f"shop/{pod[:3]}", "a", "", pod, owner, patience=2.0)
    assert inside("a", "ip", "-o", "link", "show", "type", "tun") == ""
