"""All rows with the revision at which each changed last: what a reader has missed since any revision. Pure.

Rules that hold here:

- A reader is a number: the revision that it has seen. One that is slow gets what is newest, once, and costs nothing.
- A row that is equal to what it was is no change.
- Rows that are gone are remembered up to a bound; who has missed more gets everything again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from scheduler_plugin.dashboard.core.rows import Row

MOST_GONE: Final = 20_000

Key = tuple[str, str]
"""The kind of a row, and its key."""


@dataclass(frozen=True, slots=True)
class Change:
    """Changes up to ``revision``: rows by kind that appeared or changed, and what is gone."""

    revision: int
    rows: list[tuple[str, Row]]
    gone: list[tuple[str, str, str]]
    """(kind, key, namespace)"""


@dataclass(slots=True)
class Journal:
    """Rows in the order in which they changed."""

    most_gone: int = MOST_GONE
    revision: int = 0
    _rows: dict[Key, tuple[int, Row]] = field(default_factory=dict)
    _gone: dict[Key, tuple[int, str]] = field(default_factory=dict)
    _forgotten: int = 0

    def put(self, kind: str, row: Row) -> bool:
        """A row as it is now; whether that is news."""
        key = kind, row.key
        known = self._rows.get(key)
        if known is not None and known[1] == row:
            return False
        self.revision += 1
        self._rows.pop(key, None)
        self._gone.pop(key, None)
        self._rows[key] = self.revision, row
        return True

    def remove(self, kind: str, key: str) -> bool:
        """A row is gone; whether that is news."""
        known = self._rows.pop((kind, key), None)
        if known is None:
            return False
        self.revision += 1
        self._gone[kind, key] = self.revision, known[1].namespace
        if len(self._gone) > self.most_gone:
            oldest = next(iter(self._gone))
            self._forgotten = self._gone.pop(oldest)[0]
        return True

    def replace(self, kind: str, rows: Iterable[Row]) -> bool:
        """All rows of a kind as they are now; whether any of it is news."""
        wanted = {row.key: row for row in rows}
        news = [self.remove(kind, key) for key in [*self.of(kind)] if key not in wanted]
        return any([*news, *(self.put(kind, row) for row in wanted.values())])

    def get(self, kind: str, key: str) -> Row | None:
        """One row; None if there is none."""
        known = self._rows.get((kind, key))
        return None if known is None else known[1]

    def of(self, kind: str) -> Mapping[str, Row]:
        """All rows of a kind by key."""
        return {key: row for (each, key), (_, row) in self._rows.items() if each == kind}

    def everything(self) -> Change:
        """All rows."""
        return Change(self.revision, [(kind, row) for (kind, _), (_, row) in self._rows.items()], [])

    def since(self, revision: int) -> Change | None:
        """Changes after ``revision``; None if they are no longer known, or never were."""
        if revision < self._forgotten or revision > self.revision:
            return None
        rows: list[tuple[str, Row]] = []
        for (kind, _), (at, row) in reversed(self._rows.items()):
            if at <= revision:
                break
            rows.append((kind, row))
        gone: list[tuple[str, str, str]] = []
        for (kind, key), (at, namespace) in reversed(self._gone.items()):
            if at <= revision:
                break
            gone.append((kind, key, namespace))
        return Change(self.revision, rows, gone)
