"""Chooses the network of a local cluster."""

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
    """Kinds of networks; ``auto`` chooses the best that works on this host."""

    AUTO = "auto"
    NAMESPACES = "namespaces"
    HUB = "hub"
    LOOPBACK = "loopback"


LocalNetwork = LoopbackNetwork | NamespaceNetwork
"""A flat L2 network of nodes and pods. ``add_node`` and ``add_pod`` are idempotent; ``down`` removes everything, from
any state.
"""


async def choose_network(kind: NetworkKind, *, real_guests: bool, cluster: str) -> LocalNetwork:
    """The network for ``cluster``; its ``description`` gives the reason for the choice. Raises ``NetworkError`` with a
    remedy for a kind that does not work on this host.
    """
    match kind:
        case NetworkKind.AUTO if not real_guests:
            return LoopbackNetwork(cluster, "simulated guests need no network")
        case NetworkKind.AUTO:
            fault = await namespaces_fault(cluster)
            if fault is None:
                return NamespaceNetwork(cluster, "running as root, and the kernel supports them")
            # The hub needs no privileges.
            return HubNetwork(cluster, f"network namespaces cannot be used: {fault}", Qemu())
        case NetworkKind.NAMESPACES:
            if fault := await namespaces_fault(cluster):
                raise NetworkError(f"network namespaces cannot be used: {fault}; choose the hub instead")
            return NamespaceNetwork(cluster, "as requested")
        case NetworkKind.HUB:
            return HubNetwork(cluster, "as requested", Qemu())
        case NetworkKind.LOOPBACK if real_guests:
            raise NetworkError("QEMU guests cannot use loopback addresses; choose namespaces, hub or auto")
        case NetworkKind.LOOPBACK:
            return LoopbackNetwork(cluster, "as requested")


async def namespaces_fault(cluster: str) -> str | None:
    """The reason why network namespaces with bridges and taps do not work on this host; None if a trial succeeds."""
    if os.geteuid() != 0:
        return "not running as root"
    # Even root may lack capabilities, kernel modules or tools. Named after the cluster, so that trials do not collide.
    trial = NamespaceNetwork(f"trial-{hashlib.sha256(cluster.encode()).hexdigest()[:8]}", "a trial")
    try:
        await trial.up()
        await trial.add_node("node")
        await trial.add_pod("node", ObjectName("trial", "pod"))
    except NetworkError as error:
        return str(error)
    finally:
        await trial.down()
    return None
