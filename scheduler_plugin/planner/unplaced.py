"""Migrations whose target pod finds no node: cancelled within seconds, because the VM waits too (S4.9).

Rules:

- A target pod that kube-scheduler has not refused may wait for ``placement_timeout``.
- A migration that failed before its target pod had a node counts as refused, however it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from protocol.messages import ObjectName
from protocol.units import Instant, Seconds
from scheduler_plugin.ledger.facts import MigrationPhase
from scheduler_plugin.ledger.moves import Migration
from scheduler_plugin.planner.plan import MigrationPolicy
from scheduler_plugin.texts import explanations

REFUSAL_SETTLE: Final = Seconds(2.0)  # kube-scheduler's first attempt may be too early


@dataclass(frozen=True, slots=True)
class _PlacementWait:
    """Times at which a target pod began to wait, and was first refused; None if it did not."""

    since: Instant | None = None
    refused_since: Instant | None = None


class UnplacedTargets:
    """Tracks migrations without a node, and how long their target pods have waited."""

    def __init__(self) -> None:
        self._waits: dict[ObjectName, _PlacementWait] = {}

    def cancel_reason(
        self, migration: Migration, policy: MigrationPolicy, now: Instant, *, is_current: bool
    ) -> str | None:
        """The reason to cancel a migration because its target pod has no node; None if it may go on."""
        if migration.placed_on is not None or migration.phase is not MigrationPhase.PENDING:
            self._waits.pop(migration.name, None)
            return None
        target = migration.waiting_target
        # Only with current pods: otherwise the pod may have a node already.
        before = self._waits.get(migration.name, _PlacementWait()) if is_current else _PlacementWait()
        since = None if target is None else now if before.since is None else before.since
        refused = None if target is None or not target.refusal else before.refused_since
        if target is not None and target.refusal and refused is None:
            refused = now
        self._waits[migration.name] = _PlacementWait(since, refused)
        if target is not None and refused is not None and now - refused >= REFUSAL_SETTLE:
            return target.refusal
        if since is not None and now - since >= policy.placement_timeout:
            return explanations.TARGET_POD_WAITED.format(span=policy.placement_timeout)
        return None

    def newly_failed(self, migrations: Iterable[Migration]) -> Iterator[Migration]:
        """Migrations that failed without a node since the last call; forgets deleted ones."""
        waits, remaining = self._waits, {}
        for migration in migrations:
            wait = waits.get(migration.name)
            if wait is not None and migration.phase is MigrationPhase.FAILED and migration.placed_on is None:
                yield migration
            elif wait is not None:
                remaining[migration.name] = wait
        self._waits = remaining
