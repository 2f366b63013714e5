"""Fakes: a machine with a few bytes of memory, a guest's daemon, and a stand-in, each of which can be told to fail."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.daemon import DaemonResponse
from deploy.neonvm.sleep.frame_sources import Frame
from deploy.neonvm.sleep.network_stand_in import NetworkStandIn
from protocol.runtime.clock import Clock
from protocol.units import Seconds
from tests.neonvm.qemu.fakes import FakeMachine

MEMORY = b"rows" * 1000


@dataclass
class SavedMachine(FakeMachine):
    """Saves and loads its memory through the socket that it was given. ``fails_at`` is the command that it refuses,
    and ``status`` the end of its saving, which does not come while it waits for an answer on the ``return_path``.
    """

    fails_at: str = ""
    status: str = "completed"
    return_path: bool = False
    run_state: str = "running"
    loaded: bytes = b""
    diverts: str = "off"
    log: list[str] = field(default_factory=list)
    _end: socket.socket | None = None
    _incoming: asyncio.Future[None] | None = None

    async def _fill(self, end: socket.socket) -> None:
        self.loaded = await asyncio.to_thread(_all, end)
        self.run_state = "paused"

    async def pass_socket(self, name: str, end: socket.socket) -> None:
        self._note(f"give {name}")
        if name == "asleep":
            self._end = socket.fromfd(end.fileno(), end.family, end.type)

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        self._note(command)
        match command:
            case "stop":
                self.run_state = "paused"
            case "cont":
                self.run_state = "running"
            case "migrate" if self._end is not None:
                with suppress(BrokenPipeError):  # nobody takes it: the status says so
                    await asyncio.to_thread(self._end.sendall, MEMORY)
                self._end.close()
                self.run_state = "postmigrate"
            case "migrate_cancel" if self._end is not None:
                self._end.close()
            case "migrate-incoming" if self._end is not None:
                self._incoming = asyncio.ensure_future(self._fill(self._end))
            case "qom-set" if (arguments or {}).get("property") == "status":
                self.diverts = str((arguments or {})["value"])
            case "qom-get" if (arguments or {}).get("property") == "status":
                return self.diverts
            case "migrate-set-capabilities":
                states = {each["capability"]: each["state"] for each in (arguments or {})["capabilities"]}  # type: ignore[attr-defined]  # a list
                self.return_path = states.get("return-path", self.return_path)
            case "query-migrate":
                return {"status": "active" if self.return_path else self.status}
            case "query-status":
                return {"status": self.run_state}
            case "query-chardev":
                return []
        return await super().call(command, arguments)

    def _note(self, command: str) -> None:
        self.log.append(command)
        if command == self.fails_at:
            self.fails_at = ""
            raise GuestError(f"QEMU refused {command}")

    async def kill(self) -> None:
        if self._end is not None:
            self._end.close()
        await super().kill()

    async def wait_for_event(self, seconds: float) -> None:
        await asyncio.sleep(0)

    def on_event(self, event: str, heard: object) -> nullcontext[None]:
        return nullcontext()


def _all(end: socket.socket) -> bytes:
    end.setblocking(True)
    memory = bytearray()
    while part := end.recv(65536):
        memory += part
    end.close()
    return bytes(memory)


@dataclass
class FakeDaemon:
    """``answers`` by request; ``fails_at`` is the first request without a response. ``thaws`` are the results of the
    next thaws and clock settings.
    """

    answers: dict[str, DaemonResponse] = field(
        default_factory=lambda: {"PUT /freeze": DaemonResponse(200, '{"sessions": 3}')}
    )
    fails_at: str = ""
    log: list[str] = field(default_factory=list)
    frozen: bool = False
    thaws: list[Seconds | None] = field(default_factory=list)

    async def thaw(self, clock: Clock, *, has_stopped: bool = True) -> Seconds | None:
        self.log.append("PUT /thaw and the time" if has_stopped else "PUT /thaw")
        late = self.thaws.pop(0) if self.thaws else Seconds(0.0)
        self.frozen = self.frozen and late is None
        return late

    async def set_clock(self, clock: Clock) -> Seconds | None:
        self.log.append("PUT /clock")
        return self.thaws.pop(0)

    async def ask(self, method: str, path: str, body: str = "", seconds: float = 5.0) -> DaemonResponse:
        request = f"{method} {path}"
        self.log.append(request)
        answer = self.answers.get(request, DaemonResponse(200, "done"))
        # An order that is not answered may have been carried out all the same.
        self.frozen = self.frozen or (path == "/freeze" and answer.status == 200)
        if request == self.fails_at:
            self.fails_at = ""
            raise GuestError("the guest did not answer")
        return answer


@dataclass
class FakeStandIn(NetworkStandIn):
    """``calls_at`` is the call at which a frame wakes the guest: the place that it was told to read from."""

    frames: Sequence[Frame] = ()
    places: list[str] = field(default_factory=list)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    clients: list[str] = field(default_factory=list)
    _diverted: socket.socket | None = None

    def read_diverted(self, end: socket.socket) -> None:
        self._leave()
        self._diverted = end
        self.places.append("diverted")

    def read_network(self) -> None:
        self._leave()
        self.places.append("network")

    def stop_reading(self) -> None:
        self._leave()
        self.places.append("nothing")

    async def wait_for_wake(self) -> str:
        await self.woken.wait()
        return "10.100.0.7:40000 sent data"

    async def drain(self) -> None:
        self.stop_reading()

    def queued_frames(self, header_size: int | None = None) -> list[Frame]:
        return list(self.frames)

    def close(self) -> None:
        self._leave()
        self.places.append("closed")

    def pass_on_clients(self) -> None:
        self.clients.append("passed on")

    def hang_up_clients(self) -> None:
        self.clients.append("hung up")

    def _leave(self) -> None:
        if self._diverted is not None:
            self._diverted.close()
            self._diverted = None


@dataclass
class Target(SavedMachine):
    """An empty machine on another node. ``reads`` is set while it loads what it receives."""

    run_state: str = "inmigrate"
    reads: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    obeys: bool = True
    image: Path = Path()
    had_image: list[bool] = field(default_factory=list)
    _given: socket.socket | None = None
    _loading: asyncio.Task[None] | None = None

    async def pass_socket(self, name: str, end: socket.socket) -> None:
        if name == "transfer":
            self._given = end.dup()
        else:
            await super().pass_socket(name, end)

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        if command == "migrate-incoming":
            self._note(command)
            self.begun.set()
            self._loading = asyncio.create_task(self._load())
            return {}
        if command == "cont":
            self.had_image.append(self.image.exists())
            if not self.obeys:
                self._note(command)
                return {}
        return await super().call(command, arguments)

    async def _load(self) -> None:
        await self.reads.wait()
        assert self._given is not None
        self._given.setblocking(True)
        parts = bytearray()
        while part := await asyncio.to_thread(self._given.recv, 65536):
            parts += part
        self._given.close()
        self.loaded = bytes(parts)
        self.run_state = "paused" if self.loaded == MEMORY else "inmigrate"

    async def kill(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
        if self._given is not None:
            self._given.close()
        await super().kill()


def descriptors() -> int:
    """Open descriptors of this process."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
