"""Which network a local cluster gets, and the reason in words: it is the first thing that people are told."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from deploy.local.network.commands import ip_in, run
from deploy.local.network.hub import HubNetwork
from deploy.local.network.loopback import LoopbackNetwork
from deploy.local.network.namespaces import NamespaceNetwork
from deploy.local.ports import ClusterNetwork, NetworkError, PodSockets


class NetworkKind(StrEnum):
    """The networks that there are; ``auto`` takes the best that works here."""

    AUTO = "auto"
    NAMESPACES = "namespaces"
    HUB = "hub"
    LOOPBACK = "loopback"


class LocalNetwork(ClusterNetwork, PodSockets, Protocol):
    """What each of them is."""


async def choose_network(kind: NetworkKind, *, real_guests: bool, cluster: str) -> LocalNetwork:
    """The network for ``cluster``; its ``description`` says what and why. Raises ``NetworkError`` for a kind that
    cannot work here, with the remedy.
    """
    match kind:
        case NetworkKind.AUTO if not real_guests:
            return LoopbackNetwork(cluster, "light guests need no network of their own")
        case NetworkKind.AUTO:
            fault = await namespaces_fault(cluster)
            if fault is None:
                return NamespaceNetwork(cluster, "this is root and the kernel offers all they need")
            return HubNetwork(cluster, f"network namespaces cannot be used: {fault}")
        case NetworkKind.NAMESPACES:
            if fault := await namespaces_fault(cluster):
                raise NetworkError(f"network namespaces cannot be used: {fault}; choose the hub instead")
            return NamespaceNetwork(cluster, "as asked")
        case NetworkKind.HUB:
            return HubNetwork(cluster, "as asked")
        case NetworkKind.LOOPBACK if real_guests:
            raise NetworkError("real guests need a network to plug into; choose namespaces, hub or auto")
        case NetworkKind.LOOPBACK:
            return LoopbackNetwork(cluster, "as asked")


async def namespaces_fault(cluster: str) -> str | None:
    """Why this machine cannot have network namespaces with bridges and taps; None where it can: it is tried."""
    if os.geteuid() != 0:
        return "this is not root"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun (modprobe tun)"
    trial = f"autoscale.{cluster}.trial"
    try:
        await run("ip", "netns", "add", trial)
        try:
            await ip_in(
                trial, "link add br0 type bridge", "tuntap add t0 mode tap", "link add v0 type veth peer name v1"
            )
        finally:
            await run("ip", "netns", "del", trial)
    except NetworkError as error:
        return str(error)
    return None
