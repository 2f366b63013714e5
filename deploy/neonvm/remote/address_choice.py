"""Choice of the VMs' IPs on the flat network (pure).

A claim is an IPAddress object. Its name is the IP, so the API server prevents two VMs from having the same one.
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
"""Label of an IPAddress: the uid of its VM."""


@dataclass(frozen=True, slots=True)
class AddressRange:
    """A range of IPs, ``first`` and ``last`` included."""

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
            raise ValueError(f"the first address is after the last one: {written}")
        return addresses

    def __contains__(self, address: str) -> bool:
        return self.first <= IPv4Address(address) <= self.last

    @property
    def size(self) -> int:
        """The number of addresses."""
        return int(self.last) - int(self.first) + 1


def own_address(vm: Json, claims: Iterable[Json]) -> str:
    """The VM's claimed IP; empty if it has no claim."""
    own_claims = [candidate for candidate in claims if labels_of(candidate).get(LABEL_CLAIM) == uid_of(vm)]
    current = text(vm, "status", "extraNetIP")
    if any(name_of(candidate).name == current for candidate in own_claims):
        return current
    # Two controllers may have created claims at once: the oldest one counts. All are deleted with the VM.
    own_claims.sort(key=lambda candidate: (text(candidate, "metadata", "creationTimestamp"), name_of(candidate).name))
    return name_of(own_claims[0]).name if own_claims else ""


def free_addresses(
    vm: Json, within: AddressRange, claimed: Collection[str], used: Collection[str] = ()
) -> Iterator[str]:
    """Candidates for the VM's IP, in order: its current one, then those neither ``claimed`` nor ``used`` by others."""
    # Guests of versions without claims have an IP in their status only.
    if (current := _address_of(vm)) and current not in claimed and current in within:
        yield current
    taken = {*claimed, *used, current}
    # Start at a hash, so that released IPs are not reused soon.
    start = zlib.crc32(uid_of(vm).encode()) % within.size
    for step in range(within.size):
        address = str(within.first + (start + step) % within.size)
        if address not in taken:
            yield address


def used_addresses(vms: Iterable[Json]) -> set[str]:
    """The IPs in the status of ``vms``."""
    return {address for vm in vms if (address := _address_of(vm))}


def _address_of(vm: Json) -> str:
    written = text(vm, "status", "extraNetIP")
    try:
        # In canonical form, as in names of claims.
        return str(IPv4Address(written))
    except ValueError:
        return ""


def claim(vm: Json, address: str) -> Json:
    """The IPAddress object that claims ``address`` for the VM."""
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


def owner_of(ip_address: Json) -> tuple[ObjectName, str]:
    """The name and uid of a claim's VM; the uid is empty if the object is not a claim."""
    parent = ("spec", "parentRef")
    name = ObjectName(text(ip_address, *parent, "namespace"), text(ip_address, *parent, "name"))
    return name, labels_of(ip_address).get(LABEL_CLAIM, "")
