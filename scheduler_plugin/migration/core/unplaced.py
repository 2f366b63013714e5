"""Migrations whose target pod finds no node: given up within seconds, since its VM waits as well (S4.9).

Rules that hold here:

- kube-scheduler's word counts once it has stood for ``REFUSAL_SETTLE``: its first attempt may be too early.
- Time counts only while pods are seen: what happened meanwhile may be better news.
- Without a word, a target pod may wait for ``placement_timeout``.
- A migration that failed before its target pod had a node was refused as well, whoever ended it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from protocol.messages import ObjectName
from protocol.units import Instant, Seconds
from scheduler_plugin.ledger import Migration, MigrationPhase
from scheduler_plugin.migration.core.plan import MigrationPolicy

REFUSAL_SETTLE: Final = Seconds(2.0)


@dataclass(frozen=True, slots=True)
class _Wait:
    """Since when a target pod waits, and since when it is refused."""

    since: Instant
    refused_since: Instant | None = None


class UnplacedTargets:
    """Knows for how long target pods have been waiting."""

    def __init__(self) -> None:
        self._waits: dict[ObjectName, _Wait] = {}
        self._failed: set[ObjectName] = set()

    def keep(self, names: Iterable[ObjectName]) -> None:
        """Forgets all migrations but these."""
        there = set(names)
        self._waits = {name: wait for name, wait in self._waits.items() if name in there}
        self._failed &= there

    def gives_up(self, migration: Migration, policy: MigrationPolicy, now: Instant, *, is_current: bool) -> str | None:
        """Why the migration has no future, by its target pod that has no node; None where it may go on."""
        waiting = migration.waiting_target
        if waiting is None or migration.placed_on is not None or migration.phase is not MigrationPhase.PENDING:
            self._waits.pop(migration.name, None)
            return None
        wait = self._waits.get(migration.name, _Wait(now)) if is_current else _Wait(now)
        if not waiting.refusal:
            wait = replace(wait, refused_since=None)
        elif wait.refused_since is None:
            wait = replace(wait, refused_since=now)
        self._waits[migration.name] = wait
        if wait.refused_since is not None and now - wait.refused_since >= REFUSAL_SETTLE:
            return waiting.refusal
        if now - wait.since >= policy.placement_timeout:
            return f"its target pod has waited for {policy.placement_timeout:g} s"
        return None

    def newly_failed(self, migrations: Iterable[Migration]) -> Iterator[Migration]:
        """Those that have failed without a place since the last call."""
        for each in migrations:
            is_refused = each.phase is MigrationPhase.FAILED and each.placed_on is None and each.name in self._waits
            if is_refused and each.name not in self._failed:
                self._failed.add(each.name)
                yield each
