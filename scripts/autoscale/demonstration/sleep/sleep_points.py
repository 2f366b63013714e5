"""Measurements of a demonstration's sleeps, their summary, and their problems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from protocol.guest.sleep import SleepState
from protocol.permits import decode_permit
from protocol.units import ZERO, Bytes, MilliCpu, Resources
from scheduler_plugin.ledger.accounts.pod_requests import MIN_REQUESTS

TABLE_HAS: Final = "42"
"""The only row of the temporary table of the session that stays open."""
ROUNDS: Final = 2
KEPT: Final = MIN_REQUESTS
"""Requests of the pod of a sleeping VM."""
_MIB: Final = 1024**2


class SleepPoint(msgspec.Struct, frozen=True):
    """One sleep. Times are in seconds: from the order to the sleep, from the request of the client ``woken_by`` to its
    answer, and from the wake to the running guest, as the controller measured it.

    ``qemu_bytes`` is the memory of QEMU before the sleep; None if there was no process. ``freed_cpu`` (vCPUs) and
    ``freed_bytes`` are the reduction of the node's reservation, of ``size_cpu`` and ``size_bytes``; ``permit`` is the
    permit while asleep. ``table`` is the content of the session's temporary table afterwards.
    """

    woken_by: str
    node: str
    asleep_seconds: float
    sessions: int
    saved_bytes: int
    qemu_bytes: int | None
    qemu_ended: bool
    size_cpu: float
    size_bytes: int
    freed_cpu: float
    freed_bytes: int
    permit: str
    answer_seconds: float = 0.0
    wake_seconds: float = 0.0
    state: str = ""
    table: str = ""


def sleep_line(point: SleepPoint) -> str:
    """The summary of a sleep, as one line."""
    return f"{asleep_line(point)}; {answer_line(point)}"


def asleep_line(point: SleepPoint) -> str:
    """The first half: the freed resources."""
    freed = Resources(_cpu(point.freed_cpu), Bytes(point.freed_bytes))
    qemu = f"its QEMU of {(point.qemu_bytes or 0) / _MIB:.0f} MiB {'has ended' if point.qemu_ended else 'still runs'}"
    return (
        f"asleep {point.asleep_seconds:.2f} s after the order, {point.saved_bytes / _MIB:.0f} MiB saved: {qemu}, "
        f"{point.node} reserves {freed} less"
    )


def answer_line(point: SleepPoint) -> str:
    """The second half: the session that woke the VM, and the time until its answer."""
    return f"{point.woken_by} was answered in {point.answer_seconds:.2f} s (awake after {point.wake_seconds:.2f} s)"


def sleep_problems(points: Sequence[SleepPoint], problem: str) -> list[str]:
    """All problems; ``problem`` is the one that ended the demonstration early, if any."""
    problems = [problem] if problem else []
    if len(points) < ROUNDS and not problem:
        problems.append(f"it ended after {len(points)} of {ROUNDS} sleeps")
    return [*problems, *(line for point in points for line in _problems(point))]


def _problems(point: SleepPoint) -> Sequence[str]:
    wrong = {
        "no QEMU of the VM was seen before it slept": point.qemu_bytes is None,
        "its QEMU kept running while it slept": not point.qemu_ended,
        f"its permit was {point.permit or 'missing'} while it slept, not zero": not _is_zero(point.permit),
        f"{point.node} still reserved more than {KEPT} for it": not _has_given_back(point),
        f"its state after waking is {point.state}, not {SleepState.AWAKE}": point.state != SleepState.AWAKE,
        f"the temporary table contains {point.table or 'nothing'}, not {TABLE_HAS}": point.table != TABLE_HAS,
    }
    return [f"the sleep ended by {point.woken_by}: {line}" for line, holds in wrong.items() if holds]


def _has_given_back(point: SleepPoint) -> bool:
    size = Resources(_cpu(point.size_cpu), Bytes(point.size_bytes))
    return size.within(Resources(_cpu(point.freed_cpu), Bytes(point.freed_bytes)) + KEPT)


def _cpu(cores: float) -> MilliCpu:
    return MilliCpu(round(cores * 1000))


def _is_zero(permit: str) -> bool:
    try:
        return decode_permit(permit) == ZERO
    except ValueError:
        return False
