"""The hub's commands to its QEMU, and what it leaves behind."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deploy.neonvm.network.chooser import NetworkKind, choose_network
from deploy.neonvm.network.hub import HubNetwork
from deploy.neonvm.ports import GuestError, NetworkError
from protocol.messages import ObjectName
from tests.neonvm.qemu.fakes import FakeHypervisor, FakeMachine

POD = ObjectName("default", "vm-1-pod")
VM = ObjectName("default", "vm-1")
INFO = {"command-line": "info network"}


@pytest.fixture
def sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the hub's sockets."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@dataclass
class FakeHub(FakeMachine):
    """Listens at the end of each cable, accepts from the ``late``th attempt on, and reports who is connected."""

    late: int = 2
    forwards: dict[str, socket.socket] = field(default_factory=dict)

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        if arguments == INFO:
            return "\n".join(f"{cable}: index=0,type=stream,{self._visitor(cable)}" for cable in list(self.forwards))
        answer = await super().call(command, arguments)
        given = dict(arguments or {})
        if given.get("type") == "hubport":
            assert self.late <= 0, "a frame for this cable would have ended the hub"
        if given.get("type") == "stream":
            address = given["addr"]
            assert isinstance(address, dict)
            self.forwards[str(given["id"])] = opened = socket.socket(socket.AF_UNIX)
            opened.setblocking(False)
            opened.bind(address["path"])
            opened.listen()
        return answer

    def _visitor(self, cable: str) -> str:
        self.late -= 1
        if self.late > 0:
            return ""
        listener = self.forwards[cable]
        try:
            visitor, _ = listener.accept()
        except BlockingIOError:
            return ""
        with visitor:
            visitor.setblocking(False)
            try:
                return f"unix:{listener.getsockname()}" if visitor.recv(1) else ""
            except BlockingIOError:
                return f"unix:{listener.getsockname()}"

    def close(self) -> None:
        for listener in self.forwards.values():
            listener.close()


@pytest.fixture
def hypervisor() -> Iterator[FakeHypervisor]:
    machine = FakeHub()
    yield FakeHypervisor(machine)
    machine.close()


@pytest.fixture
async def hub(sockets: Path, hypervisor: FakeHypervisor) -> AsyncIterator[HubNetwork]:
    network = HubNetwork("test", "a test", hypervisor)
    await network.up()
    await network.add_node("a")
    yield network
    await network.down()


def inside(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def orders(hypervisor: FakeHypervisor) -> list[tuple[str, object]]:
    """Commands that the hub sent to its QEMU, with their id or line."""
    return [(name, about.get("id", about.get("command-line"))) for name, about in hypervisor.machine.calls]


async def test_pod_gets_hub_cable_and_forwarded_link(hub: HubNetwork, hypervisor: FakeHypervisor) -> None:
    place = await hub.add_pod("a", POD)
    folder = place.attachments[0].removeprefix("unix:").removesuffix("/c0")
    ports = f"{hub.port_for(9100)}:{hub.port_for(25183)}:{hub.port_for(25185)}"
    assert place.attachments == (f"unix:{folder}/c0", f"forward:{place.address}:{ports}")
    assert place.metrics_url == f"http://{place.address}:{hub.port_for(9100)}/metrics"
    assert place.enter == hub.control_enter() == ()
    assert place.token is not None
    assert place.token.file.read_text() == f"autoscale.token={place.token.value}"
    assert place.daemon_path("/cpu") == f"/cpu?{place.token.value}"
    assert await hub.add_pod("a", POD) == place
    assert hypervisor.machine.calls == [
        (
            "netdev_add",
            {"type": "stream", "id": "c0", "server": True, "addr": {"type": "unix", "path": f"{folder}/c0"}},
        ),
        ("netdev_add", {"type": "hubport", "id": "hub-c0", "hubid": 0, "netdev": "c0"}),
    ]


async def test_cable_waits_for_listening_hub(hub: HubNetwork, hypervisor: FakeHypervisor) -> None:
    assert isinstance(hypervisor.machine, FakeHub)
    hypervisor.machine.late = 20
    await hub.add_pod("a", POD)
    assert (hypervisor.machine.late < 0, orders(hypervisor)[-1]) == (True, ("netdev_add", "hub-c0"))


async def test_too_long_folder_is_refused(
    sockets: Path, hypervisor: FakeHypervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QEMU exited when it opened the first pod's socket; the cluster was up, but all VMs failed."""
    deep = sockets / ("d" * 100)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    with pytest.raises(NetworkError, match="too long for the hub's sockets; set XDG_RUNTIME_DIR to a folder"):
        await HubNetwork("test", "a test", hypervisor).up()
    assert inside(deep) == []


async def test_a_removed_pod_has_its_cable_pulled(hub: HubNetwork, hypervisor: FakeHypervisor) -> None:
    await hub.add_pod("a", POD)
    hypervisor.machine.calls.clear()
    await hub.remove_pod(POD)
    await hub.remove_pod(POD)
    assert orders(hypervisor) == [("netdev_del", "hub-c0"), ("netdev_del", "c0")]


async def test_failed_cable_leaves_pod_unplugged(hub: HubNetwork, hypervisor: FakeHypervisor) -> None:
    hypervisor.machine.fault = GuestError("no more ports")
    with pytest.raises(NetworkError, match="no more ports"):
        await hub.add_pod("a", POD)
    hypervisor.machine.fault = None
    assert (await hub.add_pod("a", POD)).attachments[0].endswith("/c1")


async def test_flat_address_is_exposed_once(hub: HubNetwork, hypervisor: FakeHypervisor) -> None:
    address = await hub.vm_address(VM)
    port = await hub.expose(address, 5432)
    assert (address, await hub.expose(address, 5432)) == ("10.100.128.0", port)
    assert orders(hypervisor) == [
        ("human-monitor-command", f"hostfwd_add gateway tcp:127.0.0.1:{port}-10.100.128.0:5432"),
    ]
    await hub.release_vm(VM)
    assert await hub.vm_address(VM) != address


async def test_failed_hub_forward_quotes_the_hub(hub: HubNetwork, hypervisor: FakeHypervisor) -> None:
    hypervisor.machine.answers["human-monitor-command"] = "could not set up host forwarding rule"
    with pytest.raises(NetworkError, match=r"cannot forward a port to 10\.100\.128\.0:5432: could not set up"):
        await hub.expose("10.100.128.0", 5432)
    with pytest.raises(NetworkError, match="could not set up"):
        await hub.connect(None, "10.100.128.0", 5432)


async def test_host_programs_bypass_the_hub(hub: HubNetwork, hypervisor: FakeHypervisor) -> None:
    place = await hub.add_pod("a", POD)
    hypervisor.machine.calls.clear()
    with await hub.listen(POD, 0) as listener:
        port = listener.getsockname()[1]
        with await hub.connect(POD, place.address, port):
            pass
        assert await hub.expose(place.address, port) > 0
    assert hypervisor.machine.calls == []


async def test_a_hub_that_does_not_start_leaves_nothing(sockets: Path, hypervisor: FakeHypervisor) -> None:
    hypervisor.fault = GuestError("QMP negotiation failed")
    network = HubNetwork("test", "a test", hypervisor)
    with pytest.raises(NetworkError, match="cannot start the hub: QMP negotiation failed"):
        await network.up()
    assert inside(sockets) == []
    with pytest.raises(NetworkError, match="not up"):
        await network.expose("10.100.128.0", 5432)


async def test_down_ends_the_hub_and_removes_its_sockets(sockets: Path, hypervisor: FakeHypervisor) -> None:
    network = HubNetwork("test", "a test", hypervisor)
    await network.up()
    assert len(inside(sockets)) == 1
    for _ in range(2):
        await network.down()
    assert (hypervisor.machine.alive, inside(sockets)) == (False, [])


async def test_a_folder_that_cannot_be_made_is_reported(
    tmp_path: Path, hypervisor: FakeHypervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    with pytest.raises(NetworkError, match="cannot create the folder of the hub's sockets"):
        await HubNetwork("test", "a test", hypervisor).up()


async def test_a_hub_that_was_asked_for_says_so() -> None:
    chosen = await choose_network(NetworkKind.HUB, real_guests=True, cluster="test")
    assert chosen.description == "nodes are ports of a hub, and pods are loopback addresses (as requested)"
