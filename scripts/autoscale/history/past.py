"""Decisions about a VM and its migrations, in sentences with their times: ``autoscale explain --since``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from protocol.durations import DurationError, parse_duration
from protocol.kubernetes.objects import Json
from protocol.kubernetes.timestamps import timestamp
from protocol.messages import ObjectName
from scheduler_plugin.history.core.samples import SECOND, DecisionRecord, Millis, MoveRecord
from scheduler_plugin.history.ports import History, Period

MOST: Final = 10_000
"""Decisions shown at once: about as many as a history keeps of one VM."""


def period_since(since: str) -> Period:
    """The period from ``since`` ago until now. Raises ``DurationError``."""
    span = parse_duration(since)
    if not span:
        raise DurationError("expected a span of time above zero")
    until = round(time.time() * SECOND)
    return Period(until - round(span * SECOND), until)


async def told_since(history: History, vm: ObjectName, period: Period) -> tuple[list[str], Json]:
    """The decisions and migrations of a VM as lines, and as fields. Raises ``HistoryError``."""
    # One more than is shown, to see whether there are older ones.
    decisions = await history.decisions(vm, period, MOST + 1)
    # The extent goes last: its notes say how the queries before it were answered.
    moves, extent = await history.moves(vm, period, MOST), await history.extent()
    older = [f"There are older decisions than these {MOST}: ask for less time."] if len(decisions) > MOST else []
    notes = (*older, *extent.notes)
    fields: Json = {
        "vm": str(vm),
        "decisions": msgspec.to_builtins(decisions[:MOST]),
        "migrations": msgspec.to_builtins(moves),
        "notes": list(notes),
    }
    return list(lines_of(vm, decisions[:MOST], moves, notes)), fields


def lines_of(
    vm: ObjectName, decisions: Sequence[DecisionRecord], moves: Sequence[MoveRecord], notes: Sequence[str]
) -> Iterator[str]:
    """The oldest first; texts of other programs are shown as they are (pure)."""
    events = [(record.at, list(_decided(record))) for record in decisions] + [
        (record.since, [_moved(record)]) for record in moves
    ]
    if not events:
        yield f"Nothing is recorded of {vm} in that time."
    for at, (first, *rest) in sorted(events, key=lambda event: event[0]):
        yield f"{_time(at)} {first}"
        yield from (f"  {sentence}" for sentence in rest)
    yield from notes


def _decided(found: DecisionRecord) -> Iterator[str]:
    headline, *rest = found.said or ("",)
    size = "" if found.size is None else f" ({found.size.resources})"
    yield f"{found.by}{size}: {headline}{' Denied in part.' if found.denied else ''}"
    yield from rest


def _moved(found: MoveRecord) -> str:
    took = "" if found.downtime is None else f", {found.downtime} ms stopped"
    why = f": {found.reason}" if found.reason else ""
    way = f"{found.source or '?'} to {found.target or '?'}"
    return f"migration from {way}: {found.phase} after {(found.until - found.since) / SECOND:.0f} s{took}{why}"


def _time(at: Millis) -> str:
    return timestamp(at / SECOND)
