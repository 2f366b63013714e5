"""A guest that falls asleep, and parts of it that fail in one way each."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deploy.neonvm.qemu.daemon import DaemonResponse
from deploy.neonvm.sleep.image import SleepImage
from deploy.neonvm.sleep.suspend import Suspend
from protocol.runtime.clock import Clock
from protocol.units import Bytes, Instant, Seconds
from tests.neonvm.qemu.fakes import SteppedClock
from tests.neonvm.sleep.fakes import FakeDaemon, FakeStandIn, SavedMachine


@dataclass
class World:
    """One guest with all around it."""

    folder: Path
    machine: SavedMachine = field(default_factory=SavedMachine)
    daemon: FakeDaemon = field(default_factory=FakeDaemon)
    stand_in: FakeStandIn = field(default_factory=FakeStandIn)
    disk: Path = Path(__file__)  # any file that can be flushed
    boots: int = 0

    async def _boot(self) -> SavedMachine:
        self.boots += 1
        return SavedMachine()

    def fall(self) -> Suspend:
        image, clock = SleepImage(self.folder), SteppedClock()
        parts = (self.machine, self.daemon, self.stand_in, image, clock, Seconds(0.02), self.disk)
        return Suspend("default/db", *parts, has_memory_device=True, boot=self._boot)  # type: ignore[arg-type]  # the daemon is a fake

    def runs_on(self) -> bool:
        """The attempt has left no trace: the guest runs, is not frozen, reads its frames, and has no image."""
        objects = [str(arguments.get("id")) for name, arguments in self.machine.calls if name == "object-add"]
        return (
            self.machine.run_state == "running"
            and not self.daemon.frozen
            and list(self.folder.iterdir()) == []
            and (not objects or "qom-list" in self.machine.log[self.machine.log.index("object-add") :])
        )


class LaterSilent(FakeDaemon):
    """Answers the first /freeze, but not the second one."""

    async def ask(self, method: str, path: str, body: str = "", seconds: float = 5.0) -> DaemonResponse:
        if path == "/spare":
            self.fails_at = "PUT /freeze"
        return await super().ask(method, path, body, seconds)


class BusyDaemon(FakeDaemon):
    """Answers nothing but the first /thaw for five seconds, and then carries out everything in the order of arrival."""

    def __init__(self, clock: SteppedClock) -> None:
        super().__init__()
        self.clock, self.set_to = clock, 0.0

    async def thaw(self, clock: Clock, *, has_stopped: bool = True) -> Seconds | None:
        return Seconds(0.3)

    async def set_clock(self, clock: Clock) -> Seconds | None:
        sent = self.clock.now()
        self.clock.instant = Instant(min(sent + 2.0, max(sent, 5.0)))
        # One without an answer is carried out, too, with the time that it had.
        self.set_to = sent
        return Seconds(self.clock.now() - sent) if self.clock.now() >= 5.0 else None


class RefusingMachine(SavedMachine):
    """Always refuses ``refused`` once the guest sleeps, after ``seconds`` on ``clock``."""

    clock: SteppedClock
    refused = ""
    seconds = 0.0
    since = "stop"

    def _note(self, command: str) -> None:
        if command == self.refused and self.since in self.log:
            self.fails_at = command
            self.clock.instant += self.seconds
        super()._note(command)


class BusyMachine(SavedMachine):
    """Keeps saving: it does not report progress, and does not respond to a stop."""

    def __init__(self) -> None:
        super().__init__(fails_at="query-migrate")
        self.is_cancelling = asyncio.Event()

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        if command == "migrate":
            return {}
        if command == "migrate_cancel":
            self.is_cancelling.set()
            await asyncio.Event().wait()
        return await super().call(command, arguments)


class SlowImage(SleepImage):
    """Has received all of the memory, but writes the last part only when the test allows it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.has_all, self.goes_on = threading.Event(), threading.Event()

    def write(self, source: socket.socket) -> Bytes:
        while source.recv(65536):
            continue
        self.has_all.set()
        self.goes_on.wait()
        return super().write(source)


class LateStandIn(FakeStandIn):
    """One that has the last diverted frame only when all has been read."""

    async def drain(self) -> None:
        self.frames = [(b"", b"the end of a session")]
