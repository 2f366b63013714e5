"""The durable side of the store: one sqlite file that holds the newest state of every object.

Calls are synchronous on purpose: a commit is a write into the page cache of some tens of microseconds, less than
handing it to a thread would cost, and the single writer is what gives changes their order.
"""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_SETUP: Final = """
    CREATE TABLE IF NOT EXISTS objects (
        resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
        revision INTEGER NOT NULL, raw BLOB NOT NULL,
        PRIMARY KEY (resource, namespace, name)
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS revision (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), value INTEGER NOT NULL);
    INSERT OR IGNORE INTO revision VALUES (1, 1);
"""
_PUT: Final = "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)"
_DROP: Final = "DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?"
_ADVANCE: Final = "UPDATE revision SET value = ?"


class Key(NamedTuple):
    """Key of an object: resource (``plural.group``), namespace (``""`` if the resource has none) and name."""

    resource: str
    namespace: str
    name: str


class ObjectDatabase:
    """The file. Raises ``sqlite3.Error`` if a write fails; nothing has changed then."""

    def __init__(self, path: Path | None) -> None:
        """Opens or makes the file at ``path``; None keeps everything in memory and forgets it on ``close``."""
        # `_commit` begins and ends transactions itself.
        self._database = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._database.close)  # Python 3.13 and later warn of connections that nobody closed
        self._database.execute("PRAGMA journal_mode = WAL")
        # A killed process loses nothing; a machine that loses power may lose the last moments.
        self._database.execute("PRAGMA synchronous = NORMAL")
        # Only one server uses the file, so it can stay locked.
        self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._database.executescript(_SETUP)

    def revision(self) -> int:
        """The last revision that was ever used."""
        (value,) = self._database.execute("SELECT value FROM revision").fetchone()
        return int(value)

    def objects(self) -> Iterator[tuple[Key, int, bytes]]:
        """Every object: its key, its revision and its JSON text."""
        rows = self._database.execute("SELECT resource, namespace, name, revision, raw FROM objects")
        for resource, namespace, name, revision, raw in rows:
            yield Key(resource, namespace, name), revision, raw

    def put(self, key: Key, revision: int, raw: bytes) -> None:
        """Commits a new state of an object."""
        self._commit(_PUT, (*key, revision, raw), revision)

    def drop(self, key: Key, revision: int) -> None:
        """Commits the end of an object."""
        self._commit(_DROP, tuple(key), revision)

    def _commit(self, statement: str, values: tuple[object, ...], revision: int) -> None:
        execute = self._database.execute
        execute("BEGIN IMMEDIATE")
        try:
            execute(statement, values)
            # The revision is committed with the change that used it, so it is never used again.
            execute(_ADVANCE, (revision,))
            execute("COMMIT")
        except sqlite3.Error:
            # A failed COMMIT may have ended the transaction already.
            if self._database.in_transaction:
                execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Writes the log back into the file and closes it. May be called again."""
        self._database.close()
