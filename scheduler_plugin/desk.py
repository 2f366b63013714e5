"""What the hands of one scheduler share: the ledger, what feeds it, what waits to be done, and ways to the outside."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scheduler_plugin.clock import Clock
from scheduler_plugin.cluster.feed import Feed
from scheduler_plugin.cluster.write import ClusterWriter
from scheduler_plugin.ledger import Effect, Ledger
from scheduler_plugin.orders import Orders
from scheduler_plugin.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Desk:
    """One scheduler's shared things. Only code that awaits nothing in between may touch ``ledger`` twice."""

    ledger: Ledger
    feed: Feed
    orders: Orders
    writer: ClusterWriter
    clock: Clock
    telemetry: Telemetry

    def order(self, effects: Iterable[Effect]) -> None:
        """Takes the ledger's orders; nothing is waited for."""
        self.orders.add(effects)
