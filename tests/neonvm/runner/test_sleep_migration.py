"""A sleeping guest migrates to another pod: disk and memory between two runners, on loopback (B.18)."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deploy.neonvm.access.callers import CONTROLLER
from deploy.neonvm.access.connections import RunnerConnections, RunnerEndpoint, RunnerHttpResponse
from deploy.neonvm.network.sockets import connected, free_port, tcp_socket
from deploy.neonvm.qemu.machine import Decided, Route
from deploy.neonvm.qemu.qemu_process import EventListeners
from deploy.neonvm.remote.migration_endpoint import MigrationAuthority, open_tls
from deploy.neonvm.remote.remote_guest import RemoteMachine
from deploy.neonvm.remote.runner_client import PollLimiter, RunnerClient
from deploy.neonvm.runner.gate_server import GateServer
from deploy.neonvm.runner.sleep_migration import TARGET_NAME
from deploy.neonvm.sleep import disk_copy
from deploy.neonvm.sleep.disk_copy import is_same_disk
from deploy.neonvm.texts import runner as texts
from protocol.runtime.serving.http_requests import HttpResponse
from tests.neonvm.qemu.fakes import FakeMachine
from tests.neonvm.runner.one_pod import Pod, running, scripted_daemon
from tests.neonvm.sleep.fakes import MEMORY, descriptors
from tests.neonvm.sleep.test_sleeping import World

MOVE = "uid-of-target"
GIB = 1024**3


def disk(*, size: int = GIB, base: str = "/vm/images/rootdisk.qcow2", more: bytes = b"") -> bytes:
    """The header of a disk of ``size`` bytes over ``base``, and the data after it."""
    name = base.encode()
    head = b"QFI\xfb" + (3).to_bytes(4, "big") + (112).to_bytes(8, "big") + len(name).to_bytes(4, "big")
    head += (16).to_bytes(4, "big") + size.to_bytes(8, "big")
    return head.ljust(100, b"\0") + (104).to_bytes(4, "big") + bytes(8) + name + more


class HeardMachine(FakeMachine):
    """A machine that records its events."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners = EventListeners()
        self.answers["query-status"] = {"status": "inmigrate"}

    def on_event(self, event: str, heard: object) -> AbstractContextManager[None]:
        return self.listeners.on_event(event, heard)  # type: ignore[arg-type]  # as the port has it


@dataclass
class Pods:
    """The sleeping guest's pod, the target pod, and the sleep."""

    source: Pod
    target: Pod
    world: World
    port: int
    received: asyncio.Future[bytes] = field(default_factory=asyncio.Future)
    authority: MigrationAuthority = field(default_factory=lambda: MigrationAuthority(MOVE, time.time()))

    async def put(self, pod: Pod, path: str, body: Mapping[str, object]) -> HttpResponse:
        return await pod.ask("PUT", path, body)

    async def certify(self, pod: Pod, name: str) -> str:
        request = await pod.ask("POST", "/tls/request", {"move": MOVE})
        certificate = self.authority.signed(request.body, name).decode()
        body = {"move": MOVE, "certificate": certificate, "authority": self.authority.certificate.decode()}
        assert (await self.put(pod, "/tls/certificate", body)).status == 200
        return certificate

    async def begin(self) -> None:
        """Open the migration, with certificates at both ends."""
        assert (await self.decide("open")) == "open"
        await self.certify(self.target, TARGET_NAME)
        await self.certify(self.source, "source.migration.local")

    async def decide(self, wanted: str) -> str:
        answer = await self.source.ask("POST", "/handover", {"move": MOVE, "decision": wanted})
        assert answer.status == 200, answer.body
        return str(json.loads(answer.body)["decision"])

    async def pass_disk(self) -> tuple[int, int]:
        taken = await self.put(self.target, "/disk", {"address": "127.0.0.1"})
        return taken.status, (await self.put(self.source, "/disk", {"address": "127.0.0.1"})).status

    async def command(self, execute: str, **arguments: object) -> object:
        """The response of the source's gate."""
        server = await asyncio.start_server(self._gate, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            writer.write(json.dumps({"execute": execute, "arguments": arguments, "id": 1}).encode())
            assert "QMP" in json.loads(await reader.readline())
            answer = json.loads(await reader.readline())
            while "event" in answer:
                answer = json.loads(await reader.readline())
            writer.close()
        return answer.get("return", answer.get("error", {}).get("desc"))

    async def _gate(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await GateServer([Path("/nowhere")], self.source.runner).serve(CONTROLLER, reader, writer)
        writer.close()

    async def receive(self) -> asyncio.Server:
        """The target's QEMU listens with the target's certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        certificate = await self.certify(self.target, TARGET_NAME)
        tls = self.target.runner.tls.files(MOVE, certificate, self.authority.certificate.decode(), is_server=True)
        context.load_verify_locations(tls / "ca-cert.pem")
        context.load_cert_chain(tls / "server-cert.pem", tls / "server-key.pem")
        shutil.rmtree(tls)

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.received.set_result(await reader.read(-1))
            writer.close()

        listener = socket.create_server(("127.0.0.1", self.port), reuse_port=False)
        return await asyncio.start_server(take, sock=listener, ssl=context)


@pytest.fixture
async def pods(tmp_path: Path) -> AsyncIterator[Pods]:
    async with both_pods(tmp_path) as made:
        yield made


@asynccontextmanager
async def both_pods(tmp_path: Path, *, has_moved: bool = False) -> AsyncIterator[Pods]:
    """With a sleeping guest in the source, to which it ``has_moved`` before."""
    port = free_port()
    world = World(tmp_path / "source")
    async with AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(scripted_daemon())
        daemon.answers["PUT /thaw 1767225600.000000000"] = (200, "the database runs")
        made = []
        for name in ("source", "target"):
            (tmp_path / name).mkdir()
            pod = Pod(tmp_path / name, daemon, receives=has_moved or name == "target", disk_port=port)
            if name == "target":
                pod.hypervisor.machine = HeardMachine()
            made.append(await stack.enter_async_context(running(pod)))
        await world.begin()
        stack.push_async_callback(world.sleep.abandon)
        source, target = made
        (tmp_path / "source" / "disk.qcow2").write_bytes(disk(more=b"rows" * 100_000))
        (tmp_path / "target" / "disk.qcow2").write_bytes(disk(more=b"nothing"))
        assert (await source.ask("PUT", "/sleep")).status == 200
        source.asleep = world.sleep
        yield Pods(source, target, world, port)


async def test_disk_goes_before_the_memory(pods: Pods) -> None:
    await pods.begin()
    assert await pods.pass_disk() == (200, 200)
    files = [pod.folder / "disk.qcow2" for pod in (pods.source, pods.target)]
    assert files[0].read_bytes() == files[1].read_bytes()


async def test_guest_that_came_by_a_move_leaves_again(tmp_path: Path) -> None:
    """Its pod once waited for a disk."""
    async with both_pods(tmp_path, has_moved=True) as pods:
        await pods.begin()
        assert await pods.pass_disk() == (200, 200)


async def test_memory_is_sent_by_tls_alone(pods: Pods) -> None:
    await pods.begin()
    await pods.pass_disk()
    sleeper = pods.source.runner.migration_source
    assert sleeper is not None
    async with await pods.receive():
        await sleeper.call("migrate", {"uri": f"tcp:127.0.0.1:{pods.port}"})
        await sleeper.wait_for_event(5.0)
        assert (await pods.command("query-status")) == {"status": "postmigrate"}
        assert await pods.received == MEMORY
        await sleeper.call("migrate_cancel")
    assert pods.world.sleep.image.path.exists()


async def test_given_guest_never_wakes_here(pods: Pods) -> None:
    """Before the target is told, the image is deleted, frames go back to the network, and the machine may end."""
    await pods.begin()
    assert await pods.decide("given") == "given"
    assert not pods.world.sleep.image.path.exists()
    assert pods.source.flat.story[-1] == "1 frames go back"
    assert pods.world.stand_in.places[-1] == "nothing"
    refused = await pods.source.ask("PUT", "/wake", {"sleeps": 1})
    assert (refused.status, refused.body.decode().strip()) == (503, texts.MIGRATED_AWAY)
    assert pods.source.sleeper.orders == ["sleep", "listen"]
    assert await pods.decide("kept") == "given"


async def test_waking_ends_an_open_move(pods: Pods) -> None:
    """A client must not wait for a controller that died during a migration."""
    await pods.begin()
    assert (await pods.source.ask("PUT", "/wake", {"sleeps": 1})).status == 200
    assert await pods.decide("given") == "kept"
    # Its QEMU is a new one, and has no certificate to be dropped.
    pods.source.asleep = None
    assert (await pods.source.ask("PUT", "/sleep")).status == 200
    assert "object-del" not in [command for command, _ in pods.source.hypervisor.machine.calls]


async def test_sleeper_answers_its_gate(pods: Pods) -> None:
    assert await pods.command("query-status") == {"status": "suspended"}
    assert await pods.command("qom-set", path="vm0", property="requested-size", value=0) == texts.SLEEPS
    assert await pods.command("migrate", uri="tcp:127.0.0.1:20187") == texts.NO_MIGRATION
    assert await pods.command("quit") == texts.GUEST_RUNS_HERE
    await pods.begin()
    assert await pods.command("cont") == texts.UNDECIDED
    assert await pods.command("migrate-set-parameters", **{"max-bandwidth": 1}) == {}


async def test_memory_waits_for_the_disk(pods: Pods) -> None:
    """A controller that resumes the migration may not know that the guest is asleep."""
    await pods.begin()
    sleeper = pods.source.runner.migration_source
    assert sleeper is not None
    await pods.command("migrate", uri="tcp:127.0.0.1:20187")
    await sleeper.wait_for_event(1.0)
    report = await pods.command("query-migrate")
    assert isinstance(report, dict)
    assert (report["status"], report["error-desc"]) == ("failed", texts.DISK_FIRST)


async def test_other_disk_is_not_taken(pods: Pods) -> None:
    await pods.begin()
    (pods.source.folder / "disk.qcow2").write_bytes(disk(base="/run/identity/token"))
    assert (await pods.pass_disk())[1] == 503
    assert (pods.target.folder / "disk.qcow2").read_bytes() == disk(more=b"nothing")


async def test_repeated_order_ends_the_earlier_copy(pods: Pods) -> None:
    """Its controller has died. Two copies at once would leave holes, and a late one would overwrite the disk."""
    await pods.begin()
    certificate = await pods.certify(pods.source, "source.migration.local")
    context = pods.source.runner.tls.context(certificate, pods.authority.certificate.decode(), is_server=False)
    assert (await pods.put(pods.target, "/disk", {"address": "127.0.0.1"})).status == 200
    reader, writer = await asyncio.open_connection("127.0.0.1", pods.port, ssl=context, server_hostname=TARGET_NAME)
    earlier = disk(more=b"old" * 100_000)
    writer.write(len(earlier).to_bytes(8, "big") + earlier[:-1])
    while (pods.target.folder / "disk.qcow2").stat().st_size < 64 * 1024:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.005)
    assert await pods.pass_disk() == (200, 200)
    with suppress(ConnectionError):
        writer.write(earlier[-1:])
        assert await reader.read(1) == b""
    writer.close()
    files = [pod.folder / "disk.qcow2" for pod in (pods.source, pods.target)]
    assert files[0].read_bytes() == files[1].read_bytes()


async def test_copy_that_has_not_begun_is_ended_too(pods: Pods) -> None:
    """Its connection was accepted, but its TLS handshake was not done when the repeated order's copy was made."""
    await pods.begin()
    certificate = await pods.certify(pods.source, "source.migration.local")
    context = pods.source.runner.tls.context(certificate, pods.authority.certificate.decode(), is_server=False)
    assert (await pods.put(pods.target, "/disk", {"address": "127.0.0.1"})).status == 200
    plain = await connected(tcp_socket(), "127.0.0.1", pods.port)
    await asyncio.sleep(0.05)
    assert await pods.pass_disk() == (200, 200)
    with suppress(ConnectionError):
        reader, writer = await asyncio.open_connection(sock=plain, ssl=context, server_hostname=TARGET_NAME)
        earlier = disk(more=b"old" * 100_000)
        writer.write(len(earlier).to_bytes(8, "big") + earlier)
        assert await reader.read(1) == b""
        writer.close()
    files = [pod.folder / "disk.qcow2" for pod in (pods.source, pods.target)]
    assert files[0].read_bytes() == files[1].read_bytes()


async def test_target_that_takes_nothing_is_given_up(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node is overloaded or stopped: the connection stays open, and nothing is read. The guest stays asleep."""
    monkeypatch.setattr(disk_copy, "_STEP_TIMEOUT", 0.2)
    before = descriptors()
    await pods.begin()
    with socket.create_server(("127.0.0.1", pods.port)):
        refused = await pods.put(pods.source, "/disk", {"address": "127.0.0.1"})
    said = texts.DISK_STALLED.format(seconds=0.2)
    assert (refused.status, refused.body.decode().strip()) == (503, said)
    assert pods.world.sleep.image.path.exists()
    await asyncio.sleep(0)
    assert descriptors() == before


async def test_disk_of_an_earlier_move_does_not_count(pods: Pods) -> None:
    """It arrives after the next migration, to another pod, has begun."""
    await pods.begin()
    assert (await pods.put(pods.target, "/disk", {"address": "127.0.0.1"})).status == 200
    sending = asyncio.create_task(pods.put(pods.source, "/disk", {"address": "127.0.0.1"}))
    await asyncio.sleep(0)
    await pods.certify(pods.source, "source.migration.local")
    assert (await sending).status == 200
    sleeper = pods.source.runner.migration_source
    assert sleeper is not None
    await sleeper.call("migrate", {"uri": f"tcp:127.0.0.1:{pods.port}"})
    await sleeper.wait_for_event(5.0)
    report = await sleeper.call("query-migrate")
    assert isinstance(report, dict)
    assert (report["status"], report["error-desc"]) == ("failed", texts.DISK_FIRST)


async def test_stranger_gets_no_disk(pods: Pods) -> None:
    """A target without this migration's certificate."""
    assert await pods.decide("open") == "open"
    await pods.certify(pods.source, "source.migration.local")
    pods.authority = MigrationAuthority(MOVE, time.time())
    await pods.certify(pods.target, TARGET_NAME)
    assert await pods.pass_disk() == (200, 503)


async def test_guest_that_arrives_is_thawed(pods: Pods) -> None:
    """Once: with the time its quiet time starts again."""
    await pods.begin()
    await pods.pass_disk()
    machine = pods.target.hypervisor.machine
    assert isinstance(machine, HeardMachine)
    machine.listeners.dispatch("RESUME")
    # Its next move is called off.
    machine.listeners.dispatch("RESUME")
    for _ in range(200):
        await asyncio.sleep(0.005)
        if thaws := [asked for asked in pods.target.daemon.asked if asked.startswith("PUT /thaw")]:
            assert len(thaws) == 1
            return
    raise AssertionError(pods.target.daemon.asked)


async def test_controller_hears_the_end_of_the_sending(pods: Pods) -> None:
    """From the client that it uses for every QEMU, without polling."""
    await pods.begin()
    server = await asyncio.start_server(pods._gate, "127.0.0.1", 0)

    async def connect(_: RunnerEndpoint) -> socket.socket:
        return await connected(tcp_socket(), *server.sockets[0].getsockname()[:2])

    place = RunnerEndpoint("default/source", "uid", "127.0.0.1", 25183, 20183)
    async with server, RemoteMachine(place, connect, lambda: True) as machine:
        assert await machine.call("query-status") == {"status": "suspended"}
        await machine.call("migrate", {"uri": "tcp:127.0.0.1:20187", "inc": True})
        began = time.monotonic()
        await machine.wait_for_event(30.0)
        assert time.monotonic() - began < 10
        report = await machine.call("query-migrate")
        assert isinstance(report, dict)
        assert (report["status"], report["error-desc"]) == ("failed", texts.DISK_FIRST)


@dataclass
class Direct(RunnerConnections):
    """A controller's requests to one pod, without a network."""

    pod: Pod

    async def ask(self, place: RunnerEndpoint, method: str, path: str, body: bytes) -> RunnerHttpResponse:
        answer = await self.pod.ask(method, path, body)
        return RunnerHttpResponse(answer.status, {}, answer.body)

    async def long_poll(self, place: RunnerEndpoint, method: str, path: str, body: bytes) -> RunnerHttpResponse:
        return await self.ask(place, method, path, body)


async def test_controller_has_the_disk_sent(pods: Pods) -> None:
    source, target = (
        RunnerClient(Direct(pod), RunnerEndpoint(name, name, "127.0.0.1", 25183, 20183), PollLimiter())
        for name, pod in (("source", pods.source), ("target", pods.target))
    )
    assert (await source.status()).moves_asleep
    assert await source.decide(MOVE, Decided.OPEN) is Decided.OPEN
    route = await open_tls(source, target, MOVE, time.time(), sleeps=True)
    assert route == Route("tcp:0.0.0.0:20187", {"uri": "tcp:127.0.0.1:20187", "inc": True})
    files = [pod.folder / "disk.qcow2" for pod in (pods.source, pods.target)]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(
    ("sent", "size"),
    [
        (disk(size=2 * GIB), 1000),
        (disk(base="/etc/shadow"), 1000),
        (disk()[:72] + (4).to_bytes(8, "big") + disk()[80:], 1000),
        (disk()[:60] + (1).to_bytes(4, "big") + disk()[64:], 1000),
        (b"QFI", 3),
        (disk(), 2 * GIB),
    ],
    ids=["other size", "other base", "content in another file", "snapshots", "no head", "too long"],
)
def test_disk_of_another_machine(sent: bytes, size: int) -> None:
    assert not is_same_disk(disk(), sent, size)


def test_disk_that_has_grown() -> None:
    """Its tables have moved, and it was not closed cleanly."""
    grown = disk(more=b"rows")
    grown = grown[:36] + bytes(range(24)) + grown[60:72] + (1).to_bytes(8, "big") + grown[80:]
    assert is_same_disk(disk(), grown, GIB + GIB // 16)
