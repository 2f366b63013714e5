"""Reads what QEMU says about a migration and its machine as the port's figures, and that a guest cannot go on (pure).

A guest cannot go on once it was shut down, reset or has panicked, or stands still for a reason that no order of ours
lifts. A guest that stands still because it is being moved, or that we end ourselves, has not failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Final, TypeVar

import msgspec

from deploy.neonvm.ports import GuestError
from deploy.neonvm.transfer_terms import TransferInfo, TransferRam, TransferStatus
from protocol.units import Bytes, Seconds

_Answer = TypeVar("_Answer", bound=msgspec.Struct)


Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""Bytes, pages or milliseconds: what QEMU counts is never negative, and a float tells all of it apart."""


class _RamProgress(msgspec.Struct, rename="kebab"):
    total: Count = 0
    transferred: Count = 0
    remaining: Count = 0
    duplicate: Count = 0
    normal: Count = 0
    dirty_pages_rate: Count = 0
    dirty_sync_count: Count = 0
    page_size: Count = 4096


class _Disk(msgspec.Struct):
    remaining: Count = 0


class TransferReport(msgspec.Struct, rename="kebab"):
    """The answer to ``query-migrate``: times in milliseconds; no status before the first migration."""

    status: str = ""
    total_time: Count = 0
    setup_time: Count = 0
    downtime: Count = 0
    expected_downtime: Count = 0
    error_desc: str = ""
    ram: _RamProgress = msgspec.field(default_factory=_RamProgress)
    disk: _Disk = msgspec.field(default_factory=_Disk)

    @property
    def is_sent_once(self) -> bool:
        """True if all of memory and disk has been sent, whatever has changed since."""
        # The total is zero before the first pass begins.
        return self.ram.total > 0 and self.ram.remaining == self.disk.remaining == 0


class RunState(msgspec.Struct):
    """The answer to ``query-status``."""

    status: str


class _Timestamp(msgspec.Struct):
    """Time of an event; both parts are -1 if QEMU could not tell."""

    seconds: Count
    microseconds: Count


def parse_timestamp(said: object) -> float | None:
    """Seconds since 1970; None if QEMU does not say."""
    try:
        stamp = msgspec.convert(said, _Timestamp)
    except msgspec.ValidationError:
        return None
    return stamp.seconds + stamp.microseconds / 1e6


class _MemoryReport(msgspec.Struct, rename="kebab"):
    """The answer to ``query-memory-size-summary``, in bytes."""

    base_memory: Count
    plugged_memory: Count = 0


def parse_memory(answer: object) -> Bytes:
    """Boot memory and plugged memory of a guest. Raises ``GuestError`` if the answer is malformed."""
    memory = _converted(answer, _MemoryReport)
    return Bytes(memory.base_memory + memory.plugged_memory)


def parse_report(answer: object) -> TransferReport:
    """Raises ``GuestError`` if the answer is malformed."""
    return _converted(answer, TransferReport)


def parse_run_state(answer: object) -> str:
    """The name of QEMU's run state. Raises ``GuestError`` if the answer is malformed."""
    return _converted(answer, RunState).status


def transfer_info(report: TransferReport) -> TransferInfo:
    """The port's figures of a migration under way."""
    ram = report.ram
    return TransferInfo(
        # Before the first migration QEMU names no status at all.
        status=TransferStatus.SETUP if report.status in {"", "none", "setup"} else TransferStatus.ACTIVE,
        total=Seconds(report.total_time / 1000),
        setup=Seconds(report.setup_time / 1000),
        # Zero until the move is completed: before that only the expected one is known.
        downtime=Seconds((report.downtime or report.expected_downtime) / 1000),
        ram=TransferRam(
            total=Bytes(ram.total),
            transferred=Bytes(ram.transferred),
            remaining=Bytes(ram.remaining),
            duplicate=ram.duplicate,
            normal=ram.normal,
            dirty_rate=ram.dirty_pages_rate,
            rounds=ram.dirty_sync_count,
            page_size=Bytes(ram.page_size),
        ),
    )


def completed_info(report: TransferReport, standstill: Seconds | None) -> TransferInfo:
    """The figures of a move that is over. ``standstill`` is how long the guest really did not run, if that is
    known: QEMU's own figure ends before the order to run.
    """
    info = replace(transfer_info(report), status=TransferStatus.COMPLETED)
    if standstill is None:
        return info
    # What QEMU's figure misses was part of the move as well.
    late = max(0.0, standstill - info.downtime)
    return replace(info, downtime=standstill, total=Seconds(info.total + late))


def _converted(answer: object, kind: type[_Answer]) -> _Answer:
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise GuestError(f"QEMU gave no usable answer: {error}") from error


FAILURE_EVENTS: Final = ("GUEST_PANICKED", "SHUTDOWN", "RESET", "STOP")
"""The events after which a guest may have failed; after ``STOP`` the run state decides."""

_SHUTDOWNS: Final[Mapping[str, str]] = {
    "host-qmp-quit": "",
    "host-signal": "",
    "host-qmp-system-reset": "its machine was reset",
    "guest-shutdown": "it switched itself off",
    "guest-reset": "it restarted itself",
    "guest-panic": "its kernel panicked",
}
"""QEMU's reasons for ``SHUTDOWN``; the empty ones are ours."""

_STANDSTILLS: Final[Mapping[str, str]] = {
    # What KVM reports for an instruction that it cannot emulate.
    "internal-error": "internal-error: the CPU did something that this machine cannot run",
    "io-error": "io-error: its disk cannot be read or written",
    "guest-panicked": "its kernel panicked",
    "watchdog": "its watchdog has stopped it",
}


def failure_in_event(event: str, data: object) -> str:
    """The reason why a guest cannot go on after ``event`` of ``FAILURE_EVENTS``; empty if it can, and for ``STOP``."""
    match event:
        case "GUEST_PANICKED":
            return "its kernel panicked"
        case "RESET":
            return "its machine was reset"
        case "SHUTDOWN":
            reason = str(data.get("reason", "")) if isinstance(data, Mapping) else ""
            # A reason that a newer QEMU adds still ends the guest.
            return _SHUTDOWNS.get(reason, f"it was shut down ({reason or 'for an unknown reason'})")
    return ""


def failure_in_run_state(run_state: str) -> str:
    """The reason why a guest in this run state of QEMU cannot go on; empty if it can."""
    return _STANDSTILLS.get(run_state, "")
