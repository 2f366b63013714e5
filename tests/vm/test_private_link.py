"""A neighbour on the flat network that sends packets for a guest's private address to the guest (S3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.neonvm.addressing import DAEMON_PORT, LINK_GUEST, METRICS_PORT, MONITOR_PORT, THAW_PORT
from deploy.neonvm.network.chooser import NetworkKind
from deploy.neonvm.network.namespaces import NamespaceNetwork
from tests.vm.guests import POD, Booted, booted

pytestmark = [pytest.mark.vm, pytest.mark.root]


async def accepts(vm: Booted, port: int, *, from_pod: bool = False) -> bool:
    """Return True if the guest accepts a connection to its private address; False if it refuses."""
    try:
        (await vm.network.connect(POD if from_pod else None, LINK_GUEST, port)).close()
    except ConnectionRefusedError:
        return False
    return True


async def test_neighbour_reaches_no_port_of_private_link(tmp_path: Path) -> None:
    """Linux accepts packets for the address of one interface on every other. The daemon sets passwords."""
    ports = DAEMON_PORT, THAW_PORT, MONITOR_PORT
    async with booted(NetworkKind.NAMESPACES, tmp_path) as vm:
        assert isinstance(vm.network, NamespaceNetwork)
        await vm.network.configure(None, f"route add {LINK_GUEST}/32 via {vm.spec.address}")
        assert await accepts(vm, METRICS_PORT), "the packets arrive: the guest's metrics are public"
        assert [await accepts(vm, port) for port in ports] == [False, False, False]
        assert [await accepts(vm, port, from_pod=True) for port in ports] == [True, True, True]
