"""Nodes as real network namespaces: what can reach what, and that nothing is left behind (needs root)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from deploy.neonvm.addressing import flat_mac
from deploy.neonvm.network import netns
from deploy.neonvm.network.chooser import NetworkKind, choose_network
from deploy.neonvm.network.namespaces import NamespaceNetwork
from deploy.neonvm.ports import NetworkError, PodNetwork
from deploy.neonvm.tap import header_size
from protocol.messages import ObjectName

pytestmark = pytest.mark.root
VM = "10.100.128.7"
ONE, TWO = ObjectName("default", "one"), ObjectName("default", "two")


@pytest.fixture
async def network() -> AsyncIterator[NamespaceNetwork]:
    made = NamespaceNetwork("pytest", "a test")
    await made.up()
    for node in ("a", "b"):
        await made.add_node(node)
    yield made
    await made.down()
    assert remains() == []


def remains() -> list[str]:
    """The namespaces of the test's cluster."""
    return sorted(place.name for place in netns.RUN.glob("autoscale.pytest.*"))


async def output(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    return printed.decode()


async def lasting(place: PodNetwork) -> asyncio.subprocess.Process:
    """A program that runs in the pod forever, already started."""
    command = (*place.enter, "sh", "-c", "echo up; exec tail -f /dev/null")
    program = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert program.stdout is not None
    assert await program.stdout.readline() == b"up\n"
    return program


async def test_pods_and_control_plane_reach_each_other(network: NamespaceNetwork) -> None:
    one, two = await network.add_pod("a", ONE), await network.add_pod("b", TWO)
    with await network.listen(TWO, 9101) as listener:
        for caller, expected in ((ONE, one.address), (None, one.api_host)):
            with await network.connect(caller, two.address, 9101):
                accepted, peer = await asyncio.get_running_loop().sock_accept(listener)
                accepted.close()
                assert peer[0] == expected
    with await network.listen(None, 6443) as api, await network.connect(ONE, one.api_host, 6443) as caller_socket:
        accepted, peer = await asyncio.get_running_loop().sock_accept(api)
        accepted.close()
        assert peer == caller_socket.getsockname()


async def test_forwarded_port_reaches_pod(network: NamespaceNetwork) -> None:
    place = await network.add_pod("a", ONE)
    with await network.listen(ONE, 9101) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", await network.expose(place.address, 9101))
        accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
        accepted.send(b"hello")
        accepted.close()
        assert await reader.read() == b"hello"
        writer.close()


async def test_programs_run_inside_and_see_the_private_link(network: NamespaceNetwork) -> None:
    place = await network.add_pod("a", ONE)
    seen = await output(*place.enter, "ip", "-brief", "address")
    assert f"{place.address}/16" in seen
    assert "10.255.255.253/30" in seen
    assert "10.100.0.1/16" in await output(*network.control_enter(), "ip", "-brief", "address")
    assert place.metrics_url == "http://10.255.255.254:9100/metrics"


async def test_everything_may_be_repeated(network: NamespaceNetwork) -> None:
    await network.add_node("a")
    assert await network.add_pod("a", ONE) == await network.add_pod("a", ONE)
    await network.remove_pod(ONE)
    await network.remove_pod(ONE)
    again = await network.add_pod("b", ONE)
    with await network.listen(ONE, 1) as listener, await network.connect(None, again.address, 1):
        accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
        accepted.close()


async def test_a_removed_pod_takes_its_programs_with_it(network: NamespaceNetwork) -> None:
    place = await network.add_pod("a", ONE)
    program = await lasting(place)
    await network.remove_pod(ONE)
    async with asyncio.timeout(5):
        assert await program.wait() == -9


async def test_next_run_removes_crashed_runs_leftovers(network: NamespaceNetwork) -> None:
    place = await network.add_pod("a", ONE)
    program = await lasting(place)
    after_crash = NamespaceNetwork("pytest", "a test")
    await after_crash.down()
    assert remains() == []
    async with asyncio.timeout(5):
        assert await program.wait() == -9


async def test_clusters_do_not_touch_each_other(network: NamespaceNetwork) -> None:
    other = NamespaceNetwork("pytest-two", "a test")
    await other.up()
    await other.down()
    assert len(remains()) == 3


async def test_the_machines_own_network_never_changes(network: NamespaceNetwork) -> None:
    before = await output("ip", "-brief", "link")
    await network.add_pod("a", ONE)
    assert await output("ip", "-brief", "link") == before


async def test_what_is_not_there_is_refused_by_name(network: NamespaceNetwork) -> None:
    with pytest.raises(NetworkError, match="no such node"):
        await network.add_pod("c", ONE)
    for attempt in (network.connect(ONE, "10.100.0.1", 1), network.listen(ONE, 1)):
        with pytest.raises(NetworkError, match="default/one is not on the network"):
            await attempt


async def test_a_pod_that_cannot_be_made_leaves_nothing(network: NamespaceNetwork) -> None:
    await output("ip", "netns", "del", next(name for name in remains() if ".node.a." in name))
    with pytest.raises(NetworkError, match="failed"):
        await network.add_pod("a", ONE)
    assert [name for name in remains() if ".pod." in name] == []


async def test_vms_keep_their_flat_addresses(network: NamespaceNetwork) -> None:
    assert await network.vm_address(ONE) == await network.vm_address(ONE) == "10.100.128.0"
    await network.release_vm(ONE)
    assert await network.vm_address(ONE) != "10.100.128.0"


async def test_frames_follow_the_vm_at_once(network: NamespaceNetwork) -> None:
    await network.add_pod("a", ONE)
    place = await network.add_pod("b", TWO)
    mac = bytes.fromhex(flat_mac(VM).replace(":", ""))
    tap = int(place.attachments[0].removeprefix("fd:"))
    arrived = asyncio.Queue[bytes]()

    def hear() -> None:
        with suppress(BlockingIOError):
            arrived.put_nowait(os.read(tap, 4096)[header_size(tap) :])

    asyncio.get_running_loop().add_reader(tap, hear)
    with network.announcing(ONE, VM) as here, network.announcing(TWO, VM) as there:
        here()
        there()
        with netns.frames_in("autoscale.pytest.switch", "br0") as client:
            async with asyncio.timeout(10):
                frame = b""
                while not frame.startswith(mac):
                    # Again and again: the kernel may take a second to forward to a tap that was just opened.
                    client.send(mac + bytes.fromhex("020000000001") + b"\x88\xb5" + b"a frame".ljust(46))
                    with suppress(TimeoutError):
                        frame = await asyncio.wait_for(arrived.get(), 0.1)
    asyncio.get_running_loop().remove_reader(tap)
    assert frame[14:].strip() == b"a frame"


async def test_root_gets_namespaces_and_is_told_so() -> None:
    assert os.geteuid() == 0
    chosen = await choose_network(NetworkKind.AUTO, real_guests=True, cluster="pytest-choice")
    assert chosen.description == (
        "nodes are network namespaces on one bridge (running as root, and the kernel supports them)"
    )
    asked = await choose_network(NetworkKind.NAMESPACES, real_guests=True, cluster="pytest-choice")
    assert asked.description.endswith("(as requested)")
    assert list(netns.RUN.glob("autoscale.trial-*")) == []


def test_ambiguous_cluster_name_is_refused() -> None:
    with pytest.raises(NetworkError, match="lower-case letters, digits and hyphens"):
        NamespaceNetwork("a.b", "a test")
