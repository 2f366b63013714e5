"""Commands that create and update the flat network's links and forwarding entries on one node (pure).

A bridge connects the taps of the node's VMs with one VXLAN device. Both learn MACs, but only from frames that pass the
filter: the MAC of a migrated VM is relearned immediately, and no other VM can claim it.
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
# MAC of the VXLAN device's FDB entries for broadcast and unknown destinations.
_DEFAULT_MAC: Final = "00:00:00:00:00:00"
# IFNAMSIZ without the terminating zero.
_LONGEST_NAME: Final = 15


@dataclass(frozen=True, slots=True)
class OverlayNode:
    """This node: its name, its IP, and the MTU of the interface with that IP."""

    name: str
    address: str
    underlay_mtu: int

    @property
    def mtu(self) -> int:
        """MTU of the flat network, in bytes."""
        return self.underlay_mtu - _OVERHEAD


def create_links(node: OverlayNode, existing: Iterable[str]) -> list[str]:
    """Commands for ``ip -batch`` that create bridge and tunnel unless they exist, and set their options."""
    links = set(existing)
    additions: list[str] = []
    if BRIDGE not in links:
        # Without a querier, multicast snooping would drop groups.
        additions.append(f"link add {BRIDGE} type bridge mcast_snooping 0")
    if TUNNEL not in links:
        tunnel = f"type vxlan id {NETWORK_ID} dstport {PORT} local {node.address}"
        additions.append(f"link add {TUNNEL} {tunnel}")
    return [
        *additions,
        f"link set {TUNNEL} mtu {node.mtu} master {BRIDGE} addrgenmode none arp off",
        # Do not send frames with unknown destinations to every node.
        f"link set {TUNNEL} type bridge_slave flood off mcast_flood off",
        f"link set {TUNNEL} up",
        f"link set {BRIDGE} mtu {node.mtu} addrgenmode none arp off",
        # Link-local frames are dropped by the filter; do not learn from them either.
        f"link set {BRIDGE} type bridge no_linklocal_learn 1",
        f"link set {BRIDGE} up",
    ]


def set_alias(tap: str, address: str, owner: str) -> list[str]:
    """Commands that store a tap's IP and VM (the uid ``owner``), where they survive a restart of this program."""
    # The VM in a name of its own: an older release, after a rollback, takes all of the alias for the IP.
    return [f"link set {tap} alias {address}", f"link property add dev {tap} altname {tap}-{owner}"]


def attach_tap(tap: str, mtu: int) -> list[str]:
    """Commands that attach a tap to the bridge."""
    # Up last: an interface that is up before `addrgenmode none` gets an IPv6 address.
    return [f"link set {tap} mtu {mtu} master {BRIDGE} addrgenmode none arp off", f"link set {tap} up"]


def tap_addresses(links: Iterable[Mapping[str, object]], owners: Mapping[str, str]) -> dict[str, str]:
    """The IP of each tap of this node; without taps that have none, or whose VM no longer owns it. ``owners`` are the
    uids of the VMs that own IPs.
    """
    taps = dict[str, str]()
    for link in links:
        name, address, others = str(link.get("ifname")), str(link.get("ifalias", "")), link.get("altnames", [])
        # Our names have the maximum length; other interfaces may have the same prefix.
        is_tap = len(name) == _LONGEST_NAME and name.startswith(TAP_PREFIX)
        vm_names = [other for other in others if other.startswith(f"{name}-")] if isinstance(others, list) else []
        # The pod of a deleted VM may still run, and its tap must not become the tap of the IP's next VM. Taps of older
        # releases do not name their VM.
        if is_tap and address and (not vm_names or f"{name}-{owners.get(address)}" in vm_names):
            taps[name] = address
    return taps


def tap_name(pod_uid: str) -> str:
    """The unique name of a pod's tap."""
    return f"{TAP_PREFIX}{hashlib.sha256(pod_uid.encode()).hexdigest()}"[:_LONGEST_NAME]


def peers(nodes: Iterable[Json], here: str) -> dict[str, frozenset[str]]:
    """The IPv4 addresses of the other nodes, by node name."""
    return {
        name_of(node).name: frozenset(
            address
            for entry in items(node, "status", "addresses")
            if text(entry, "type") == "InternalIP" and is_v4(address := text(entry, "address"))
        )
        for node in nodes
        if name_of(node).name != here
    }


def fdb_changes(
    entries: Iterable[Mapping[str, object]],
    peers: Mapping[str, frozenset[str]],
    endpoints: Iterable[Endpoint],
    here: str,
) -> list[str]:
    """Commands for ``bridge -batch`` that change the FDB from ``entries``, so that frames for each of ``endpoints`` go
    to its nodes. ``here`` is this node.
    """
    tunnel, ports = _tables(entries)
    all_peers = frozenset(address for addresses in peers.values() for address in addresses)
    lines = _flooding(tunnel.pop(_DEFAULT_MAC, set()), all_peers)
    desired = {flat_mac(endpoint.address): endpoint.nodes for endpoint in endpoints}
    for mac in sorted(tunnel.keys() | desired.keys()):
        nodes = desired.get(mac, ())
        allowed = [address for node in nodes if node != here for address in sorted(peers.get(node, ()))]
        current = tunnel.get(mac, set())
        # Keep learned entries that the API objects confirm: they follow a migrated VM immediately.
        lines += [f"fdb del {mac} dev {TUNNEL} dst {stale} self" for stale in sorted(current - {*allowed})]
        if allowed and not current & {*allowed}:
            # `dynamic`: learning may replace the entry when the VM is migrated.
            lines.append(f"fdb append {mac} dev {TUNNEL} dst {allowed[0]} self dynamic")
    for mac in sorted(ports.keys() | desired.keys()):
        nodes = desired.get(mac, ())
        if mac not in ports and nodes and nodes[0] in peers:
            # The bridge does not flood unknown MACs into the tunnel.
            lines.append(f"fdb add {mac} dev {TUNNEL} master static")
        if ports.get(mac) == TUNNEL and not any(node != here for node in nodes):
            # The VM is deleted or local.
            lines.append(f"fdb del {mac} dev {TUNNEL} master")
    return lines


def _flooding(current: Set[str], desired: Set[str]) -> list[str]:
    template = f"fdb {{verb}} {_DEFAULT_MAC} dev {TUNNEL} dst {{peer}} self"
    added = [template.format(verb="append", peer=peer) for peer in sorted(desired - current)]
    return [*added, *(template.format(verb="del", peer=peer) for peer in sorted(current - desired))]


def _tables(entries: Iterable[Mapping[str, object]]) -> tuple[dict[str, set[str]], dict[str, str]]:
    """The node IPs of each MAC in the tunnel's FDB, and the port of each MAC in the bridge's FDB."""
    tunnel, ports = dict[str, set[str]](), dict[str, str]()
    for entry in entries:
        mac = str(entry.get("mac"))
        if mac == RETURNED_MAC:
            continue  # never a destination
        if "dst" in entry:
            tunnel.setdefault(mac, set()).add(str(entry["dst"]))
        # Permanent entries are the interfaces' own MACs.
        elif entry.get("master") == BRIDGE and entry.get("state") != "permanent":
            ports[mac] = str(entry.get("ifname"))
    return tunnel, ports
