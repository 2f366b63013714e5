"""Saves the memory of a stopped guest from QEMU to an image, and loads it into an empty QEMU."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.machine import Machine, retried
from deploy.neonvm.qemu.reports import parse_report, parse_run_state
from deploy.neonvm.sleep.image import SleepImage
from protocol.runtime.clock import Clock
from protocol.units import Bytes, Seconds

_STREAM: Final = "asleep"
"""QEMU's name for the socket of the migration stream."""
_RATE: Final = 2**40
"""Bytes per second: unlimited. QEMU's default is 128 MiB."""
_CAPABILITIES: Final = (
    # QEMU reports completion, which saves polling.
    {"capability": "events", "state": True},
    # Left on by a live migration, it would make QEMU wait forever for a response from the file.
    {"capability": "return-path", "state": False},
)
_BUFFER: Final = 4 * 1024**2
"""Bytes of the socket's buffers, as far as the kernel allows. On a busy node each full or empty one costs a wait for a
CPU: a load took 0.14 s with the default and 0.11 s with this (means), and the longest 0.64 and 0.35 s.
"""
_POLL: Final = 0.05
_SAVED: Final = "completed"
_FAILED: Final = frozenset({"failed", "cancelled"})
_LOADING: Final = "inmigrate"
_STEP_TIMEOUT: Final = 60.0
"""Seconds per chunk, and from the last one to the end: if hundreds wake at once, a load may take minutes."""
_ANSWERS_WITHIN: Final = Seconds(30.0)
"""How long QEMU may fail to report its state: the loaded memory is not given up for one lost response."""


async def save(machine: Machine, image: SleepImage) -> Bytes:
    """Save the memory of a stopped guest; return the image's size. Raises ``GuestError``. Cancelling aborts the save;
    the guest can be resumed in either case.
    """
    ours = await _connected(machine)
    # QEMU closes its end however the migration ends, which ends the thread, too.
    writing = asyncio.ensure_future(asyncio.to_thread(_written, image, ours))
    try:
        await machine.call("migrate-set-capabilities", {"capabilities": _CAPABILITIES})
        await machine.call("migrate-set-parameters", {"max-bandwidth": _RATE})
        await machine.call("migrate", {"uri": f"fd:{_STREAM}"})
        await _saved(machine)
        # Shielded: a thread that is not awaited would go on writing to a deleted image.
        return await asyncio.shield(writing)
    except BaseException as error:
        try:
            with suppress(GuestError):
                await machine.call("migrate_cancel")
        finally:
            # Also if this is cancelled: QEMU would finish the migration of a guest that runs again, and stop it.
            with suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
            await asyncio.wait((writing,))
        fault = writing.exception()
        # QEMU only reports a broken pipe; the writer knows that, for example, the disk is full.
        if fault is not None and isinstance(error, GuestError):
            raise fault from None
        raise


async def _connected(machine: Machine) -> socket.socket:
    """Our end of a new socket pair with QEMU."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    # QEMU gets a duplicate of its end.
    with theirs:
        try:
            await machine.pass_socket(_STREAM, theirs)
        except BaseException:
            ours.close()
            raise
    return ours


def _written(image: SleepImage, source: socket.socket) -> Bytes:
    with source:
        return image.write(source)


async def _saved(machine: Machine) -> None:
    while True:
        report = parse_report(await machine.call("query-migrate"))
        if report.status == _SAVED:
            return
        if report.status in _FAILED:
            raise GuestError(f"QEMU failed to save the memory: {report.error_desc or report.status}")
        await machine.wait_for_event(_POLL)


async def load(machine: Machine, image: SleepImage, clock: Clock) -> None:
    """Load the image into an empty QEMU, whose guest is then paused as it was saved. Raises ``GuestError`` and leaves
    an unusable QEMU. If the image is not used after that, another QEMU can load it.
    """
    ours = await _connected(machine)
    try:
        # Leave the disk alone until the guest runs, so that a failed load does not change it.
        capabilities: Mapping[str, object] = {"capabilities": [{"capability": "late-block-activate", "state": True}]}
        await machine.call("migrate-set-capabilities", capabilities)
        await machine.call("migrate-incoming", {"uri": f"fd:{_STREAM}"})
    except BaseException:
        ours.close()
        raise
    # Only now: reading uses the image up, and QEMU may have refused the commands.
    sending = asyncio.ensure_future(asyncio.to_thread(_sent, image, ours))
    try:
        await asyncio.shield(sending)
        async with asyncio.timeout(_STEP_TIMEOUT):
            while await retried(machine, partial(_run_state, machine), clock, _ANSWERS_WITHIN) == _LOADING:
                await machine.wait_for_event(_POLL)
    except TimeoutError as error:
        raise GuestError(f"QEMU did not load the saved memory within {_STEP_TIMEOUT:g} s") from error
    finally:
        # If QEMU has exited, this ends the thread with an error.
        with suppress(OSError):
            ours.shutdown(socket.SHUT_RDWR)
        await asyncio.wait((sending,))
        if not sending.cancelled():
            sending.exception()


async def _run_state(machine: Machine) -> str:
    return parse_run_state(await machine.call("query-status"))


def flush(disk: Path) -> None:
    """Fsync ``disk``. Raises ``GuestError``."""
    try:
        descriptor = os.open(disk, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise GuestError(f"cannot flush the disk {disk}: {error}") from error


def _sent(image: SleepImage, target: socket.socket) -> None:
    with target:
        target.settimeout(_STEP_TIMEOUT)
        image.read_once(target)
