"""A history in memory whose numbers are made up: every VM has had the same for as long as is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from protocol.messages import ObjectName
from scheduler_plugin.history.core.samples import (
    NODE_COLUMNS,
    DecisionRecord,
    Millis,
    MoveRecord,
    NodeRecord,
    Size,
    VmRecord,
)
from scheduler_plugin.history.core.spans import Span, sample_span
from scheduler_plugin.history.ports import Extent, HistoryError, NodeUsage, Period, Usage

GIB = 1024**2
MOST = Size(4000, 8 * GIB)
HAS = (1000, 2 * GIB, 1500, 3 * GIB, 2000, 4 * GIB, 2000, 4 * GIB, 500, GIB)
"""Size, need, permit, reservation and use."""
STEPS = 40


@dataclass(slots=True)
class MadeUpHistory:
    """``decided`` are sentences by their offset in ms before the end of the period; ``asked`` are the calls."""

    facts: Sequence[VmRecord]
    decided: Sequence[tuple[Millis, str, bool]] = ()
    moved: Sequence[MoveRecord] = ()
    is_broken: bool = False
    asked: list[str] = field(default_factory=list)

    async def extent(self) -> Extent:
        return Extent(0, None)

    async def vm_series(self, vm: ObjectName, period: Period, step: Millis) -> Sequence[Span]:
        self._ask("vm_series")
        width = (period.until - period.since) // STEPS
        starts = [period.since + width * at for at in range(STEPS)]
        return [sample_span(at, at + width, _waves(place)) for place, at in enumerate(starts)]

    async def decisions(self, vm: ObjectName | None, period: Period, most: int = 500) -> Sequence[DecisionRecord]:
        self._ask("decisions")
        name = vm or ObjectName("default", "db")
        return [
            DecisionRecord(period.until - ago, name, "agent", (said,), denied=no) for ago, said, no in self.decided
        ][:most]

    async def moves(self, vm: ObjectName | None, period: Period, most: int = 500) -> Sequence[MoveRecord]:
        self._ask("moves")
        return [each for each in self.moved if each.vm == vm and period.since <= each.since < period.until][:most]

    async def usage(self, period: Period) -> Sequence[Usage]:
        self._ask("usage")
        return [Usage(each, sample_span(period.since, period.until, HAS)) for each in self.facts]

    async def node_usage(self, period: Period) -> Sequence[NodeUsage]:
        has = tuple(range(1000, 1000 + len(NODE_COLUMNS)))
        nodes = sorted({each.node for each in self.facts})
        return [NodeUsage(NodeRecord(node, "m5"), sample_span(period.since, period.until, has)) for node in nodes]

    async def high_needs(self, period: Period, share: float) -> Mapping[ObjectName, Size]:
        return {each.vm: Size(1500, 3 * GIB) for each in self.facts}

    def _ask(self, question: str) -> None:
        self.asked.append(question)
        if self.is_broken:
            raise HistoryError("the disk is gone")


def _waves(place: int) -> tuple[int, ...]:
    """A VM that grows for a third of the time."""
    return tuple(each * 2 if place % 12 > 7 else each for each in HAS)
