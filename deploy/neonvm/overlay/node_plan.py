"""The parts of the flat network on one node, and the changes that make them (pure).

A bridge joins the taps of the node's VMs with one VXLAN device. Both learn, but only from frames that the fence has let
through: a VM that moves is followed within the same instant, and nobody else can claim its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Final

from deploy.neonvm.addressing import RETURNED_MAC, flat_mac
from deploy.neonvm.overlay.endpoints import Endpoint, is_v4
from deploy.neonvm.overlay.fence import BRIDGE, PORT, TAP_PREFIX, TUNNEL
from protocol.kubernetes.objects import Json, items, name_of, text

NETWORK_ID: Final = 4097

# Bytes that VXLAN adds: outer IPv4 20, UDP 8, VXLAN 8, inner Ethernet 14.
_OVERHEAD: Final = 50
# The all-zero MAC is the kernel's entry for broadcasts and unknown receivers.
_EVERYBODY: Final = "00:00:00:00:00:00"
# IFNAMSIZ of the kernel, without the terminating zero.
_LONGEST_NAME: Final = 15


@dataclass(frozen=True, slots=True)
class OverlayNode:
    """This node: its name, its address for others, and the MTU of what is behind that address."""

    name: str
    address: str
    underlay_mtu: int

    @property
    def mtu(self) -> int:
        """The flat network's, in bytes."""
        return self.underlay_mtu - _OVERHEAD


def made_of(place: OverlayNode, existing: Iterable[str]) -> list[str]:
    """The lines for ``ip -batch`` that make what is missing, and set what may have changed."""
    there = set(existing)
    additions: list[str] = []
    if BRIDGE not in there:
        # Multicast snooping would drop groups that no querier has announced.
        additions.append(f"link add {BRIDGE} type bridge mcast_snooping 0")
    if TUNNEL not in there:
        tunnel = f"type vxlan id {NETWORK_ID} dstport {PORT} local {place.address}"
        additions.append(f"link add {TUNNEL} {tunnel}")
    return [
        *additions,
        f"link set {TUNNEL} mtu {place.mtu} master {BRIDGE} addrgenmode none arp off",
        # Frames for a MAC that the bridge lacks are not sent to every node.
        f"link set {TUNNEL} type bridge_slave flood off mcast_flood off",
        f"link set {TUNNEL} up",
        f"link set {BRIDGE} mtu {place.mtu} addrgenmode none arp off",
        # Link-local frames are dropped by the fence, and must not teach the bridge either.
        f"link set {BRIDGE} type bridge no_linklocal_learn 1",
        f"link set {BRIDGE} up",
    ]


def named(tap: str, address: str) -> list[str]:
    """The lines that note on a tap whose it is, which outlives this program."""
    return [f"link set {tap} alias {address}"]


def plugged_in(tap: str, mtu: int) -> list[str]:
    """The lines that plug a tap into the bridge."""
    # Only then up: an interface that is up before `addrgenmode none` gets an IPv6 address.
    return [f"link set {tap} mtu {mtu} master {BRIDGE} addrgenmode none arp off", f"link set {tap} up"]


def taps_in(links: Iterable[Mapping[str, object]]) -> dict[str, str]:
    """The address that is noted on each tap of this node; empty for one of an earlier version."""
    aliases = {str(link.get("ifname")): str(link.get("ifalias", "")) for link in links}
    # Only names of the exact length are ours: others may begin with the same letters.
    return {
        name: alias for name, alias in aliases.items() if len(name) == _LONGEST_NAME and name.startswith(TAP_PREFIX)
    }


def tap_name(pod_uid: str) -> str:
    """The name of a pod's tap, which no other pod's has."""
    return f"{TAP_PREFIX}{hashlib.sha256(pod_uid.encode()).hexdigest()}"[:_LONGEST_NAME]


def peers(nodes: Iterable[Json], here: str) -> dict[str, frozenset[str]]:
    """The IPv4 addresses of all nodes but this one, by the node's name."""
    return {
        name_of(node).name: frozenset(
            address
            for entry in items(node, "status", "addresses")
            if text(entry, "type") == "InternalIP" and is_v4(address := text(entry, "address"))
        )
        for node in nodes
        if name_of(node).name != here
    }


def forwarding(
    present: Iterable[Mapping[str, object]], peers: Mapping[str, frozenset[str]], found: Iterable[Endpoint], here: str
) -> list[str]:
    """The lines for ``bridge -batch`` that lead frames to where ``found`` has their receivers."""
    tunnel, ports = _tables(present)
    everybody = frozenset(address for addresses in peers.values() for address in addresses)
    # Broadcasts go to all peers.
    lines = _flooding(tunnel.pop(_EVERYBODY, set()), everybody)
    wanted = {flat_mac(endpoint.address): endpoint.nodes for endpoint in found}
    for mac in sorted(tunnel.keys() | wanted.keys()):
        nodes = wanted.get(mac, ())
        allowed = [address for node in nodes if node != here for address in sorted(peers.get(node, ()))]
        has = tunnel.get(mac, set())
        # What was learned stays if the API agrees, so that a VM that moves is followed at once.
        lines += [f"fdb del {mac} dev {TUNNEL} dst {stale} self" for stale in sorted(has - {*allowed})]
        if allowed and not has & {*allowed}:
            # `dynamic` lets the tunnel replace the entry by what it learns when the VM moves.
            lines.append(f"fdb append {mac} dev {TUNNEL} dst {allowed[0]} self dynamic")
    for mac in sorted(ports.keys() | wanted.keys()):
        nodes = wanted.get(mac, ())
        if mac not in ports and nodes and nodes[0] in peers:
            # The bridge sends no frame into the tunnel for a MAC that it lacks.
            lines.append(f"fdb add {mac} dev {TUNNEL} master static")
        if ports.get(mac) == TUNNEL and not any(node != here for node in nodes):
            # The VM is gone, or here: frames for it must not leave the node.
            lines.append(f"fdb del {mac} dev {TUNNEL} master")
    return lines


def _flooding(has: Set[str], wanted: Set[str]) -> list[str]:
    template = f"fdb {{verb}} {_EVERYBODY} dev {TUNNEL} dst {{peer}} self"
    added = [template.format(verb="append", peer=peer) for peer in sorted(wanted - has)]
    return [*added, *(template.format(verb="del", peer=peer) for peer in sorted(has - wanted))]


def _tables(present: Iterable[Mapping[str, object]]) -> tuple[dict[str, set[str]], dict[str, str]]:
    """The nodes behind each MAC in the tunnel, and the port of each MAC on the bridge that can be learned."""
    tunnel, ports = dict[str, set[str]](), dict[str, str]()
    for entry in present:
        mac = str(entry.get("mac"))
        if mac == RETURNED_MAC:
            continue  # nothing is sent to it
        if "dst" in entry:
            tunnel.setdefault(mac, set()).add(str(entry["dst"]))
        # Permanent entries are the interfaces' own MACs.
        elif entry.get("master") == BRIDGE and entry.get("state") != "permanent":
            ports[mac] = str(entry.get("ifname"))
    return tunnel, ports
