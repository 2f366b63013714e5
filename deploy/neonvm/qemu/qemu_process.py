"""The process around one guest, and its monitor: launched, watched, and never outliving its owner.

The monitor is one end of a socket pair that QEMU inherits: there is no path that can be stale, too long, or open to
other users. Every call has a time-out, and every failure is a ``GuestError`` that names the command.

The kernel kills QEMU when the thread that launched it ends (PDEATHSIG), so the event loop belongs on the main thread.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from qemu.qmp import EventListener, Message, QMPClient, QMPError, Runstate

from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.machine import Machine
from deploy.neonvm.qemu.reports import (
    FAILURE_EVENTS,
    failure_in_event,
    failure_in_run_state,
    parse_run_state,
    parse_timestamp,
)

_CALL_SECONDS: Final = 10.0
"""An emulated guest under full load answers its monitor within a second or two; this is a hang."""

_ATTEMPTS: Final = 3
_EVENTS: Final = ("MIGRATION", "STOP", "RESUME")


class Hearings:
    """Listeners to a machine's events, called when an event is read."""

    def __init__(self) -> None:
        self._all: list[tuple[str, Callable[[], None]]] = []

    @contextmanager
    def hearing(self, event: str, heard: Callable[[], None]) -> Iterator[None]:
        """Within it ``heard`` is called with each ``event``. It never raises."""
        listener = event, heard
        self._all.append(listener)
        try:
            yield
        finally:
            self._all.remove(listener)

    def tell(self, message: Message) -> bool:
        """Tells who waits for it. Always true: as a filter of events it lets all pass."""
        # A copy, because a listener may stop listening when it is called.
        for listener in [listener for event, listener in self._all if event == message["event"]]:
            listener()
        return True


class Monitor(Hearings):
    """One QMP connection. ``who`` names the machine in errors; ``hearings`` gets its events, if they outlive it."""

    def __init__(self, who: str, hearings: Hearings | None = None) -> None:
        super().__init__()
        self._who = who
        self._client = QMPClient(who)
        self._listener = EventListener(_EVENTS, (hearings or self).tell)
        # A queue of its own, or one reader would take the other's events.
        self._failures = EventListener(FAILURE_EVENTS)
        self._client.register_listener(self._listener)
        self._client.register_listener(self._failures)
        self._connected = asyncio.Event()

    async def connect(self, end: socket.socket) -> None:
        """Greets the QEMU at the other end. Raises ``GuestError``."""
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                await self._client.connect(end)
        except (QMPError, OSError, EOFError, TimeoutError, AssertionError) as error:
            # The client asserts that it still runs after the greeting; a QEMU that has just ended breaks that.
            raise GuestError(f"{self._who}: QEMU did not open its monitor: {_said(error)}") from error
        self._connected.set()

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        """Runs one command and returns its result. Raises ``GuestError``."""
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                return await self._client.execute(command, dict(arguments or {}))
        except TimeoutError as error:
            raise GuestError(f"{self._who}: QEMU did not answer {command} within {_CALL_SECONDS:.0f} s") from error
        except (QMPError, OSError, EOFError) as error:
            raise GuestError(f"{self._who}: QEMU refused {command}: {_said(error)}") from error

    async def give(self, name: str, end: socket.socket) -> None:
        """Passes a socket on to QEMU, which knows it by ``name`` from now on. Raises ``GuestError``."""
        try:
            # The descriptor goes ahead of the command that gives it its name.
            self._client.send_fd_scm(end.fileno())
        except (QMPError, OSError) as error:
            raise GuestError(f"{self._who}: QEMU cannot be given the socket {name}: {_said(error)}") from error
        await self.call("getfd", {"fdname": name})

    @property
    def is_up(self) -> bool:
        """True if the connection still holds."""
        return self._client.runstate is Runstate.RUNNING

    async def wait_for_event(self, seconds: float) -> None:
        """Returns when the machine stops, resumes or gets on with a migration, and after ``seconds`` at the latest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._listener.get()

    def event_time(self, event: str) -> float | None:
        """The time when ``event`` last happened, in seconds since 1970 by QEMU; None if never or unknown."""
        # The last one counts: a guest may stop and resume several times.
        for message in reversed(self._listener.history):
            if message["event"] == event:
                return parse_timestamp(message.get("timestamp"))
        return None

    async def failure(self) -> str:
        """Returns once QEMU says that its guest cannot go on, with the reason. A QEMU that has ended says nothing."""
        await self._connected.wait()  # an event may arrive before commands can be sent
        while True:
            message = await self._failures.get()
            event = str(message["event"])
            if reason := failure_in_event(event, message.get("data")):
                return reason
            if event == "STOP" and (reason := failure_in_run_state(await self._run_state())):
                return reason

    async def _run_state(self) -> str:
        for _ in range(_ATTEMPTS):
            with suppress(GuestError):
                return parse_run_state(await self.call("query-status"))
        return ""  # the end of the process says more

    async def close(self) -> None:
        """Hangs up; QEMU may already be gone."""
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                await self._client.disconnect()
        # The client raises here what broke its reader before.
        except (QMPError, OSError, EOFError, TimeoutError, ValueError, RecursionError):
            return  # nothing is left to hang up on, or what it said last could not be read


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


_QUIT_SECONDS: Final = 5.0
_FAILED_QUIT_SECONDS: Final = 0.5
_LAST_EVENT_SECONDS: Final = 0.2
"""How long an event that explains the end of the process may arrive after that end."""


class Qemu:
    """The ``Hypervisor`` of this machine. Its processes inherit the descriptors ``inherit``."""

    def __init__(self, inherit: Sequence[int] = ()) -> None:
        self._inherit = tuple(inherit)

    async def make_disk(self, disk: Path, base: Path) -> None:
        """An overlay of a ``.raw`` or ``.qcow2`` file. Raises ``GuestError``."""
        half = disk.with_suffix(".new")
        process = await asyncio.create_subprocess_exec(
            "qemu-img", "create", "-q", "-f", "qcow2", "-F", base.suffix.removeprefix("."), "-b", str(base), str(half),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, complaint = await process.communicate()
        if process.returncode:
            raise GuestError(f"the disk {disk} cannot be made: {complaint.decode(errors='replace').strip()}")
        # The disk takes its name last: an interrupted call leaves no partial disk.
        half.rename(disk)

    async def launch(self, who: str, command: Callable[[int], Sequence[str]], log: Path) -> Machine:
        """A QEMU process of ours. Raises ``GuestError``."""
        return await QemuProcess.launch(who, command, log, self._inherit)


class QemuProcess(Monitor):
    """A ``Machine`` that is a QEMU process of ours."""

    def __init__(self, process: asyncio.subprocess.Process, who: str, log: Path) -> None:
        super().__init__(who)
        self._process = process
        self._log = log
        self._is_ending = False
        # One task from launch to end, so a failure is known at once and stays known.
        self._watch = asyncio.create_task(self._watched())

    @classmethod
    async def launch(
        cls, who: str, command: Callable[[int], Sequence[str]], log: Path, inherit: Sequence[int] = ()
    ) -> QemuProcess:
        """Starts ``command``, with the number of its monitor's socket; its errors go to ``log``. Raises ``GuestError``
        with the end of the log if QEMU does not come up.
        """
        ours, theirs = socket.socketpair()
        with theirs, log.open("wb") as complaints:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command(theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=complaints,
                    stderr=complaints,
                    pass_fds=(theirs.fileno(), *inherit),
                    # Ctrl-C reaches the owner alone, which then ends its guests in order.
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        machine = cls(process, who, log)
        try:
            await machine.connect(ours)
        except BaseException as error:
            await machine.end()
            if isinstance(error, GuestError):
                raise GuestError(f"{error}; it said: {machine.last_words()}") from error
            raise
        return machine

    @property
    def alive(self) -> bool:
        """True if QEMU runs and its guest can go on."""
        return self._process.returncode is None and not self._watch.done()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    async def failed(self) -> str:
        """Returns once the guest cannot go on or QEMU has ended, and says why in a few words."""
        # A caller that is cancelled must not end the watch of all others.
        return await asyncio.shield(self._watch)

    async def _watched(self) -> str:
        """The first reason for which the guest cannot go on; that the process has ended is the last resort."""
        gone = asyncio.ensure_future(self._process.wait())
        failure = asyncio.ensure_future(self.failure())
        try:
            await asyncio.wait((gone, failure), return_when=asyncio.FIRST_COMPLETED)
            if not failure.done():
                # The monitor's last event may still be on its way, and says more than the end of the process.
                await asyncio.wait((failure,), timeout=0 if self._is_ending else _LAST_EVENT_SECONDS)
            return failure.result() if failure.done() else self._exit()
        finally:
            gone.cancel()
            failure.cancel()

    def _exit(self) -> str:
        code = self._process.returncode or 0
        return f"QEMU was ended by {signal.Signals(-code).name}" if code < 0 else f"QEMU ended with exit code {code}"

    def last_words(self) -> str:
        """The end of what QEMU has complained about; "nothing" if it has not."""
        complaints = self._log.read_text(errors="replace") if self._log.exists() else ""
        # The last lines: QEMU says the cause of its end last.
        words = " ".join(complaints.split("\n")[-6:]).strip()[-500:]
        code = self._process.returncode
        # SIGKILL is ours.
        if code is not None and code < 0 and code != -signal.SIGKILL:
            words = f"QEMU ended by {signal.Signals(-code).name}{words and ': '}{words}"
        return words or "nothing"

    async def kill(self) -> None:
        """Ends QEMU at once; what its guest has not written is lost."""
        self._is_ending = True
        if self._process.returncode is None:
            # It may have ended, and not been reaped yet.
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()
        await asyncio.wait((self._watch,))
        # Last: the watch reads the monitor until the process is gone.
        await self.close()

    async def end(self) -> None:
        """Asks QEMU to quit, and kills it if it does not. Nothing is lost: all that QEMU has written is in the host's
        page cache.
        """
        self._is_ending = True
        try:
            if self._process.returncode is None:
                await self._quit()
        finally:
            await self.kill()

    async def _quit(self) -> None:
        try:
            # A guest that has failed gets little time: whoever restarts it is waiting.
            async with asyncio.timeout(_FAILED_QUIT_SECONDS if self._watch.done() else _QUIT_SECONDS):
                await self.call("quit")
                await self._process.wait()
        except (GuestError, TimeoutError):
            return  # the kill that follows always works
