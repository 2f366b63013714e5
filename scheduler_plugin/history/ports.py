"""The port between stores of a history and their users.

Rules:

- Every adapter returns the same numbers; ``HistoryError`` is its only error.
- Time without samples is missing in spans, and ``Span.seen`` is the known time.
- Times are Unix milliseconds. A period is half open: ``since`` inclusive, ``until`` exclusive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from protocol.messages import ObjectName
from scheduler_plugin.history.core.samples import DecisionRecord, Millis, MoveRecord, NodeRecord, Size, VmRecord
from scheduler_plugin.history.core.spans import Span


class HistoryError(Exception):
    """The history is unavailable; the message says why."""


class Period(msgspec.Struct, frozen=True, gc=False):
    """From ``since`` to ``until``, exclusive (Unix ms)."""

    since: Millis
    until: Millis


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Reservation and use of one VM with these facts: integrals, known times and peaks of ``VM_COLUMNS``.

    ``span.seen`` is the known time; the rest of ``until - since`` is unknown. ``in_use`` are integrals of reserved CPU
    and memory while their use was known (None: not known exactly).
    """

    facts: VmRecord
    span: Span
    in_use: tuple[int, int] | None = None


class NodeUsage(msgspec.Struct, frozen=True, gc=False):
    """The same for a node, in ``NODE_COLUMNS``."""

    facts: NodeRecord
    span: Span


class Extent(msgspec.Struct, frozen=True, gc=False):
    """Extent of a history: first and last time (None: empty), and notes for people.

    ``notes`` are sentences, for example about a damaged file.
    """

    since: Millis | None
    until: Millis | None
    notes: tuple[str, ...] = ()


class History(Protocol):
    """Queries of a history."""

    async def extent(self) -> Extent:
        """Extent of the history. Raises ``HistoryError``."""

    async def vm_series(self, vm: ObjectName, period: Period, step: Millis) -> Sequence[Span]:
        """A VM over time in ``VM_COLUMNS``, in steps of ``step`` or coarser, oldest first, without gaps.

        Raises ``HistoryError``.
        """

    async def decisions(self, vm: ObjectName | None, period: Period, most: int = 500) -> Sequence[DecisionRecord]:
        """Decisions on a VM (None: all), newest first, at most ``most``. Raises ``HistoryError``."""

    async def moves(self, vm: ObjectName | None, period: Period, most: int = 500) -> Sequence[MoveRecord]:
        """Migrations of a VM (None: all), newest first, at most ``most``. Raises ``HistoryError``."""

    async def usage(self, period: Period) -> Sequence[Usage]:
        """Reservation and use of each VM, for each of its facts in the period. Raises ``HistoryError``."""

    async def node_usage(self, period: Period) -> Sequence[NodeUsage]:
        """The same for each node. Raises ``HistoryError``."""

    async def high_needs(self, period: Period, share: float) -> Mapping[ObjectName, Size]:
        """The need of each VM that covers ``share`` (0..1) of its known time, for each resource. A stored span counts
        with its peak. Raises ``HistoryError``.
        """
