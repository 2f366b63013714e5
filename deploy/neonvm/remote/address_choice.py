"""Chooses addresses of the flat network for VMs (pure).

A claim is an object whose name is the address, so the API server itself never lets two VMs have one.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

from protocol.kubernetes.objects import Json, labels_of, name_of, text, uid_of
from protocol.kubernetes.resources import IP_ADDRESSES, VIRTUAL_MACHINES
from protocol.messages import ObjectName

LABEL_CLAIM: Final = "autoscaling.neon.tech/flat-network-vm"
"""On an IPAddress: the uid of the VM that has it."""


@dataclass(frozen=True, slots=True)
class AddressRange:
    """The addresses of VMs, from ``first`` to ``last``, both included."""

    first: IPv4Address
    last: IPv4Address

    @classmethod
    def parse(cls, written: str) -> AddressRange:
        """``FIRST-LAST``. Raises ``ValueError``.

        >>> AddressRange.parse("10.100.128.0-10.100.128.255").size
        256
        """
        first, _, last = written.partition("-")
        addresses = cls(IPv4Address(first), IPv4Address(last))
        if addresses.first > addresses.last:
            raise ValueError(f"the first address comes after the last one: {written}")
        return addresses

    def __contains__(self, address: str) -> bool:
        return self.first <= IPv4Address(address) <= self.last

    @property
    def size(self) -> int:
        """The number of addresses."""
        return int(self.last) - int(self.first) + 1


def own_address(vm: Json, claims: Iterable[Json]) -> str:
    """The address that the VM has by its claims; empty if it has none."""
    own_claims = [candidate for candidate in claims if labels_of(candidate).get(LABEL_CLAIM) == uid_of(vm)]
    current = text(vm, "status", "extraNetIP")
    if any(name_of(candidate).name == current for candidate in own_claims):
        return current
    # Two controllers may have made claims at once: the oldest is the VM's, the others go with the VM.
    own_claims.sort(key=lambda candidate: (text(candidate, "metadata", "creationTimestamp"), name_of(candidate).name))
    return name_of(own_claims[0]).name if own_claims else ""


def free_addresses(
    vm: Json, within: AddressRange, claimed: Collection[str], used: Collection[str] = ()
) -> Iterator[str]:
    """The addresses that the VM may have, in the order in which it tries them: the one that it has, and then those that
    are neither ``claimed`` nor ``used`` by another VM.
    """
    # Before there were claims, guests got addresses without one: the guest may use the one in its status.
    if (current := _address_of(vm)) and current not in claimed and current in within:
        yield current
    # For the same reason nobody gets an address that is in another VM's status.
    taken = {*claimed, *used, current}
    # Scattered, so that an address that was given back is not soon another VM's.
    start = zlib.crc32(uid_of(vm).encode()) % within.size
    for step in range(within.size):
        address = str(within.first + (start + step) % within.size)
        if address not in taken:
            yield address


def used_addresses(vms: Iterable[Json]) -> set[str]:
    """The addresses in the status of ``vms``."""
    return {address for vm in vms if (address := _address_of(vm))}


def _address_of(vm: Json) -> str:
    written = text(vm, "status", "extraNetIP")
    try:
        # In canonical form: it is compared with names of objects.
        return str(IPv4Address(written))
    except ValueError:
        return ""


def claim(vm: Json, address: str) -> Json:
    """The object that gives ``address`` to the VM."""
    name = name_of(vm)
    parent = {
        "group": VIRTUAL_MACHINES.group,
        "resource": VIRTUAL_MACHINES.plural,
        "namespace": name.namespace,
        "name": name.name,
    }
    return {
        "apiVersion": IP_ADDRESSES.api_version,
        "kind": IP_ADDRESSES.kind,
        "metadata": {"name": address, "labels": {LABEL_CLAIM: uid_of(vm)}},
        "spec": {"parentRef": parent},
    }


def owner_of(found: Json) -> tuple[ObjectName, str]:
    """The VM of a claim of ours: its name, and its uid, which is empty if the object is none."""
    parent = ("spec", "parentRef")
    name = ObjectName(text(found, *parent, "namespace"), text(found, *parent, "name"))
    return name, labels_of(found).get(LABEL_CLAIM, "")
