"""Ports for a running virtual machine, its hypervisor, and the connection between both ends of a migration.

The target may run only after ``GIVEN`` was decided, and the source resumes only after ``KEPT`` was. The first
decision is final.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol, TypeVar

from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.qemu_command import MEMORY_DEVICE
from protocol.runtime.clock import Clock
from protocol.units import Bytes, Seconds

PLUGGED: Final = {"path": f"/machine/peripheral/{MEMORY_DEVICE}", "property": "size"}
"""The QOM property with the plugged size of the virtio-mem device."""
_MEMORY_SECONDS: Final = 3.0
_RETRY_PAUSE: Final = Seconds(0.1)

_Result = TypeVar("_Result")


class Machine(Protocol):
    """A running virtual machine."""

    @property
    def alive(self) -> bool:
        """True if its process runs and its guest has not failed."""

    async def call(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        """Run one QMP command. Raises ``GuestError``."""

    async def pass_socket(self, name: str, end: socket.socket) -> None:
        """Pass a socket to the machine; commands refer to it as ``name``. Raises ``GuestError``."""

    async def wait_for_event(self, seconds: float) -> None:
        """Wait up to ``seconds`` for the machine to stop, resume, or make progress with a migration."""

    def on_event(self, event: str, callback: Callable[[], None]) -> AbstractContextManager[None]:
        """Within the context, call ``callback``, which must not raise, as soon as ``STOP`` or ``RESUME`` is read."""

    def event_time(self, event: str) -> float | None:
        """Unix time of the last ``STOP`` or ``RESUME``; None if never."""

    async def failed(self) -> str:
        """Wait until its guest has failed or its process has exited; return a short reason."""

    def output_tail(self) -> str:
        """The end of its process's output."""

    async def kill(self) -> None:
        """Kill the process and wait until it is gone."""

    async def end(self) -> None:
        """Ask the process to quit, kill it if it does not, and wait until it is gone."""


async def retried(
    machine: Machine | None,
    step: Callable[[], Awaitable[_Result]],
    clock: Clock,
    within: Seconds,
    pause: Seconds = _RETRY_PAUSE,
) -> _Result:
    """Call ``step``, which must be safe to repeat, until it works. Raises its last ``GuestError`` after ``within``, or
    once ``machine``, if there is one yet, has failed.
    """
    deadline = clock.now() + within
    while True:
        try:
            return await step()
        except GuestError:
            if (machine is not None and not machine.alive) or clock.now() >= deadline:
                raise
        await clock.sleep(pause)


async def plug_memory(machine: Machine, size: Bytes, clock: Clock, pause: Seconds) -> None:
    """Set the size of the virtio-mem device and wait up to three seconds for the guest to reach it. Raises
    ``GuestError``.
    """
    await machine.call("qom-set", {**PLUGGED, "property": "requested-size", "value": size.value})
    deadline = clock.now() + _MEMORY_SECONDS
    # The guest may never reach it: it unplugs only memory that it can spare.
    while await machine.call("qom-get", PLUGGED) != size.value and clock.now() < deadline:
        await clock.sleep(pause)


async def plugged_memory(machine: Machine) -> Bytes:
    """The plugged size of the virtio-mem device. Raises ``GuestError``."""
    # Polled, because QEMU rate-limits MEMORY_DEVICE_SIZE_CHANGE.
    size = await machine.call("qom-get", PLUGGED)
    if not isinstance(size, int):
        raise GuestError(f"QEMU's memory device has the size {size!r}")
    return Bytes(size)


class Hypervisor(Protocol):
    """Factory of machines and their disks."""

    async def make_disk(self, disk: Path, base: Path) -> None:
        """Create an overlay of ``base``, which is not changed. Raises ``GuestError``."""

    async def launch(
        self, who: str, command: Callable[[int], Sequence[str]], log: Path, inherit: Sequence[int] = ()
    ) -> Machine:
        """Start ``command``, called with the file descriptor of the monitor, with the descriptors ``inherit``; output
        goes to ``log``. Raises ``GuestError``.
        """


_ENDS: Final = "transfer"


@dataclass(frozen=True, slots=True)
class Route:
    """URI on which the target listens, and arguments of the source's ``migrate`` command."""

    incoming: str
    outgoing: Mapping[str, object]


OpenRoute = Callable[[Machine, Machine], Awaitable[Route]]
"""Connects the source to the target and returns the route. Raises ``GuestError``."""


async def socket_pair(source: Machine, target: Machine) -> Route:
    """An ``OpenRoute`` within one host: a socket pair, with no address to choose or clean up."""
    ours, theirs = socket.socketpair()
    # Each QEMU gets a duplicate, so this process closes both ends.
    with ours, theirs:
        await target.pass_socket(_ENDS, theirs)
        await source.pass_socket(_ENDS, ours)
    return Route(f"fd:{_ENDS}", {"uri": f"fd:{_ENDS}"})


class Decided(StrEnum):
    """The end that has the guest: the target if ``GIVEN``, the source if ``KEPT``."""

    OPEN = "open"
    GIVEN = "given"
    KEPT = "kept"


Decide = Callable[[Decided], Awaitable[Decided]]
"""Records a decision unless there is one, and returns the valid one; ``OPEN`` only reads. Raises ``GuestError``."""


async def accept_decision(requested: Decided) -> Decided:
    """A ``Decide`` for a process that owns both machines. They do not outlive it, so only it decides, and it can
    return the guest to the source if the target refuses to run.
    """
    return requested
