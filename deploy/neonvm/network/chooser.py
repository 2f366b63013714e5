"""Chooses the network of a local cluster, and says why."""

from __future__ import annotations

import hashlib
import os
from enum import StrEnum

from deploy.neonvm.network.hub import HubNetwork
from deploy.neonvm.network.loopback import LoopbackNetwork
from deploy.neonvm.network.namespaces import NamespaceNetwork
from deploy.neonvm.ports import NetworkError
from deploy.neonvm.qemu.qemu_process import Qemu
from protocol.messages import ObjectName


class NetworkKind(StrEnum):
    """The networks that there are; ``auto`` takes the best that works here."""

    AUTO = "auto"
    NAMESPACES = "namespaces"
    HUB = "hub"
    LOOPBACK = "loopback"


LocalNetwork = LoopbackNetwork | NamespaceNetwork
"""A flat L2 network in which nodes hold pods, made and removed as a whole. Repeated calls of ``add_node`` and
``add_pod`` change nothing, and ``down`` removes everything, whatever state the network is in.
"""


async def choose_network(kind: NetworkKind, *, real_guests: bool, cluster: str) -> LocalNetwork:
    """The network for ``cluster``; its ``description`` says what and why. Raises ``NetworkError`` for a kind that
    cannot work here, with the remedy.
    """
    match kind:
        case NetworkKind.AUTO if not real_guests:
            return LoopbackNetwork(cluster, "simulated guests need no network of their own")
        case NetworkKind.AUTO:
            fault = await namespaces_fault(cluster)
            if fault is None:
                return NamespaceNetwork(cluster, "this is root and the kernel offers all they need")
            # The hub needs no privilege at all.
            return HubNetwork(cluster, f"network namespaces cannot be used: {fault}", Qemu())
        case NetworkKind.NAMESPACES:
            if fault := await namespaces_fault(cluster):
                raise NetworkError(f"network namespaces cannot be used: {fault}; choose the hub instead")
            return NamespaceNetwork(cluster, "as asked")
        case NetworkKind.HUB:
            return HubNetwork(cluster, "as asked", Qemu())
        case NetworkKind.LOOPBACK if real_guests:
            raise NetworkError("real guests need a network to plug into; choose namespaces, hub or auto")
        case NetworkKind.LOOPBACK:
            return LoopbackNetwork(cluster, "as asked")


async def namespaces_fault(cluster: str) -> str | None:
    """The reason why this machine cannot have network namespaces with bridges and taps; None if a trial succeeds."""
    if os.geteuid() != 0:
        return "this is not root"
    # A real network is the only proof: capabilities, kernel modules and tools may each be missing. A name from the
    # cluster's own keeps trials of two clusters apart.
    trial = NamespaceNetwork(f"trial-{hashlib.sha256(cluster.encode()).hexdigest()[:8]}", "a trial")
    try:
        await trial.up()
        await trial.add_node("node")
        await trial.add_pod("node", ObjectName("trial", "pod"))
    except NetworkError as error:
        return str(error)
    finally:
        # Also after a failure: half a network would be found by the next trial.
        await trial.down()
    return None
