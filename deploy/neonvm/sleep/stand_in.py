"""Builds the stand-in that answers for a sleeping guest on the flat network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from deploy.neonvm.ports import GuestError, GuestSpec
from deploy.neonvm.sleep.frame_filter import SleeperAddress
from deploy.neonvm.sleep.frame_sources import HubSocket, NetworkAttachment, Tap
from deploy.neonvm.sleep.network_stand_in import NetworkStandIn
from protocol.guest.sleep import ignored_networks
from protocol.runtime.clock import Clock

_DATABASES: Final = frozenset({5432})
"""Ports whose sessions survive; the guest checks these before it sleeps."""
_USUAL_MTU: Final = 1500


def stand_in_for(spec: GuestSpec, page: bytes, clock: Clock) -> NetworkStandIn:
    """Stand-in for the guest of ``spec``; ``page`` is its last metrics page. Raises ``GuestError`` for an unsupported
    network attachment.
    """
    address = address_of(spec)
    return NetworkStandIn(address, page, clock, attachment_of(spec, address), pod_ports_of(spec))


def address_of(spec: GuestSpec) -> SleeperAddress:
    """Addresses and ports of the guest of ``spec``, and the networks that do not wake it."""
    address = SleeperAddress.of(spec.address, _DATABASES, spec.network.mtu or _USUAL_MTU)
    return replace(address, quiet_networks=ignored_networks(spec.ignores))


def pod_ports_of(spec: GuestSpec) -> list[int]:
    """Ports of the pod that QEMU forwards to the guest's database."""
    kinds = (attachment.partition(":") for attachment in spec.network.attachments)
    forwards = [forward for kind, _, value in kinds if kind == "ports" for forward in value.split(",")]
    pairs = (forward.rpartition(":")[2].split("=") for forward in forwards)
    return [int(outside) for outside, inside in pairs if int(inside) in _DATABASES]


def attachment_of(spec: GuestSpec, address: SleeperAddress) -> NetworkAttachment:
    """Network attachment of the guest of ``spec``. Raises ``GuestError`` for an unsupported kind."""
    kind, _, target = spec.network.attachments[0].partition(":")
    match kind:
        case "fd":
            return Tap(int(target), address.ip, address.mac)
        case "unix":
            return HubSocket(Path(target))
    raise GuestError(f"sleep does not support the network attachment {kind}")
