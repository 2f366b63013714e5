"""A made-up history of a large fleet, as a recorder and its upkeep would have left it.

Every number follows from the VM and the time, so that a second run makes the same file.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.messages import ObjectName
from scheduler_plugin.history.core.chronicle import Batch
from scheduler_plugin.history.core.retention import TIERS, folds
from scheduler_plugin.history.core.samples import HOUR, MINUTE, Millis, NodeRecord, Row, Size, VmRecord
from scheduler_plugin.history.core.spans import Span, held
from scheduler_plugin.history.sqlite.store import SqliteStore

NODES: Final = 200
MOST: Final = Size(8000, 16 * 1024**2)
NODE: Final = Size(64_000, 256 * 1024**2)
_FINE: Final = MINUTE
"""The length of spans as they are seen of this many VMs."""
_SIZES: Final = 8
_AT_ONCE: Final = 200


@dataclass(slots=True)
class Integral:
    """vCPU-hours and GiB-hours that were reserved, and of how many spans the history is made."""

    cpu_hours: float = 0.0
    gib_hours: float = 0.0
    spans: int = 0


def made(path: Path, vms: int, since: Millis, until: Millis, halvings: int) -> Integral:
    """Writes the file from ``since`` until ``until``, which are whole hours. Raises ``StoreError``."""
    store, integral = SqliteStore(path, time.time), Integral()
    try:
        for first in range(0, vms, _AT_ONCE):
            batch = Batch()
            for vm in range(first, min(vms, first + _AT_ONCE)):
                batch.vms += _spans(vm, since, until, halvings, integral)
            # In batches, so that a week of 10,000 VMs need not fit into memory.
            store.write(batch)
        store.write(Batch(nodes=[*_nodes(since, until, halvings)]))
    finally:
        store.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in ("vm_spans", "node_spans"):
            for number, tier in enumerate(TIERS[1:], start=1):
                # The store writes fine spans only; upkeep would have made these coarse ones over weeks.
                connection.execute(f"UPDATE {table} SET tier = ? WHERE until - since = ?", (number, tier.width))  # noqa: S608
    return integral


def stretches(since: Millis, until: Millis, halvings: int) -> Iterator[tuple[Millis, Millis, Millis]]:
    """Begin, end and width of the spans of each age, the oldest first."""
    fine, middle, _ = (max(since, fold.before) for fold in folds(until, halvings))
    for begin, end, width in ((since, middle, TIERS[2].width), (middle, fine, TIERS[1].width), (fine, until, _FINE)):
        if begin < end:
            yield begin, end, width


def _spans(vm: int, since: Millis, until: Millis, halvings: int, found: Integral) -> Iterator[tuple[VmRecord, Span]]:
    """A VM that grows and shrinks, and moves to another node half-way."""
    name = ObjectName(f"team-{vm % 40}", f"vm-{vm}")
    homes = [VmRecord(name, f"node-{(vm + shift) % NODES}", "", Size(250, 1024**2), MOST) for shift in (0, 1)]
    moves = (since + until) // 2 // HOUR * HOUR
    for begin, end, width in stretches(since, until, halvings):
        starts = np.arange(begin, end, width)
        steps = _steps(vm, starts, width)
        hours = width / HOUR
        # Summed by numpy, in floating point and without spans: the report is compared with that.
        found.cpu_hours += float(np.sum(steps * 1.0) * hours)
        found.gib_hours += float(np.sum(steps * 2.0) * hours)
        found.spans += len(starts)
        # Few different spans: each is made once and only moved in time.
        held_so = [held(0, width, _amounts(step)) for step in range(_SIZES + 1)]
        for at, step in zip(starts.tolist(), steps.tolist(), strict=True):
            like = held_so[step]
            yield homes[at >= moves], Span(at, at + width, width, like.known, like.sums, like.peaks)


def _amounts(step: int) -> Row:
    cpu, mem = step * 1000, step * 2 * 1024**2
    return (cpu, mem, max(0, cpu - 200), mem, cpu, mem, cpu, mem, cpu // 2, mem // 2)


def _steps(vm: int, starts: NDArray[np.int64], width: Millis) -> NDArray[np.int64]:
    """Compute units of the VM at each moment: 1 to 8."""
    # Multiplicative hashing (Knuth): looks random and is the same in every run.
    scrambled = (starts // width * 2_654_435_761 + vm * 40_503) >> 7
    return np.asarray(scrambled % _SIZES + 1, dtype=np.int64)


def _nodes(since: Millis, until: Millis, halvings: int) -> Iterator[tuple[NodeRecord, Span]]:
    row = (NODE.cpu, NODE.mem, NODE.cpu // 2, NODE.mem // 2, NODE.cpu // 4, NODE.mem // 4, None, None)
    for number in range(NODES):
        for begin, end, width in stretches(since, until, halvings):
            facts = NodeRecord(f"node-{number}", "m5.16xlarge" if number % 2 else "")
            yield from ((facts, held(at, at + width, row)) for at in range(begin, end, width))
