"""A client at the pod's address wakes a sleeping guest, and is served once it runs."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from deploy.neonvm.network.sockets import connected, free_port, listening, tcp_socket
from deploy.neonvm.ports import PodNetwork
from deploy.neonvm.sleep import pod_clients
from deploy.neonvm.sleep.network_stand_in import NetworkStandIn
from deploy.neonvm.sleep.stand_in import pod_ports_of
from protocol.runtime.clock import SystemClock
from protocol.runtime.serving.tcp_listener import TcpListener
from tests.fake_clock import settle
from tests.neonvm.qemu.fakes import spec_in
from tests.neonvm.sleep.test_network_stand_in import Place
from tests.neonvm.sleep.wire import GUEST, PAGE

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Pod:
    """A pod whose guest sleeps, at 127.0.0.1, and whose QEMU forwards its port to an echo."""

    port: int
    stand_in: NetworkStandIn
    clients: list[asyncio.StreamWriter] = field(default_factory=list)

    async def client(self) -> Client:
        reader, writer = await asyncio.open_connection(sock=await connected(tcp_socket(), "127.0.0.1", self.port))
        self.clients.append(writer)
        return reader, writer

    @asynccontextmanager
    async def qemu(self) -> AsyncIterator[None]:
        """Fails if the port is not free."""
        self.stand_in.close()
        echo = TcpListener([listening(tcp_socket(), "0.0.0.0", self.port)], _echo)
        self.stand_in.pass_on_clients()
        yield
        await echo.close()


@asynccontextmanager
async def sleeping_pod(*quiet: str) -> AsyncIterator[Pod]:
    """``quiet`` networks do not wake its guest."""
    port, place = free_port(), Place()
    address = replace(GUEST, quiet_networks=[IPv4Network(network) for network in quiet])
    pod = Pod(port, NetworkStandIn(address, PAGE, SystemClock(), place, [port]))
    pod.stand_in.read_network()
    async with asyncio.timeout(5):
        yield pod
    pod.stand_in.close()
    for writer in pod.clients:
        writer.close()
    for end in place.opened:
        end.close()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.read(100))


async def test_client_wakes_the_guest_and_waits_for_it() -> None:
    """Otherwise clients outside the flat network, such as all pods, would be refused until another event woke the
    VM.
    """
    async with sleeping_pod() as pod:
        reader, writer = await pod.client()
        writer.write(b"a query")
        source = writer.get_extra_info("sockname")
        assert await pod.stand_in.wait_for_wake() == f"127.0.0.1:{source[1]} opened a connection"
        # Its tap has failed and is opened again.
        pod.stand_in.read_network()
        other, writer = await pod.client()
        writer.write(b"another query")
        async with pod.qemu():
            assert (await reader.read(), await other.read()) == (b"a query", b"another query")


async def test_ignored_client_is_refused() -> None:
    async with sleeping_pod("127.0.0.0/8") as pod:
        assert await (await pod.client())[0].read() == b""
        assert not pod.stand_in.woken.is_set()


async def test_waiting_client_is_closed_without_guest() -> None:
    """Its pod ends, or the guest has migrated: the client reaches it with its next connection."""
    async with sleeping_pod() as pod:
        reader, _ = await pod.client()
        await pod.stand_in.wait_for_wake()
        pod.stand_in.close()
        pod.stand_in.hang_up_clients()
        assert await reader.read() == b""


async def test_session_that_guest_refuses_ends() -> None:
    """QEMU has ended again."""
    async with sleeping_pod() as pod:
        reader, _ = await pod.client()
        await pod.stand_in.wait_for_wake()
        pod.stand_in.close()
        pod.stand_in.pass_on_clients()
        assert await reader.read() == b""


async def test_session_ends_once_the_guest_hangs_up() -> None:
    """Connections of silent or vanished clients once stayed in the pod forever."""
    async with sleeping_pod() as pod:
        reader, writer = await pod.client()
        writer.write(b"a query")
        await pod.stand_in.wait_for_wake()
        async with pod.qemu():
            assert await reader.read() == b"a query"
        await settle()
        assert "_relay" not in str(asyncio.all_tasks())


async def test_waiting_clients_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """QEMU accepts the others once it runs; they must reconnect."""
    monkeypatch.setattr(pod_clients, "MAX_WAITING", 1)
    async with sleeping_pod() as pod:
        (first, writer), (second, _) = await pod.client(), await pod.client()
        await pod.stand_in.wait_for_wake()
        async with pod.qemu():
            with pytest.raises(ConnectionResetError):
                await second.read()
            writer.write(b"a query")
            assert await first.read() == b"a query"


async def test_client_waits_until_a_file_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all descriptors in use the port stays readable, and the runner tried again without end."""
    accept, failures = socket.socket.accept, [OSError(errno.EMFILE, "Too many open files")] * 100

    def fail_or_accept(listener: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise failures.pop()
        return accept(listener)

    async with sleeping_pod() as pod:
        monkeypatch.setattr(socket.socket, "accept", fail_or_accept)
        await pod.client()
        await settle()
        assert len(failures) > 95
        failures.clear()
        assert "opened a connection" in await pod.stand_in.wait_for_wake()
        # The port may be released during the pause.
        failures.append(OSError(errno.EMFILE, "Too many open files"))
        await pod.client()
        await settle()
        pod.stand_in.close()
        pod.stand_in.hang_up_clients()


async def test_taken_port_is_left_alone() -> None:
    """The guest can still be woken by its flat address."""
    async with sleeping_pod() as pod, pod.qemu():
        pod.stand_in.read_network()
        pod.stand_in.read_network()
        await pod.client()
        await settle()
        assert not pod.stand_in.woken.is_set()


def test_only_database_wakes_at_the_pods_address(tmp_path: Path) -> None:
    """Clients of the metrics do not, nor does anything inside the pod."""
    forwards = "ports:0.0.0.0:9100=9100,0.0.0.0:5432=5432,127.0.0.1:25184=25183"
    network = PodNetwork("10.100.128.1", (), "127.0.0.1", "", ("fd:7", forwards))
    assert pod_ports_of(spec_in(tmp_path, network=network)) == [5432]
    assert pod_ports_of(spec_in(tmp_path)) == []
