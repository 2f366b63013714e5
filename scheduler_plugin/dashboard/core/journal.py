"""All rows, each with the revision of its last change, to find the changes since any revision. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from scheduler_plugin.dashboard.core.rows import Row

MOST_GONE: Final = 20_000

T = TypeVar("T")

Key = tuple[str, str]
"""Kind and key of a row."""


@dataclass(frozen=True, slots=True)
class Change:
    """Changes up to ``revision``: added and changed rows with their kind, and removed ones."""

    revision: int
    rows: list[tuple[str, Row]]
    gone: list[tuple[str, str, str]]
    """Kind, key and namespace."""


@dataclass(slots=True)
class Journal:
    """Rows in the order of their last change."""

    revision: int = 0
    _rows: dict[Key, tuple[int, Row]] = field(default_factory=dict)
    _gone: dict[Key, tuple[int, str]] = field(default_factory=dict)
    _forgotten: int = 0

    def put(self, kind: str, row: Row) -> bool:
        """Store a row; return True if it changed."""
        key = kind, row.key
        previous = self._rows.get(key)
        # Most updates of objects change nothing on the page.
        if previous is not None and previous[1] == row:
            return False
        self.revision += 1
        # Insert it at the end, because rows are in the order of their changes.
        self._rows.pop(key, None)
        self._gone.pop(key, None)
        self._rows[key] = self.revision, row
        return True

    def remove(self, kind: str, key: str) -> bool:
        """Remove a row; return True if it existed."""
        previous = self._rows.pop((kind, key), None)
        if previous is None:
            return False
        self.revision += 1
        self._gone[kind, key] = self.revision, previous[1].namespace
        if len(self._gone) > MOST_GONE:
            oldest = next(iter(self._gone))
            # Pages with an earlier revision may not know of this removal, and get a snapshot.
            self._forgotten = self._gone.pop(oldest)[0]
        return True

    def replace(self, kind: str, rows: Iterable[Row]) -> bool:
        """Replace all rows of a kind; return True if anything changed."""
        new = {row.key: row for row in rows}
        removed = [self.remove(kind, key) for key in [*self.of(kind)] if key not in new]
        return any([*removed, *(self.put(kind, row) for row in new.values())])

    def get(self, kind: str, key: str) -> Row | None:
        """One row; None if missing."""
        current = self._rows.get((kind, key))
        return None if current is None else current[1]

    def of(self, kind: str) -> Mapping[str, Row]:
        """All rows of a kind by key."""
        return {key: row for (row_kind, key), (_, row) in self._rows.items() if row_kind == kind}

    def everything(self) -> Change:
        """All rows."""
        return Change(self.revision, [(kind, row) for (kind, _), (_, row) in self._rows.items()], [])

    def since(self, revision: int) -> Change | None:
        """Changes after ``revision``; None if they are not known any more."""
        # A higher revision is from another process.
        if revision < self._forgotten or revision > self.revision:
            return None
        rows = [(kind, row) for (kind, _), row in _after(self._rows, revision)]
        gone = [(kind, key, namespace) for (kind, key), namespace in _after(self._gone, revision)]
        return Change(self.revision, rows, gone)


def _after(entries: dict[Key, tuple[int, T]], revision: int) -> Iterator[tuple[Key, T]]:
    for key, (at, entry) in reversed(entries.items()):
        # Entries are in the order of changes, so the rest is older.
        if at <= revision:
            return
        yield key, entry
