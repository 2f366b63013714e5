"""Loopback ports of the machine that lead into a real cluster: to pods and nodes, and to VMs on their flat network."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Final

from deploy.local.kubernetes.plan.cluster_plan import VM_RANGE, VM_RANGE_MTU, VM_VISITOR
from deploy.neonvm.network.forwarder import Forwarder
from deploy.neonvm.network.namespaces import NamespaceNetwork
from deploy.neonvm.overlay.fence import BRIDGE
from deploy.neonvm.ports import NetworkError


class ExposedCluster:
    """Opened ports stay open until ``close``. The way to VMs begins at ``node``, which must run."""

    def __init__(self, network: NamespaceNetwork, node: str) -> None:
        self._network = network
        self._node = node
        self._to_vms = Forwarder(network.connect_joined)

    async def expose(self, target: str, port: int) -> int:
        """The port that leads to ``target:port``. Raises ``NetworkError``, and ``ValueError`` for no address."""
        # A VM is reached at its own address, which it keeps when it moves; a way through its pod ends with the pod.
        if IPv4Address(target) not in VM_RANGE:
            return await self._network.expose(target, port)
        try:
            # Joined at every call: the flat network may have been applied since the last one, or its node booted
            # again.
            await self._network.join(self._node, BRIDGE, f"{VM_VISITOR}/{VM_RANGE.prefixlen}", VM_RANGE_MTU)
        except NetworkError as error:
            raise NetworkError(f"{_NO_NETWORK} ({error})") from error
        return await self._to_vms.open(target, port)

    async def close(self) -> None:
        """Ends all connections to VMs and gives the ports back."""
        await self._to_vms.close()


_NO_NETWORK: Final = "the VMs' flat network is not there: kubectl apply -f deploy/kubernetes/neonvm-network.yaml"
