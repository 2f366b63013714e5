"""A QEMU that runs nothing: its runner drives it as a ``Machine``, and controllers speak QMP with it over a socket."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.machine import Machine
from deploy.neonvm.runner.gate_server import split
from deploy.neonvm.runner.qmp_gate import GateState, refusal

Arguments = Mapping[str, object]


async def _nothing_is_known() -> GateState:
    return GateState(max_plugged=2**40)


@dataclass
class FakeQemu:
    """One process. ``peers`` finds the QEMU at an address; ``ran`` is called whenever a guest starts to run."""

    address: str
    peers: Callable[[str], FakeQemu | None]
    ran: Callable[[], None]
    read_gate_state: Callable[[], Awaitable[GateState]] = _nothing_is_known
    run_state: str = "running"
    migration: str = "none"
    size: int = 1024**3
    base: int = 2 * 1024**3
    target: FakeQemu | None = None
    reason: str = ""
    asked: list[str] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    clients: set[asyncio.StreamWriter] = field(default_factory=set)
    is_deaf: bool = False

    @property
    def alive(self) -> bool:
        return not self.over.is_set()

    @property
    def runs(self) -> bool:
        return self.alive and self.run_state == "running"

    async def call(self, command: str, arguments: Arguments | None = None) -> object:
        return self._do(command, arguments or {})

    def _do(self, command: str, arguments: Arguments) -> object:
        if not self.alive:
            raise GuestError(f"{self.address}: gone")
        self.asked.append(command)
        match command:
            case "query-status":
                return {"status": self.run_state}
            case "query-migrate":
                return {"status": self.migration}
            case "qom-set":
                self.size = int(str(arguments["value"]))
            case "qom-get":
                return self.size
            case "query-memory-size-summary":
                return {"base-memory": self.base, "plugged-memory": 0}
            case "migrate":
                self._send_to(str(arguments["uri"]).split(":")[1])
            case "migrate_cancel":
                self.migration = "cancelled" if self.migration == "active" else self.migration
            case "cont":
                self.run_state = "running"
                self.say("RESUME")
                self.ran()
            case "quit":
                self.end_with("QEMU exited with code 0")
        return {}

    def _send_to(self, address: str) -> None:
        self.target = self.peers(address)
        if self.target is None or not self.target.alive:
            raise GuestError(f"nothing listens at {address}")
        self.migration = "active"
        self.say("MIGRATION")

    def has_sent(self) -> None:
        """Everything has been sent, and the guest is paused."""
        assert self.target is not None
        self.migration, self.run_state = "completed", "postmigrate"
        self.target.migration, self.target.run_state = "completed", "paused"
        self.target.size = self.size
        for each in (self, self.target):
            each.say("STOP")

    def end_with(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.over.set()

    def say(self, event: str) -> None:
        line = (
            json.dumps({"event": event, "timestamp": {"seconds": 1, "microseconds": 0}, "data": {}}).encode() + b"\r\n"
        )
        for writer in self.clients:
            writer.write(line)

    async def connection(self) -> socket.socket:
        """A client's end of a new monitor."""
        if not self.alive or self.is_deaf:
            raise ConnectionRefusedError(f"{self.address} does not answer")
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=ours)
        writer.write(b'{"QMP": {"version": {"qemu": {}, "package": ""}, "capabilities": ["oob"]}}\r\n')
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return theirs

    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.clients.add(writer)
        try:
            said = ""
            while self.alive and (part := await reader.read(4096)):
                messages, said = split(said + part.decode())
                for message in messages:
                    assert isinstance(message, dict)
                    echoed = {"id": message["id"]} if "id" in message else {}
                    why = refusal(message, await self.read_gate_state())
                    writer.write(json.dumps(self._answered(message, why) | echoed).encode() + b"\r\n")
        finally:
            self.clients.discard(writer)
            writer.close()

    def _answered(self, message: dict[str, object], why: str) -> dict[str, object]:
        arguments = message.get("arguments")
        try:
            if why:
                raise GuestError(why)
            return {"return": self._do(str(message["execute"]), arguments if isinstance(arguments, dict) else {})}
        except GuestError as error:
            return {"error": {"class": "GenericError", "desc": str(error)}}

    async def failed(self) -> str:
        await self.over.wait()
        return self.reason

    def output_tail(self) -> str:
        return "nothing"

    async def kill(self) -> None:
        self.end_with("it was killed")

    async def end(self) -> None:
        self.end_with("it was told to end")

    async def pass_socket(self, name: str, end: socket.socket) -> None:
        raise AssertionError("nothing is passed between pods")

    async def wait_for_event(self, seconds: float) -> None:
        raise AssertionError("its runner waits for no event")

    def on_event(self, event: str, heard: Callable[[], None]) -> AbstractContextManager[None]:
        raise AssertionError("its runner hears no event")

    def event_time(self, event: str) -> float | None:
        return None


@dataclass
class FakeQemus:
    """The hypervisor of one pod, with its only machine."""

    machine: FakeQemu

    async def make_disk(self, disk: object, base: object) -> None:
        """There is no disk."""

    async def launch(self, who: str, command: Callable[[int], object], log: object, inherit: object = ()) -> Machine:
        words = list(command(3))  # type: ignore[call-overload]
        self.machine.run_state = "inmigrate" if "-incoming" in words else "running"
        if self.machine.runs:
            self.machine.ran()
        return self.machine
