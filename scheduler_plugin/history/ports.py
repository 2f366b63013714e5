"""The port between the stores of a history and those that query it.

Rules that hold here:

- Every adapter answers the same questions with the same numbers; ``HistoryError`` is the only error that leaves one.
- An answer never invents: time that was not seen is missing from spans, and ``Span.seen`` says how long was seen.
- Times are milliseconds since 1970. A period is half open: from ``since`` up to, not including, ``until``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from protocol.messages import ObjectName
from scheduler_plugin.history.core.samples import DecisionRecord, Millis, MoveRecord, NodeRecord, Size, VmRecord
from scheduler_plugin.history.core.spans import Span


class HistoryError(Exception):
    """The history cannot answer; the message says why, for people."""


class Period(msgspec.Struct, frozen=True, gc=False):
    """From ``since`` up to, not including, ``until`` (ms since 1970)."""

    since: Millis
    until: Millis


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Reservation and usage of one VM while it had these facts: integrals, known times and peaks of ``VM_COLUMNS``.

    ``span.seen`` is for how long it was seen; the rest of ``until - since`` is unknown. ``in_use`` are the integrals of
    the CPU and memory that were reserved while their use was known (None: not known exactly).
    """

    facts: VmRecord
    span: Span
    in_use: tuple[int, int] | None = None


class NodeUsage(msgspec.Struct, frozen=True, gc=False):
    """The same for a node, in ``NODE_COLUMNS``."""

    facts: NodeRecord
    span: Span


class Extent(msgspec.Struct, frozen=True, gc=False):
    """Extent of a history: its first and last moment (None: nothing yet), and notes for people.

    ``notes`` are whole sentences, such as that a damaged file was set aside.
    """

    since: Millis | None
    until: Millis | None
    notes: tuple[str, ...] = ()


class History(Protocol):
    """The questions that a history answers."""

    async def extent(self) -> Extent:
        """Extent of the history. Raises ``HistoryError``."""

    async def vm_series(self, vm: ObjectName, period: Period, step: Millis) -> Sequence[Span]:
        """A VM over time in ``VM_COLUMNS``, in steps of ``step`` or coarser, the oldest first; gaps are left out.

        Raises ``HistoryError``.
        """

    async def decisions(self, vm: ObjectName | None, period: Period, most: int = 500) -> Sequence[DecisionRecord]:
        """Decisions on a VM (None: on all), the newest first, at most ``most``. Raises ``HistoryError``."""

    async def moves(self, vm: ObjectName | None, period: Period, most: int = 500) -> Sequence[MoveRecord]:
        """The migrations of a VM (None: of all), the newest first, at most ``most``. Raises ``HistoryError``."""

    async def usage(self, period: Period) -> Sequence[Usage]:
        """Reservation and usage of each VM, once for each of its facts in the period. Raises ``HistoryError``."""

    async def node_usage(self, period: Period) -> Sequence[NodeUsage]:
        """The same for each node. Raises ``HistoryError``."""

    async def high_needs(self, period: Period, share: float) -> Mapping[ObjectName, Size]:
        """The need that each VM did not exceed in ``share`` (0..1) of the time in which it was known, each resource by
        itself. Of a stored span the peak counts. Raises ``HistoryError``.
        """
