"""Where VMs may move to in one look, and how many migrations there are already.

Rules that hold here:

- A target is open, under no pressure, has a place for one more incoming migration, and stays below its watermark
  (``placement.best_target``).
- What one VM takes in a look is gone for the next one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from protocol.ranking.config import RankingConfig
from protocol.ranking.node_score import Draw
from protocol.units import Resources
from scheduler_plugin.ledger import Ledger
from scheduler_plugin.migration.core.plan import MigrationPolicy
from scheduler_plugin.placement import best_target, stays_below_watermark


@dataclass(slots=True)
class Traffic:
    """How many migrations are active, and how many of them leave and enter each node. At most ``most`` may be."""

    most: int
    total: int = 0
    leaving: Counter[str] = field(default_factory=Counter)
    entering: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, ledger: Ledger, policy: MigrationPolicy) -> Traffic:
        """What is going on now, whoever ordered it."""
        traffic = cls(policy.at_once(len(ledger.rooms)))
        for each in ledger.migrations.values():
            if each.is_active:
                traffic.add(each.source, each.goal)
        return traffic

    def add(self, source: str | None, target: str | None) -> None:
        """One more; a node is None where it is not known."""
        self.total += 1
        self.leaving.update(() if source is None else (source,))
        self.entering.update(() if target is None else (target,))

    def may_leave(self, node: str, policy: MigrationPolicy) -> int:
        """How many more may leave ``node`` now."""
        return max(0, min(policy.out_per_node - self.leaving[node], self.most - self.total))


class Targets:
    """The nodes that VMs may move to, as they become while moves are decided."""

    def __init__(
        self, ledger: Ledger, traffic: Traffic, policy: MigrationPolicy, ranking: RankingConfig, draw: Draw
    ) -> None:
        self._ranking, self._draw = ranking, draw
        self._traffic, self._most = traffic, policy.in_per_node
        self._nodes = len(ledger.rooms)
        self._rooms = {
            name: room
            for name, room in ledger.rooms.items()
            if room.is_open and name not in ledger.strained and traffic.entering[name] < self._most
        }
        self._too_large: list[Resources] = []

    def has_room(self, size: Resources) -> bool:
        """Whether some target would take so much."""
        if any(known.within(size) for known in self._too_large):
            return False
        if any(stays_below_watermark(room, size) for room in self._rooms.values()):
            return True
        self._too_large.append(size)
        return False

    def take(self, source: str, size: Resources) -> str | None:
        """Chooses the best target, and counts the move; None where there is none any more."""
        name = best_target(self._rooms, size, self._ranking, self._draw, nodes=self._nodes)
        if name is None:
            return None
        room = self._rooms[name]
        self._rooms[name] = replace(room, reserved=room.reserved + size, free=room.free - size)
        self._traffic.add(source, name)
        if self._traffic.entering[name] >= self._most:
            del self._rooms[name]
        return name
