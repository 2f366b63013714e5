"""The QEMU process of one guest, and its QMP monitor.

The monitor is one end of a socket pair that QEMU inherits, so there is no path that could be stale, too long, or open
to other users. Every call has a timeout, and every failure is a ``GuestError`` that names the command.

The kernel kills QEMU when the thread that launched it ends (PDEATHSIG), so run the event loop on the main thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from qemu.qmp import Message, QMPClient, QMPError, Runstate

from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.handover import UNDER_WAY
from deploy.neonvm.qemu.machine import Machine
from deploy.neonvm.qemu.reports import (
    FAILURE_EVENTS,
    OUT_OF_SPACE,
    failure_in_event,
    failure_in_run_state,
    parse_report,
    parse_run_state,
    parse_timestamp,
)
from deploy.owned_process import run_command

_CALL_SECONDS: Final = 10.0
"""QEMU responds within a second or two even with an emulated guest under full load; longer is a hang."""

_ATTEMPTS: Final = 3
_SPACE_SECONDS: Final = 5.0
"""Pause before a guest that is out of space is continued."""
_LONGEST_MESSAGE: Final = 256 * 1024
"""Bytes. QEMU's longest response lists the slots of all CPUs, 200 bytes each. The library's default is 10 MiB."""
_EVENTS: Final = frozenset({"MIGRATION", "STOP", "RESUME"})


class EventListeners:
    """Callbacks for a machine's QMP events."""

    def __init__(self) -> None:
        self._all: list[tuple[str, Callable[[], None]]] = []

    @contextmanager
    def on_event(self, event: str, callback: Callable[[], None]) -> Iterator[None]:
        """Call ``callback``, which must not raise, for each ``event`` within the context."""
        listener = event, callback
        self._all.append(listener)
        try:
            yield
        finally:
            self._all.remove(listener)

    def dispatch(self, event: str) -> None:
        """Call the listeners of ``event``."""
        # A copy, because a listener may remove itself.
        for listener in [listener for name, listener in self._all if name == event]:
            listener()


class Monitor(EventListeners):
    """One QMP connection. ``who`` names the machine in errors. ``listeners`` get its events, if they outlive it. A pod
    may send anything at the other end, so messages have a maximum length, and events take no memory.
    """

    def __init__(self, who: str, listeners: EventListeners | None = None) -> None:
        super().__init__()
        self._who = who
        self._listeners = listeners or self
        # Without a name, for each of which the library would keep a logger forever.
        self._client = QMPClient(readbuflen=_LONGEST_MESSAGE)
        # It logs each message that it does not expect; every failure is a ``GuestError`` anyway.
        self._client.logger.setLevel(logging.CRITICAL)
        self._client.events.event_filter = self._note
        self._times: dict[str, float | None] = {}
        self._progress = asyncio.Event()
        self._failure = ""
        self._suspicion = asyncio.Event()
        self._connected = asyncio.Event()

    def _note(self, message: Message) -> bool:
        """Note an event. Always return False: the library would keep the event as long as the connection."""
        event = str(message["event"])
        if event in _EVENTS:
            self._times[event] = parse_timestamp(message.get("timestamp"))
            self._progress.set()
            self._listeners.dispatch(event)
        if event in FAILURE_EVENTS:
            self._failure = self._failure or failure_in_event(event, message.get("data"))
            if self._failure or event == "STOP":
                self._suspicion.set()
        return False

    async def connect(self, end: socket.socket) -> None:
        """Negotiate QMP on the socket. Raises ``GuestError``."""
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                await self._client.connect(end)
        except (QMPError, OSError, EOFError, TimeoutError, AssertionError) as error:
            # AssertionError: the client asserts after the greeting that it still runs, and QEMU may have just exited.
            raise GuestError(f"{self._who}: QMP negotiation failed: {_message(error)}") from error
        self._connected.set()

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        """Run one command and return its result. Raises ``GuestError``."""
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                return await self._client.execute(command, dict(arguments or {}))
        except TimeoutError as error:
            raise GuestError(f"{self._who}: no response from QEMU to {command} within {_CALL_SECONDS:.0f} s") from error
        except (QMPError, OSError, EOFError) as error:
            raise GuestError(f"{self._who}: QEMU refused {command}: {_message(error)}") from error

    async def pass_socket(self, name: str, end: socket.socket) -> None:
        """Pass a socket to QEMU under the fdname ``name``. Raises ``GuestError``."""
        try:
            # SCM_RIGHTS first, then the command that names the descriptor.
            self._client.send_fd_scm(end.fileno())
        except (QMPError, OSError) as error:
            raise GuestError(f"{self._who}: cannot pass socket {name} to QEMU: {_message(error)}") from error
        await self.call("getfd", {"fdname": name})

    @property
    def is_up(self) -> bool:
        """True if the connection is up."""
        return self._client.runstate is Runstate.RUNNING

    async def wait_for_event(self, seconds: float) -> None:
        """Wait up to ``seconds`` for a STOP, RESUME or MIGRATION event."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._progress.wait()
        self._progress.clear()

    def event_time(self, event: str) -> float | None:
        """Unix time of the last ``event``, by QEMU's clock; None if never or unknown."""
        return self._times.get(event)

    async def failure(self) -> str:
        """Wait until QEMU reports that its guest has failed; return the reason. Never returns if QEMU has exited."""
        await self._connected.wait()  # events may arrive before commands can be sent
        while True:
            await self._suspicion.wait()
            self._suspicion.clear()
            if self._failure:
                return self._failure
            run_state = await self._run_state()
            if reason := failure_in_run_state(run_state):
                return reason
            if run_state == OUT_OF_SPACE:
                await asyncio.sleep(_SPACE_SECONDS)
                await self._continue()

    async def _continue(self) -> None:
        """Continue a guest that is still out of space. Another check follows unless it runs."""
        self._suspicion.set()
        with suppress(GuestError):
            # A migration that is under way may end at any moment, and its source must not run then.
            is_moving = parse_report(await self.call("query-migrate")).status in UNDER_WAY
            if not is_moving and parse_run_state(await self.call("query-status")) == OUT_OF_SPACE:
                await self.call("cont")

    async def _run_state(self) -> str:
        for _ in range(_ATTEMPTS):
            with suppress(GuestError):
                return parse_run_state(await self.call("query-status"))
        return ""  # the exit status explains more

    async def close(self) -> None:
        """Disconnect. QEMU may already be gone."""
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                await self._client.disconnect()
        # The client raises here the error that ended its reader.
        except (QMPError, OSError, EOFError, TimeoutError, ValueError, TypeError, RecursionError):
            return


def _message(error: BaseException) -> str:
    return str(error) or type(error).__name__


_QUIT_SECONDS: Final = 5.0
_FAILED_QUIT_SECONDS: Final = 0.5
_LAST_EVENT_SECONDS: Final = 0.2
"""How long to wait, after QEMU has exited, for an event that explains it."""
_LONGEST_LOG: Final = 256 * 1024
"""Bytes of QEMU's output; a longer log is truncated."""
_LOG_CHECK: Final = 10.0
"""Seconds between checks of the log's length."""


class Qemu:
    """The ``Hypervisor`` of this machine."""

    async def make_disk(self, disk: Path, base: Path) -> None:
        """Create a qcow2 overlay of a ``.raw`` or ``.qcow2`` file. Raises ``GuestError``."""
        half = disk.with_suffix(".new")
        options = ("-q", "-f", "qcow2", "-F", base.suffix.removeprefix("."), "-b", str(base))
        code, _, errors = await run_command("qemu-img", "create", *options, str(half))
        if code:
            raise GuestError(f"cannot create disk {disk}: {errors}")
        # Renamed last, so that an interrupted call leaves no partial disk.
        half.rename(disk)

    async def launch(
        self, who: str, command: Callable[[int], Sequence[str]], log: Path, inherit: Sequence[int] = ()
    ) -> Machine:
        """Start a QEMU process. Raises ``GuestError``."""
        return await QemuProcess.launch(who, command, log, inherit)


class QemuProcess(Monitor):
    """A ``Machine`` in a child process."""

    def __init__(self, process: asyncio.subprocess.Process, who: str, log: Path) -> None:
        super().__init__(who)
        self._process = process
        self._log = log
        self._is_ending = False
        # One task for the lifetime of the process, so that no failure is missed.
        self._watch = asyncio.create_task(self._watched())

    @classmethod
    async def launch(
        cls, who: str, command: Callable[[int], Sequence[str]], log: Path, inherit: Sequence[int] = ()
    ) -> QemuProcess:
        """Start ``command``, called with the file descriptor of the monitor; output goes to ``log``. Raises
        ``GuestError`` with the end of the log if QEMU does not start.
        """
        ours, theirs = socket.socketpair()
        # The first truncates the log, the second appends to it, also after the next truncation.
        with theirs, log.open("wb"), log.open("ab") as complaints:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command(theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=complaints,
                    stderr=complaints,
                    pass_fds=(theirs.fileno(), *inherit),
                    # Ctrl-C reaches only the owner, which then shuts its guests down in order.
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
                raise GuestError(f"{error}; its output: {machine.output_tail()}") from error
            raise
        return machine

    @property
    def alive(self) -> bool:
        """True if QEMU runs and its guest has not failed."""
        return self._process.returncode is None and not self._watch.done()

    async def failed(self) -> str:
        """Wait until the guest has failed or QEMU has exited; return a short reason."""
        # Cancelling one caller must not end the watch for all others.
        return await asyncio.shield(self._watch)

    async def _watched(self) -> str:
        """The first failure of the guest; if none is reported, the exit status of QEMU."""
        gone = asyncio.ensure_future(self._process.wait())
        failure = asyncio.ensure_future(self.failure())
        try:
            tasks = gone, failure
            while not (await asyncio.wait(tasks, timeout=_LOG_CHECK, return_when=asyncio.FIRST_COMPLETED))[0]:
                self._truncate_log()
            if not failure.done():
                # The monitor's last event may be still in flight, and explains more than the exit status.
                await asyncio.wait((failure,), timeout=0 if self._is_ending else _LAST_EVENT_SECONDS)
            return failure.result() if failure.done() else self._exit()
        finally:
            gone.cancel()
            failure.cancel()

    def _truncate_log(self) -> None:
        """Truncate a log that is too long: a guest can make QEMU print thousands of lines a second."""
        with suppress(OSError):
            if self._log.stat().st_size > _LONGEST_LOG:
                # Not rotated: only the last output matters.
                os.truncate(self._log, 0)

    def _exit(self) -> str:
        code = self._process.returncode or 0
        return f"QEMU was killed by {signal.Signals(-code).name}" if code < 0 else f"QEMU exited with code {code}"

    def output_tail(self) -> str:
        """The end of QEMU's output; "nothing" if it is empty."""
        complaints = self._log.read_text(errors="replace") if self._log.exists() else ""
        # QEMU prints the cause of its exit last.
        words = " ".join(complaints.split("\n")[-6:]).strip()[-500:]
        code = self._process.returncode
        # SIGKILL came from `kill`.
        if code is not None and code < 0 and code != -signal.SIGKILL:
            words = f"QEMU was killed by {signal.Signals(-code).name}{words and ': '}{words}"
        return words or "nothing"

    async def kill(self) -> None:
        """Kill QEMU. Data that its guest has not written is lost."""
        self._is_ending = True
        if self._process.returncode is None:
            # It may have exited without having been reaped.
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()
        await asyncio.wait((self._watch,))
        # Last: the watch reads the monitor until the process is gone.
        await self.close()

    async def end(self) -> None:
        """Ask QEMU to quit, and kill it if it does not. QEMU's writes are in the host's page cache, so none is lost."""
        self._is_ending = True
        try:
            if self._process.returncode is None:
                await self._quit()
        finally:
            await self.kill()

    async def _quit(self) -> None:
        try:
            # Little time for a failed guest: it is about to be restarted.
            async with asyncio.timeout(_FAILED_QUIT_SECONDS if self._watch.done() else _QUIT_SECONDS):
                await self.call("quit")
                await self._process.wait()
        except (GuestError, TimeoutError):
            return  # `end` kills it next
