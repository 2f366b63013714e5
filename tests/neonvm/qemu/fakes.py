"""A hypervisor without machines, and a pod network with a scripted guest at its other end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from deploy.neonvm.network.sockets import connected, tcp_socket
from deploy.neonvm.ports import GuestError, GuestSpec, NetworkError, PodNetwork
from deploy.neonvm.qemu.machine import Machine
from protocol.messages import ObjectName
from protocol.units import Bytes, MilliCpu
from tests.fake_clock import SleepingClock

MIB = 1024**2


def spec_in(state_dir: Path, **changes: object) -> GuestSpec:
    """A guest of 250m to 4 CPU and 256Mi to 2Gi that starts with 1 CPU and 512Mi, with some fields changed."""
    network = PodNetwork(
        address="10.100.1.0",
        enter=("nsenter", "--net=/run/netns/pod", "--"),
        guest_host="10.255.255.254",
        api_host="10.100.0.1",
        attachments=("tap:flat0", "tap:link0"),
    )
    fields: dict[str, object] = {
        "vm": ObjectName("default", "db"),
        "pod": ObjectName("default", "db-abc"),
        "cpu_max": MilliCpu(4000),
        "cpu_use": MilliCpu(1000),
        "mem_min": Bytes(256 * MIB),
        "mem_max": Bytes(2048 * MIB),
        "mem_use": Bytes(512 * MIB),
        "address": "10.100.128.1",
        "network": network,
        "state_dir": state_dir,
    }
    return GuestSpec(**{**fields, **changes})  # type: ignore[arg-type]  # the names above are its fields


@dataclass
class FakeMachine:
    """A machine whose memory device goes as far as ``least`` when asked to shrink."""

    size: object = 256 * MIB
    least: int = 0
    alive: bool = True
    calls: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)
    fault: GuestError | None = None
    answers: dict[str, object] = field(default_factory=lambda: {"query-status": {"status": "running"}})
    failure: asyncio.Event = field(default_factory=asyncio.Event)
    reason: str = ""
    kills: int = 0

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        self.calls.append((command, dict(arguments or {})))
        if self.fault is not None:
            raise self.fault
        if command == "qom-set" and arguments is not None and isinstance(arguments["value"], int):
            self.size = max(arguments["value"], self.least)
        return self.size if command == "qom-get" else self.answers.get(command, "")

    async def pass_socket(self, name: str, end: socket.socket) -> None:
        self.calls.append(("getfd", {"fdname": name}))

    async def wait_for_event(self, seconds: float) -> None:
        raise AssertionError("nothing is waited for in this test")

    def on_event(self, event: str, heard: Callable[[], None]) -> AbstractContextManager[None]:
        raise AssertionError("nothing is heard in this test")

    def event_time(self, event: str) -> float | None:
        return None

    async def failed(self) -> str:
        await self.failure.wait()
        return self.reason

    def fail(self, reason: str) -> None:
        self.alive, self.reason = False, reason
        self.failure.set()

    def output_tail(self) -> str:
        return "nothing"

    async def kill(self) -> None:
        self.alive = False
        self.kills += 1

    async def end(self) -> None:
        self.alive = False


@dataclass
class FakeHypervisor:
    """Hands out one machine and records the requests."""

    machine: FakeMachine = field(default_factory=FakeMachine)
    disks: list[tuple[Path, Path]] = field(default_factory=list)
    launched: list[Sequence[str]] = field(default_factory=list)
    fault: GuestError | None = None

    async def make_disk(self, disk: Path, base: Path) -> None:
        self.disks.append((disk, base))
        _touch(disk)

    async def launch(
        self, who: str, command: Callable[[int], Sequence[str]], log: Path, inherit: Sequence[int] = ()
    ) -> Machine:
        if self.fault is not None:
            raise self.fault
        self.launched.append(command(9))
        self.machine.alive = True
        self.machine.failure.clear()
        return self.machine


def _touch(disk: Path) -> None:
    disk.write_bytes(b"disk")


@dataclass
class FakeGuestDaemon:
    """Sockets that all lead to one scripted daemon. ``answers`` maps a request's first line to status and text."""

    answers: dict[str, tuple[int, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    announced: list[tuple[str, str]] = field(default_factory=list)
    unplugged: bool = False
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(request.partition("Content-Length: ")[2].partition("\r\n")[0])
        first = request.partition(" HTTP/")[0] + (" " + (await reader.readexactly(length)).decode() if length else "")
        self.asked.append(first)
        status, text = self.answers[first]
        writer.write(f"HTTP/1.1 {status} Said\r\n\r\n{text}\n".encode())
        await writer.drain()

    async def connect(self, pod: ObjectName | None, host: str, port: int) -> socket.socket:
        if self.unplugged:
            raise NetworkError(f"{pod} is not on the network")
        return await connected(tcp_socket(), "127.0.0.1", self.port)

    async def listen(self, pod: ObjectName | None, port: int) -> socket.socket:
        raise OSError("nothing listens in a pod of this test")

    @contextmanager
    def announcing(self, pod: ObjectName, vm: str) -> Iterator[Callable[[], None]]:
        if self.unplugged:
            raise NetworkError(f"{pod} is not on the network")
        yield lambda: self.announced.append((pod.name, vm))


class SteppedClock(SleepingClock):
    """A clock from zero on: sleeping passes the time, and a test may set it."""

    def __init__(self) -> None:
        super().__init__(start=0.0)

    @property
    def instant(self) -> float:
        return self._now

    @instant.setter
    def instant(self, instant: float) -> None:
        self._now = instant
