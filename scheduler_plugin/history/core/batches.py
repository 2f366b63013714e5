"""Records that are written in one transaction."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler_plugin.history.core.samples import DecisionRecord, MoveRecord, NodeRecord, VmRecord
from scheduler_plugin.history.core.spans import Span


@dataclass(slots=True)
class Batch:
    """Spans that were closed, decisions that are new, and migrations as they are now."""

    vms: list[tuple[VmRecord, Span]] = field(default_factory=list)
    nodes: list[tuple[NodeRecord, Span]] = field(default_factory=list)
    decisions: list[DecisionRecord] = field(default_factory=list)
    moves: list[MoveRecord] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.vms) + len(self.nodes) + len(self.decisions) + len(self.moves)
