"""A migration between two QEMUs that do as a test says."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from deploy.neonvm.ports import GuestError, TransferError, TransferFault
from deploy.neonvm.qemu.frame_handover import FrameHandover
from deploy.neonvm.qemu.machine import OpenRoute, socket_pair
from deploy.neonvm.qemu.transfer import Transfer, TransferEndpoints
from deploy.neonvm.transfer_terms import TransferInfo, TransferLimits
from protocol.units import Bytes, Seconds
from tests.neonvm.qemu.fakes import SteppedClock

CALL = 10.0
"""So long a silent machine keeps a caller waiting."""

LIMITS = TransferLimits(downtime=Seconds(0.02), bandwidth=Bytes(2**30), timeout=Seconds(300.0))


@dataclass
class Scripted:
    """A QEMU that migrates by what a test says.

    ``at`` maps seconds to what happens then. Until ``silent_until`` a call takes ``CALL`` seconds and fails, though
    what it asks for is done. ``on_cont`` happens when it is told to run.
    """

    who: str
    clock: SteppedClock
    story: list[str]
    run_state: str = "running"
    migration: str = ""
    alive: bool = True
    silent_until: float = 0.0
    stopped_at: float | None = None
    at: dict[float, Callable[[], None]] = field(default_factory=dict)
    listeners: list[tuple[str, Callable[[], None]]] = field(default_factory=list)
    obeys: bool = True
    on_cont: Callable[[], None] = lambda: None
    figures: dict[str, object] = field(default_factory=dict)

    def let_time_do(self) -> None:
        for when in sorted(self.at):
            if when <= self.clock.instant:
                self.at.pop(when)()

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        self.let_time_do()
        if not self.alive:
            raise GuestError(f"{self.who}: gone")
        if not command.startswith("query-"):
            self.story.append(f"{self.who}: {command}")
        answer = self._do(command)
        if self.clock.instant < self.silent_until:
            self.clock.instant += CALL
            raise GuestError(f"{self.who}: QEMU did not answer {command} within 10 s")
        return answer

    def dies(self) -> None:
        self.alive = False

    def falls_silent(self, seconds: float) -> None:
        self.silent_until = self.clock.instant + seconds

    def _do(self, command: str) -> object:
        if command == "cont":
            self.run_state = "running" if self.obeys else self.run_state
            self.on_cont()
        if command == "migrate":
            self.migration = "active"
        if command == "migrate_cancel" and self.migration == "active":
            self.migration = "cancelled"
        migration = {"status": self.migration or "none", **self.figures}
        answers = {"query-migrate": migration, "query-status": {"status": self.run_state}}
        return answers.get(command, {})

    def has_sent(self) -> None:
        self.stops()
        self.migration, self.run_state = "completed", "postmigrate"

    def stops(self) -> None:
        self.run_state, self.stopped_at = "finish-migrate", self.clock.instant
        self.say("STOP")

    def goes_on(self) -> None:
        """By itself, as a QEMU does whose target has died."""
        self.migration, self.run_state = "failed", "running"
        self.say("RESUME")

    def say(self, event: str) -> None:
        for waits_for, heard in list(self.listeners):
            if waits_for == event:
                heard()

    @contextmanager
    def on_event(self, event: str, heard: Callable[[], None]) -> Iterator[None]:
        self.listeners.append((event, heard))
        yield
        self.listeners.remove((event, heard))

    async def pass_socket(self, name: str, end: socket.socket) -> None:
        await self.call("getfd")

    async def wait_for_event(self, seconds: float) -> None:
        self.clock.instant += seconds
        await asyncio.sleep(0)

    def event_time(self, event: str) -> float | None:
        return self.stopped_at if event == "STOP" else None

    async def failed(self) -> str:
        raise AssertionError("the transfer asks for more than that")

    def output_tail(self) -> str:
        return f"the last words of {self.who}"

    async def kill(self) -> None:
        if self.alive:
            self.story.append(f"{self.who} is killed")
        self.alive = False

    async def end(self) -> None:
        self.story.append(f"{self.who} ends")
        self.alive = False


@dataclass
class Frames(FrameHandover):
    """Frames that are handed over by what a test sees of it; the first ``faults`` attempts to give them back fail."""

    story: list[str]
    faults: int = 0

    async def prepare(self) -> None:
        self.story.append("frames will be kept")

    async def divert(self) -> None:
        self.story.append("frames are handed over")

    async def restore(self) -> None:
        self.faults -= 1
        if self.faults >= 0:
            raise GuestError("source: it may still hand over its frames")
        self.story.append("frames stay with the source")

    async def finish(self) -> None:
        self.story.append("no frame is handed over any more")


class Move:
    """A source that has sent everything after two seconds, and a target that has received it then."""

    def __init__(self) -> None:
        self.clock, self.story = SteppedClock(), list[str]()
        self.frames = Frames(self.story)
        self.progress: list[TransferInfo] = []
        self.source = Scripted("source", self.clock, self.story)
        self.target = Scripted("target", self.clock, self.story, run_state="inmigrate")
        self.source.at[2.0] = self._sent
        self.open_route: OpenRoute = socket_pair
        self.begin()

    def begin(self, limits: TransferLimits = LIMITS) -> None:
        """A process begins the move, or takes it up."""
        ends = TransferEndpoints(
            "vm",
            self.source,
            self.target,
            self.clock,
            lambda: self.story.append("frames go to the source"),
            lambda: self.story.append("frames go to the target"),
            self.frames,
            self.open_route,
        )
        self.transfer = Transfer(ends, limits, self.progress.append)

    def _sent(self) -> None:
        self.source.has_sent()
        self.target.run_state = "paused"

    async def fails(self) -> tuple[TransferFault, bool]:
        """The fault, and whether the source still runs."""
        with pytest.raises(TransferError) as caught:
            await self.transfer.run()
        return caught.value.fault, self.source.alive

    def since(self, what: str) -> list[str]:
        """Events after this point."""
        return self.story[self.story.index(what) :]
