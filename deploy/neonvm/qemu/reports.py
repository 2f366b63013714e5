"""Parses QMP responses and events: migration progress, memory, run state, and failures of the guest (pure).

A guest has failed once it was shut down, was reset or has panicked, or is paused for a reason that ``cont`` cannot
lift. A guest that is paused by a migration, or that we end ourselves, has not failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeVar

import msgspec

from deploy.neonvm.ports import GuestError
from deploy.neonvm.transfer_terms import Count, TransferInfo, TransferRam, TransferStatus
from protocol.units import Bytes, Seconds

_Answer = TypeVar("_Answer", bound=msgspec.Struct)


class _Disk(msgspec.Struct):
    remaining: Count = 0


class TransferReport(msgspec.Struct, rename="kebab"):
    """Response to ``query-migrate``, times in milliseconds. ``status`` is empty before the first migration."""

    status: str = ""
    total_time: Count = 0
    setup_time: Count = 0
    downtime: Count = 0
    expected_downtime: Count = 0
    error_desc: str = ""
    ram: TransferRam = TransferRam()
    disk: _Disk = msgspec.field(default_factory=_Disk)

    @property
    def is_sent_once(self) -> bool:
        """True if all of memory and disk has been sent at least once."""
        # The total is zero before the first pass begins.
        return self.ram.total > 0 and self.ram.remaining == self.disk.remaining == 0


class RunState(msgspec.Struct):
    """Response to ``query-status``."""

    status: str


class _Timestamp(msgspec.Struct):
    """Time of an event; QEMU sets both parts to -1 if it cannot read the clock."""

    seconds: Count
    microseconds: Count


def parse_timestamp(value: object) -> float | None:
    """Unix time; None if QEMU did not report it."""
    try:
        stamp = msgspec.convert(value, _Timestamp)
    except msgspec.ValidationError:
        return None
    return stamp.seconds + stamp.microseconds / 1e6


class _MemoryReport(msgspec.Struct, rename="kebab"):
    """Response to ``query-memory-size-summary``, in bytes."""

    base_memory: Count
    plugged_memory: Count = 0


def parse_memory(answer: object) -> Bytes:
    """Boot memory plus plugged memory of a guest. Raises ``GuestError`` if the response is malformed."""
    memory = _converted(answer, _MemoryReport)
    return Bytes(memory.base_memory + memory.plugged_memory)


def parse_report(answer: object) -> TransferReport:
    """Parse ``query-migrate``. Raises ``GuestError`` if the response is malformed."""
    return _converted(answer, TransferReport)


def parse_run_state(answer: object) -> str:
    """QEMU's run state. Raises ``GuestError`` if the response is malformed."""
    return _converted(answer, RunState).status


def transfer_info(report: TransferReport) -> TransferInfo:
    """Progress of an active migration."""
    return TransferInfo(
        # QEMU reports no status before the first migration.
        status=TransferStatus.SETUP if report.status in {"", "none", "setup"} else TransferStatus.ACTIVE,
        total=Seconds(report.total_time / 1000),
        setup=Seconds(report.setup_time / 1000),
        # Zero until the migration has completed; until then QEMU reports only the expected downtime.
        downtime=Seconds((report.downtime or report.expected_downtime) / 1000),
        ram=report.ram,
    )


def completed_info(report: TransferReport, standstill: Seconds | None) -> TransferInfo:
    """Figures of a completed migration. ``standstill`` is the measured downtime, if known: QEMU's own ends before
    ``cont``.
    """
    info = replace(transfer_info(report), status=TransferStatus.COMPLETED)
    if standstill is None:
        return info
    # The part that QEMU's figure misses belongs to the total as well.
    missing = max(0.0, standstill - info.downtime)
    return replace(info, downtime=standstill, total=Seconds(info.total + missing))


def _converted(answer: object, kind: type[_Answer]) -> _Answer:
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise GuestError(f"invalid response from QEMU: {error}") from error


FAILURE_EVENTS: Final = ("GUEST_PANICKED", "SHUTDOWN", "RESET", "STOP")
"""The events after which a guest may have failed; after ``STOP`` the run state decides."""

_SHUTDOWNS: Final[Mapping[str, str]] = {
    "host-qmp-quit": "",
    "host-signal": "",
    "host-qmp-system-reset": "its machine was reset",
    "guest-shutdown": "it powered off",
    "guest-reset": "it rebooted",
    "guest-panic": "its kernel panicked",
}
"""QEMU's reasons for ``SHUTDOWN``; empty for those that we cause."""

_STANDSTILLS: Final[Mapping[str, str]] = {
    # KVM reports this for an instruction that it cannot emulate.
    "internal-error": "internal-error: KVM cannot execute an instruction of the guest",
    "guest-panicked": "its kernel panicked",
    "watchdog": "its watchdog stopped it",
}


OUT_OF_SPACE: Final = "io-error"
"""Run state of a guest whose disk could not grow, because its node's is full. ``cont`` repeats the write; other errors
of a disk are reported to the guest.
"""


def failure_in_event(event: str, data: object) -> str:
    """The failure that ``event`` of ``FAILURE_EVENTS`` reports; empty if none, and always for ``STOP``."""
    match event:
        case "GUEST_PANICKED":
            return "its kernel panicked"
        case "RESET":
            return "its machine was reset"
        case "SHUTDOWN":
            reason = str(data.get("reason", "")) if isinstance(data, Mapping) else ""
            # A reason added by a newer QEMU also ends the guest.
            return _SHUTDOWNS.get(reason, f"it was shut down ({reason or 'for an unknown reason'})")
    return ""


def failure_in_run_state(run_state: str) -> str:
    """The failure of a guest in this run state of QEMU; empty if none."""
    return _STANDSTILLS.get(run_state, "")
