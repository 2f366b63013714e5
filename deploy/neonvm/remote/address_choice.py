"""Which address of the flat network a VM gets (pure).

- A claim is an object whose name is the address, so the API server itself never lets two VMs have one.
- A VM keeps the address in its status as long as it is one of ours and no other has a claim of it: its guest may use it
  without one, from before claims were made. For the same reason no VM gets an address that another has in its status.
- Of several claims of one VM, which two controllers may have made at once, the oldest is the VM's if its status has
  none of them; the others go with the VM.
- Where a VM begins to look is scattered, so that an address that was given back is not soon another VM's.
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
        found = cls(IPv4Address(first), IPv4Address(last))
        if found.first > found.last:
            raise ValueError(f"the first address comes after the last one: {written}")
        return found

    def __contains__(self, address: str) -> bool:
        return self.first <= IPv4Address(address) <= self.last

    @property
    def size(self) -> int:
        """The number of addresses."""
        return int(self.last) - int(self.first) + 1


def own_address(vm: Json, claims: Iterable[Json]) -> str:
    """The address that the VM has by its claims; empty if it has none."""
    own = [each for each in claims if labels_of(each).get(LABEL_CLAIM) == uid_of(vm)]
    said = text(vm, "status", "extraNetIP")
    if any(name_of(each).name == said for each in own):
        return said
    own.sort(key=lambda each: (text(each, "metadata", "creationTimestamp"), name_of(each).name))
    return name_of(own[0]).name if own else ""


def free_addresses(
    vm: Json, within: AddressRange, claimed: Collection[str], used: Collection[str] = ()
) -> Iterator[str]:
    """The addresses that the VM may have, in the order in which it tries them: the one that it has, and then those that
    are neither ``claimed`` nor ``used`` by another VM.
    """
    if (said := _address_of(vm)) and said not in claimed and said in within:
        yield said
    taken = {*claimed, *used, said}
    start = zlib.crc32(uid_of(vm).encode()) % within.size
    for step in range(within.size):
        address = str(within.first + (start + step) % within.size)
        if address not in taken:
            yield address


def used_addresses(vms: Iterable[Json]) -> set[str]:
    """The addresses in the status of ``vms``."""
    return {found for each in vms if (found := _address_of(each))}


def _address_of(vm: Json) -> str:
    said = text(vm, "status", "extraNetIP")
    try:
        return str(IPv4Address(said))
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
