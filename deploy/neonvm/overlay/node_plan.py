"""What a node's part of the flat network consists of, and what has to be changed for it (pure).

A bridge joins the taps of the node's VMs with one VXLAN device. What is for everybody, or for a VM that no frame has
come from yet, goes to every other node; the device learns the rest from what arrives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from protocol.kubernetes.objects import Json, items, name_of, text

BRIDGE: Final = "neonvm0"
TUNNEL: Final = "neonvm-vxlan"
NETWORK_ID: Final = 4097
PORT: Final = 8479
"""Not VXLAN's own: the cluster's network may use that."""

_OVERHEAD: Final = 50
_EVERYBODY: Final = "00:00:00:00:00:00"
_LONGEST_NAME: Final = 15


@dataclass(frozen=True, slots=True)
class NodePlace:
    """This node: its name, its address for others, and the MTU of what is behind that address."""

    name: str
    address: str
    underlay_mtu: int

    @property
    def mtu(self) -> int:
        """The flat network's, in bytes."""
        return self.underlay_mtu - _OVERHEAD


def made_of(place: NodePlace, existing: Iterable[str]) -> list[str]:
    """The lines for ``ip -batch`` that make what is missing, and set what may have changed."""
    there = set(existing)
    made: list[str] = []
    if BRIDGE not in there:
        made.append(f"link add {BRIDGE} type bridge mcast_snooping 0")
    if TUNNEL not in there:
        tunnel = f"type vxlan id {NETWORK_ID} dstport {PORT} local {place.address}"
        made.append(f"link add {TUNNEL} {tunnel}")
    return [
        *made,
        f"link set {TUNNEL} mtu {place.mtu} master {BRIDGE} addrgenmode none up",
        f"link set {BRIDGE} mtu {place.mtu} addrgenmode none up",
    ]


def plugged_in(tap: str, mtu: int) -> list[str]:
    """The lines that plug a tap into the bridge."""
    return [f"link set {tap} mtu {mtu} master {BRIDGE} addrgenmode none up"]


def tap_name(pod_uid: str) -> str:
    """The name of a pod's tap, which no other pod's has."""
    return f"nv{hashlib.sha256(pod_uid.encode()).hexdigest()}"[:_LONGEST_NAME]


def peers(nodes: Iterable[Json], here: str) -> frozenset[str]:
    """The addresses of all other nodes, of the same family as this one's."""
    found = set()
    for node in nodes:
        if name_of(node).name != here:
            found |= {text(each, "address") for each in items(node, "status", "addresses") if _is_internal(each)}
    return frozenset(each for each in found if _is_v4(each))


def _is_internal(address: Mapping[str, object]) -> bool:
    return address.get("type") == "InternalIP"


def _is_v4(address: str) -> bool:
    try:
        return ip_address(address).version == 4
    except ValueError:
        return False


def forwarding(present: Iterable[Mapping[str, object]], wanted: frozenset[str]) -> list[str]:
    """The lines for ``bridge -batch`` that make what goes to everybody go to ``wanted``, and to no other node."""
    has = {str(each["dst"]) for each in present if each.get("mac") == _EVERYBODY and "dst" in each}
    entry = f"fdb {{verb}} {_EVERYBODY} dev {TUNNEL} dst {{peer}}"
    added = [entry.format(verb="append", peer=each) for each in sorted(wanted - has)]
    return [*added, *(entry.format(verb="del", peer=each) for each in sorted(has - wanted))]


def rightful_address(pod: Json, vm: Json, claim_of: str) -> str:
    """The address that ``pod`` may have, by its VM and by whom the claim of that address names; empty for none."""
    uid = text(vm, "metadata", "uid")
    owners = {text(each, "kind"): text(each, "uid") for each in items(pod, "metadata", "ownerReferences")}
    is_its = owners.get("VirtualMachine") == uid or "VirtualMachineMigration" in owners
    address = text(vm, "status", "extraNetIP")
    return address if is_its and uid and claim_of == uid and _is_v4(address) else ""
