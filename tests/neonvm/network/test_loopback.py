"""The network of loopback addresses: one block per cluster, one address per pod."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from deploy.neonvm.network.chooser import NetworkKind, choose_network
from deploy.neonvm.network.loopback import LoopbackBlock, LoopbackNetwork
from deploy.neonvm.ports import NetworkError, PodNetwork
from protocol.messages import ObjectName

POD = ObjectName("default", "vm-1-pod")
VM = ObjectName("default", "vm-1")


@pytest.fixture
async def network() -> AsyncIterator[LoopbackNetwork]:
    made = LoopbackNetwork("test-loopback", "a test")
    await made.up()
    await made.add_node("a")
    yield made
    await made.down()


async def test_pod_keeps_its_place_while_plugged(network: LoopbackNetwork) -> None:
    place = await network.add_pod("a", POD)
    block = place.address.rsplit(".", 2)[0]
    assert place == PodNetwork(
        address=f"{block}.1.0",
        enter=(),
        guest_host=f"{block}.1.0",
        api_host=f"{block}.0.1",
        attachments=(),
        moved_ports=place.moved_ports,
    )
    assert await network.add_pod("a", POD) == place
    assert place.metrics_url == f"http://{block}.1.0:{network.port_for(9100)}/metrics"
    assert (await network.add_pod("a", VM)).address == f"{block}.1.1"
    assert await network.vm_address(VM) == await network.vm_address(VM) == f"{block}.128.0"


async def test_a_released_vm_gives_its_address_back(network: LoopbackNetwork) -> None:
    first = await network.vm_address(VM)
    await network.release_vm(VM)
    assert await network.vm_address(VM) != first


async def test_pod_address_is_reachable_from_outside(network: LoopbackNetwork) -> None:
    place = await network.add_pod("a", POD)
    listener = await network.listen(POD, 0)
    port = listener.getsockname()[1]
    with await network.connect(None, place.address, port) as caller:
        accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
        with accepted:
            assert accepted.getpeername() == caller.getsockname()
    exposed = await network.expose(place.address, port)
    reader, writer = await asyncio.open_connection("127.0.0.1", exposed)
    accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
    accepted.send(b"hello")
    accepted.close()
    assert await reader.read() == b"hello"
    writer.close()
    listener.close()


async def test_control_plane_is_where_pods_expect_it(network: LoopbackNetwork) -> None:
    place = await network.add_pod("a", POD)
    with await network.listen(None, 0) as listener:
        assert listener.getsockname()[0] == place.api_host
    assert network.control_enter() == ()


async def test_unplugged_pod_is_refused_by_name(network: LoopbackNetwork) -> None:
    for attempt in (network.connect(POD, "127.0.0.1", 1), network.listen(POD, 0)):
        with pytest.raises(NetworkError, match="default/vm-1-pod is not on the network"):
            await attempt
    with pytest.raises(NetworkError, match="to b: no such node"):
        await network.add_pod("b", POD)
    await network.remove_pod(POD)


async def test_a_removed_pod_comes_back_at_another_address(network: LoopbackNetwork) -> None:
    first = await network.add_pod("a", POD)
    await network.remove_pod(POD)
    assert (await network.add_pod("a", POD)).address != first.address


async def test_a_network_that_is_not_up_says_so() -> None:
    with pytest.raises(NetworkError, match="not up"):
        await LoopbackNetwork("test-loopback", "a test").vm_address(VM)


def test_same_named_clusters_use_different_blocks() -> None:
    first, second = LoopbackBlock.claim("same"), LoopbackBlock.claim("same")
    taken = first.address("0.1")
    assert second.address("0.1") != taken
    second.close()
    first.close()
    again = LoopbackBlock.claim("same")
    assert again.address("0.1") == taken
    again.close()


async def test_light_guests_use_loopback_with_reason() -> None:
    chosen = await choose_network(NetworkKind.AUTO, real_guests=False, cluster="test")
    assert chosen.description == ("nodes are names and pods are loopback addresses (simulated guests need no network)")
    asked = await choose_network(NetworkKind.LOOPBACK, real_guests=False, cluster="test")
    assert asked.description.endswith("(as requested)")


async def test_real_guests_cannot_be_plugged_into_loopback_addresses() -> None:
    with pytest.raises(NetworkError, match="choose namespaces, hub or auto"):
        await choose_network(NetworkKind.LOOPBACK, real_guests=True, cluster="test")
