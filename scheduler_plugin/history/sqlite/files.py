"""A history's file: opened by one recorder at a time, set aside if damaged.

A file of a newer release is not touched: it is intact, and this program is too old for it.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from errno import EEXIST
from itertools import count
from pathlib import Path
from typing import Final
from urllib.parse import quote

from scheduler_plugin.history.ports import HistoryError
from scheduler_plugin.history.sqlite.schema import APPLICATION, CREATE, VERSION

DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_JOURNALS: Final = ("-wal", "-journal")
_SHARED: Final = "-shm"
_ASIDE: Final = ".damaged-"
MOST_ASIDE: Final = 3
"""Maximum number of damaged files to keep, so that a bad disk does not fill up."""
_PRIMARY_CODE: Final = 0xFF
_BUSY: Final = 5.0
_JOURNAL: Final = 16 * 1024**2
"""Bytes of the journal kept on disk after a large transaction."""
_OWN: Final = 0o600


class StoreError(HistoryError):
    """The store cannot be written now; the message says why. Only the samples meanwhile are lost."""


FAULTS: Final = (sqlite3.Error, UnicodeDecodeError)
"""SQLite's exceptions; the second if its message contains damaged text."""


def is_damage(error: Exception) -> bool:
    """Return True if the file itself is broken, or not ours."""
    if isinstance(error, DamagedFileError | UnicodeDecodeError):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(code, int) and code & _PRIMARY_CODE in DAMAGE


@contextmanager
def only_recorder(path: Path) -> Iterator[None]:
    """Hold the lock of the store. Raises ``StoreError``, also if another recorder has it."""
    lock = path.with_name(f"{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Never removed: a lock on a removed file would not exclude the next recorder.
        file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _OWN)
    except OSError as error:
        raise StoreError(f"the history cannot be written: {lock}: {error.strerror}") from error
    try:
        try:
            # The kernel releases it when the process ends.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreError(f"another recorder writes {path}") from error
        yield
    finally:
        os.close(file)


def open_to_write(path: Path) -> sqlite3.Connection:
    """Open the file with its tables. Raises ``StoreError``, ``FAULTS`` and ``OSError``."""
    # Created first: SQLite would make it readable for others. Journals inherit its mode.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _OWN))
    # Refuse a newer or foreign file before changing anything, even its mode or journal.
    with closing(open_to_read(path)) as reading:
        _own(reading)
    with suppress(PermissionError):  # a file of another user, writable by the volume's group
        path.chmod(_OWN)
    # No implicit transactions.
    connection = sqlite3.connect(path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
    connection.text_factory = _text
    try:
        # Has no effect after the first table without VACUUM.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        # Readers and the recorder do not block each other.
        connection.execute("PRAGMA journal_mode = WAL")
        # With WAL a power loss loses the last batches, but never damages the file.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {_JOURNAL}")
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise DamagedFileError(verdict)
        _own(connection)
        with connection:
            # Atomic: a partial file would look foreign.
            connection.execute("BEGIN IMMEDIATE")
            _make(connection)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException as error:
        connection.close()
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:  # our statements are correct
            raise DamagedFileError(str(error)) from error
        raise
    return connection


FileNumber = tuple[int, int]
"""Device and inode."""


def file_number(path: Path) -> FileNumber | None:
    """That of the file at ``path``; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


class DamagedFileError(sqlite3.DatabaseError):
    """SQLite's check found damage, or the database is no history of this version."""


def _make(connection: sqlite3.Connection) -> None:
    """Create the tables. Raises ``DamagedFileError`` if different ones exist: SQLite's check accepts any."""
    for statement in CREATE:
        connection.execute(statement)
    # SQLite normalizes statements, so compare with a fresh database.
    with closing(sqlite3.connect(":memory:")) as fresh:
        for statement in CREATE:
            fresh.execute(statement)
        if not _schema(fresh) <= _schema(connection):
            raise DamagedFileError("its tables are not as they were made")


def _schema(connection: sqlite3.Connection) -> set[tuple[str, ...]]:
    return set(connection.execute("SELECT type, name, tbl_name, IFNULL(sql, '') FROM sqlite_schema"))


def _mark(connection: sqlite3.Connection) -> tuple[int, int]:
    """The file's application id and version."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return application, version


def _refuse_newer(path: Path, connection: sqlite3.Connection) -> None:
    application, version = _mark(connection)
    if application == APPLICATION and version > VERSION:
        raise StoreError(
            f"a newer release wrote the history {path}: it has version {version}, this program knows version {VERSION};"
            " upgrade this program, or move the file away to begin a new one"
        )


def _own(connection: sqlite3.Connection) -> None:
    application, version = _mark(connection)
    # A new file has neither. Another mark means a foreign file.
    is_new = not application and not connection.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()[0]
    if not is_new and (application, version) != (APPLICATION, VERSION):
        raise DamagedFileError(f"expected a history of version {VERSION}, got version {version} of {application:#x}")


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open the file read-only. Raises ``HistoryError`` if missing or too new, and ``sqlite3.Error``."""
    if not path.is_file():
        raise HistoryError(f"there is no history at {path} yet: autoscale web or autoscale local up records one")
    how = "mode=ro&immutable=1" if _is_laid_down(path) else "mode=ro"
    uri = f"file:{quote(str(path))}?{how}"
    connection = sqlite3.connect(uri, uri=True, timeout=_BUSY, check_same_thread=False)
    connection.text_factory = _text
    try:
        _refuse_newer(path, connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _text(raw: bytes) -> str:
    """Damage causes invalid UTF-8, also in SQLite's messages."""
    return raw.decode(errors="replace")


def _is_laid_down(path: Path) -> bool:
    """Return True if the file is a cleanly closed copy in a read-only folder, where SQLite could not create the file
    that it needs for reading.
    """
    # An immutable open would miss data in the WAL.
    may_write = os.access(path.parent, os.W_OK, effective_ids=True)
    return not may_write and not path.with_name(f"{path.name}-wal").exists()


def set_aside(path: Path, wall: float) -> Path:
    """Rename a damaged file and its journals. Raises ``OSError``, also if there are ``MOST_ASIDE`` already."""
    if len(set_aside_files(path)) >= MOST_ASIDE:
        raise FileExistsError(EEXIST, f"{MOST_ASIDE} damaged files are beside it: check the disk, then move them away")
    names = (f"{path.name}{_ASIDE}{int(wall) + later}" for later in count())
    # Unique within a second too.
    aside = next(free for name in names if not (free := path.with_name(name)).exists())
    # Only an index, which SQLite recreates.
    path.with_name(path.name + _SHARED).unlink(missing_ok=True)
    for journal in _JOURNALS:  # first: a new file would use them
        with suppress(FileNotFoundError):
            path.with_name(path.name + journal).rename(f"{aside}{journal}")
    # Never repaired or deleted: people may want its content.
    return path.rename(aside)


def set_aside_files(path: Path) -> list[Path]:
    """Damaged files that were set aside, without journals."""
    files = path.parent.glob(f"{path.name}{_ASIDE}*")
    return sorted(file for file in files if not file.name.endswith(_JOURNALS))
