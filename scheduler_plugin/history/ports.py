"""The port between stores of a history and their users.

Rules:

- Every adapter returns the same numbers and raises only ``HistoryError``.
- Spans leave out time without samples; ``Span.observed`` is the rest.
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
    """Reservation and use of one VM while it had these facts: integrals, known times and peaks of ``VM_COLUMNS``.

    ``in_use`` are the integrals of reserved CPU and memory over the time in which their use was known; None if the
    history cannot tell exactly.
    """

    facts: VmRecord
    span: Span
    in_use: tuple[int, int] | None = None


class NodeUsage(msgspec.Struct, frozen=True, gc=False):
    """The same for a node, in ``NODE_COLUMNS``."""

    facts: NodeRecord
    span: Span


class Extent(msgspec.Struct, frozen=True, gc=False):
    """First and last time of a history, None if it is empty, and notes for the user, such as on a damaged file."""

    since: Millis | None
    until: Millis | None
    notes: tuple[str, ...] = ()


class History(Protocol):
    """Queries of a history."""

    async def extent(self) -> Extent:
        """Extent of the history. Raises ``HistoryError``."""

    async def vm_series(self, vm: ObjectName, period: Period, step: Millis) -> Sequence[Span]:
        """A VM's amounts over time in ``VM_COLUMNS``, in steps of at least ``step``, oldest first.

        Raises ``HistoryError``.
        """

    async def decisions(self, vm: ObjectName | None, period: Period, most: int = 500) -> Sequence[DecisionRecord]:
        """The ``most`` newest decisions on a VM, or on all VMs if None, newest first. Raises ``HistoryError``."""

    async def moves(self, vm: ObjectName | None, period: Period, most: int = 500) -> Sequence[MoveRecord]:
        """The ``most`` newest migrations of a VM, or of all VMs if None, newest first. Raises ``HistoryError``."""

    async def usage(self, period: Period) -> Sequence[Usage]:
        """Reservation and use of each VM, separately for different facts. Raises ``HistoryError``."""

    async def node_usage(self, period: Period) -> Sequence[NodeUsage]:
        """The same for each node. Raises ``HistoryError``."""

    async def high_needs(self, period: Period, share: float) -> Mapping[ObjectName, Size]:
        """For each VM and resource, the need that was enough for ``share`` (0..1) of the known time.

        A stored span counts with its peak. Raises ``HistoryError``.
        """
