"""What the hands of one scheduler share: the ledger, what feeds it, what waits to be done, and ways to the outside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scheduler_plugin.clock import Clock
from scheduler_plugin.cluster.feed import Feed
from scheduler_plugin.cluster.write import ClusterWriter
from scheduler_plugin.ledger import Effect, Ledger
from scheduler_plugin.orders import Orders
from scheduler_plugin.telemetry import Telemetry


@dataclass(slots=True, eq=False)
class Board:
    """What was found out about moving VMs at the last look, for people.

    ``idle`` says why nobody is moved at all (None: the mover is at work), ``stuck`` why VMs that should leave a node
    cannot, by the node.
    """

    idle: str | None = "nobody has looked yet"
    stuck: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Desk:
    """One scheduler's shared things. Only code that awaits nothing in between may touch ``ledger`` twice."""

    ledger: Ledger
    feed: Feed
    orders: Orders
    writer: ClusterWriter
    clock: Clock
    telemetry: Telemetry
    board: Board

    def order(self, effects: Iterable[Effect]) -> None:
        """Takes the ledger's orders; nothing is waited for."""
        self.orders.add(effects)
