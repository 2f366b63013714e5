"""A node's network program with fake commands: its start, and when it hands out no taps."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from deploy.kube.informer import Informer
from deploy.neonvm.overlay import node_network
from deploy.neonvm.overlay.fence import COUNTERS
from deploy.neonvm.overlay.node_network import WATCHED, NodeNetwork, NodeNetworkDependencies
from deploy.neonvm.overlay.node_plan import OverlayNode, tap_name
from deploy.neonvm.overlay.telemetry import OverlayTelemetry
from deploy.neonvm.ports import NetworkError
from deploy.neonvm.remote.address_choice import claim
from protocol.kubernetes.objects import Json, name_of, uid_of
from protocol.kubernetes.resources import IP_ADDRESSES, PODS, VIRTUAL_MACHINES
from protocol.messages import ObjectName
from protocol.units import Seconds
from tests.fake_clock import FakeClock
from tests.neonvm.in_process import InProcess

ADDRESS = "10.111.0.7"
VM: Json = {
    "metadata": {"namespace": "default", "name": "db", "uid": "v1"},
    "status": {"extraNetIP": ADDRESS, "podName": "db-1", "node": "a"},
}


@dataclass
class Commands:
    """The node's programs. ``refuses`` are those that fail; ``links`` is what ``ip link`` shows."""

    ran: list[tuple[str, ...]] = field(default_factory=list)
    refuses: set[str] = field(default_factory=set)
    links: list[dict[str, object]] = field(default_factory=list)
    packets: int = 0
    flushed: int = 0

    async def run(self, *command: str, lines: Iterable[str] = ()) -> str:
        given = tuple(lines)
        self.ran.append((*command, *given))
        if command[0] in self.refuses or " ".join(command) in self.refuses:
            raise NetworkError(f"`{command[0]}` failed: Operation not supported")
        for line in given:
            if line.startswith("link set") and " alias " in line:
                self.links.append({"ifname": line.split()[2], "ifalias": line.split()[4]})
            if " altname " in line:
                self.links[-1]["altnames"] = [line.split()[-1]]
        if command[:4] == ("nft", "-j", "list", "chains"):
            here = [{"chain": {"family": each, "table": "neonvm"}} for each in ("inet", "bridge")]
            return json.dumps({"nftables": [{"metainfo": {}}, *here[self.flushed :]]})
        if command[:2] == ("nft", "-j"):
            found = [{"counter": {"name": each, "packets": self.packets}} for each in COUNTERS]
            return json.dumps({"nftables": [{"metainfo": {}}, *found]})
        return json.dumps(self.links) if command[:3] == ("ip", "-j", "link") else ""

    @property
    def loads(self) -> list[tuple[str, ...]]:
        return [each for each in self.ran if each[:3] == ("nft", "-f", "-")]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    made = Commands()
    monkeypatch.setattr(node_network, "run", made.run)
    monkeypatch.setattr(node_network, "open_tap", lambda _: os.open("/dev/null", os.O_RDWR))
    return made


@dataclass
class Node:
    """A node's program, and its state."""

    network: NodeNetwork
    caches: dict[object, Informer]
    clock: FakeClock
    places: dict[str, ObjectName]
    telemetry: OverlayTelemetry

    async def pod(self, name: str, node: str = "a") -> str:
        """A pod of the VM, and its uid."""
        owner = {"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": "db", "uid": "v1"}
        metadata = {"name": name, "labels": {"vm.neon.tech/name": "db"}, "ownerReferences": [owner]}
        spec: Json = {"nodeName": node, "containers": [{"name": "neonvm-runner", "image": "x"}]}
        made = await self.network._deps.client.create(
            PODS, "default", {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        )
        self.places[name] = name_of(made)
        return uid_of(made)

    async def served(self, place: str) -> bool:
        """True if the pod is handed a tap within a few seconds of the clock."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            ours.setblocking(False)
            task = asyncio.create_task(self.network.serve(place, theirs))
            for _ in range(3):
                await asyncio.sleep(0.05)
                await self.clock.advance(Seconds(1.0))
            task.cancel()
            await asyncio.wait((task,))
            try:
                _, descriptors, _, _ = socket.recv_fds(ours, 4096, 1)
            except BlockingIOError:
                return False
            os.close(descriptors[0])
            return True


@pytest.fixture
def node(commands: Commands) -> Node:
    del commands
    clock, client = FakeClock(), InProcess().client()
    caches: dict[object, Informer] = {kind: Informer(client, kind, clock) for kind in WATCHED}
    places: dict[str, ObjectName] = {}

    async def holder(place: str) -> ObjectName | None:
        return places.get(place)

    telemetry = OverlayTelemetry(lambda: True)
    deps = NodeNetworkDependencies(client, caches, clock, holder, dropped=telemetry.dropped)  # type: ignore[arg-type]
    network = NodeNetwork(OverlayNode("a", "10.0.0.1", 1500), deps)
    caches[VIRTUAL_MACHINES]._facts.learn(VM, reread=True)
    caches[IP_ADDRESSES]._facts.learn(claim(VM, ADDRESS), reread=True)
    for each in caches.values():
        each.synced.set()
    return Node(network, caches, clock, places, telemetry)


async def up(node: Node) -> asyncio.Task[object]:
    task: asyncio.Task[object] = asyncio.create_task(node.network.run())
    for _ in range(20):
        await asyncio.sleep(0)
    return task


async def stop(task: asyncio.Task[object]) -> None:
    task.cancel()
    await asyncio.wait((task,))


async def test_fence_comes_before_the_bridge(node: Node, commands: Commands) -> None:
    await node.network.renew()
    kinds = [each[:3] for each in commands.ran]
    assert kinds.index(("nft", "-f", "-")) < kinds.index(("ip", "-batch", "-"))


async def test_no_tap_without_a_fence(node: Node, commands: Commands, caplog: pytest.LogCaptureFixture) -> None:
    """A kernel without nftables for bridges: one log line, and no pod gets a tap."""
    commands.refuses.add("nft")
    await node.pod("db-1")
    task = await up(node)
    assert not await node.served("db-1")
    assert "nftables rejected the bridge rules" in node.network.reason
    assert {each.message for each in caplog.records} == {"cannot maintain the flat network; not handing out taps"}
    assert all(each[0] != "ip" or each[:3] == ("ip", "-j", "link") for each in commands.ran)
    commands.refuses.clear()
    await node.clock.advance(Seconds(2.0))
    await node.clock.advance(Seconds(2.0))
    assert await node.served("db-1")
    assert node.network.is_up
    await stop(task)


async def test_tap_is_fenced_before_it_is_plugged_in(node: Node, commands: Commands) -> None:
    uid = await node.pod("db-1")
    task = await up(node)
    commands.ran.clear()
    assert await node.served("db-1")
    name = tap_name(uid)
    orders = [each for each in commands.ran if each[1] in {"-batch", "-f"}]
    named = f"link set {name} alias {ADDRESS}", f"link property add dev {name} altname {name}-v1"
    assert orders[0] == ("ip", "-batch", "-", *named)
    assert f'add element bridge neonvm taps {{ "{name}" . {ADDRESS} }}' in orders[1]
    assert orders[2][3] == f"link set {name} mtu 1450 master neonvm0 addrgenmode none arp off"
    await stop(task)


async def test_pod_of_deleted_vm_loses_its_address(node: Node, commands: Commands) -> None:
    """The pod ignores its termination, and the IP has a new owner: a neighbour's packets went to the old guest."""
    uid, other = await node.pod("db-1"), {**VM, "metadata": {"namespace": "shop", "name": "db", "uid": "v2"}}
    task = await up(node)
    assert await node.served("db-1")
    await stop(task)
    node.caches[IP_ADDRESSES]._facts.learn(claim(other, ADDRESS), reread=True)
    node.caches[VIRTUAL_MACHINES]._facts.learn(other, reread=True)
    await node.network.renew()
    assert commands.loads[-1][3:5] == (
        f'delete element bridge neonvm taps {{ "{tap_name(uid)}" . {ADDRESS} }}',
        f'delete element bridge neonvm macs {{ "{tap_name(uid)}" . 52:54:00:6f:00:07 }}',
    )


@pytest.mark.parametrize(("pod", "on"), [("db-9", "a"), ("db-1", "b"), ("unknown", "")])
async def test_pods_that_may_have_no_tap_wait(node: Node, pod: str, on: str) -> None:
    if on:
        await node.pod(pod, on)
    task = await up(node)
    assert not await node.served(pod)
    await stop(task)


async def test_changes_alone_are_loaded(node: Node, commands: Commands) -> None:
    await node.network.renew()
    await node.network.renew()
    assert len(commands.loads) == 1
    gone = {**VM, "status": {}}
    node.caches[VIRTUAL_MACHINES]._facts.learn(gone, reread=True)
    await node.network.renew()
    assert commands.loads[1][3:] == (
        f"delete element bridge neonvm known {{ 52:54:00:6f:00:07 . {ADDRESS} }}",
        f"delete element bridge neonvm namespace_marks {{ {ADDRESS} : 175046663 }}",
        f"delete element bridge neonvm namespace_members {{ 175046663 . {ADDRESS} }}",
    )


async def test_failed_change_loads_all_again(node: Node, commands: Commands) -> None:
    await node.network.renew()
    node.caches[VIRTUAL_MACHINES]._facts.learn({**VM, "status": {}}, reread=True)
    commands.refuses.add("nft -f -")
    with pytest.raises(NetworkError):
        await node.network.renew()
    commands.refuses.clear()
    await node.network.renew()
    assert commands.loads[-1][3].lstrip().startswith("table inet neonvm\ndelete table")


async def test_rules_that_are_gone_are_loaded_again(
    node: Node, commands: Commands, caplog: pytest.LogCaptureFixture
) -> None:
    await node.network.renew()
    commands.flushed = 1
    await node.network.renew()
    assert [each.message for each in caplog.records] == ["another program removed the nftables fence; loading it again"]
    assert commands.loads[1] == commands.loads[0]


async def test_dropped_frames_are_counted(node: Node, commands: Commands) -> None:
    """Also across a reload of the rules, which sets the kernel's counters to zero."""
    await node.network.renew()
    for commands.packets in (5, 7, 2):
        await node.clock.advance(Seconds(60.0))
        await node.network.renew()
        await node.network.renew()
    found = node.telemetry.registry.get_sample_value("autoscale_network_dropped_frames_total", {"reason": "spoofed"})
    assert found == 9.0
