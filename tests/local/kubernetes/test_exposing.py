"""Routes to addresses of a real cluster."""

from __future__ import annotations

import socket

import pytest

from deploy.local.cluster.control import ExposedCluster
from deploy.neonvm.network.namespaces import NamespaceNetwork
from deploy.neonvm.ports import NetworkError


class Network(NamespaceNetwork):
    """Records requests; ``bridge`` is the node's bridge."""

    def __init__(self, bridge: str) -> None:
        super().__init__("exposed", "a test")
        self.bridge = bridge
        self.asked: list[tuple[str, ...]] = []

    async def expose(self, target: str, port: int) -> int:
        self.asked.append(("expose", target))
        return port

    async def join(self, node: str, bridge: str, address: str, mtu: int) -> None:
        if bridge != self.bridge:
            raise NetworkError("no such device")
        self.asked.append(("join", node, address, str(mtu)))

    async def connect_joined(self, host: str, port: int) -> socket.socket:
        raise ConnectionRefusedError(host, port)


async def test_pods_and_vms_are_reachable() -> None:
    network = Network("neonvm0")
    exposed = ExposedCluster(network, "node-1")
    try:
        assert await exposed.expose("10.244.1.7", 9101) == 9101
        ports = [await exposed.expose("10.111.3.4", 5432) for _ in range(2)]
        assert ports[0] == ports[1] > 0
    finally:
        await exposed.close()
    joined = ("join", "node-1", "10.111.255.254/16", "1450")
    assert network.asked == [("expose", "10.244.1.7"), joined, joined]


async def test_missing_flat_network_says_what_to_apply() -> None:
    with pytest.raises(NetworkError, match="kubectl apply -f deploy/kubernetes/neonvm-network"):
        await ExposedCluster(Network(""), "node-1").expose("10.111.3.4", 5432)


async def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ValueError, match="db"):
        await ExposedCluster(Network(""), "node-1").expose("db", 5432)
