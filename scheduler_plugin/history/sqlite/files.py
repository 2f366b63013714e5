"""The file of a history: written by one recorder at a time, set aside if damaged.

A file of a newer release is not changed, because it is intact.
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
MAX_QUARANTINED: Final = 3
"""Maximum number of damaged files to keep, so that they do not fill a bad disk."""
_PRIMARY_CODE: Final = 0xFF
_BUSY: Final = 5.0
_JOURNAL: Final = 16 * 1024**2
"""Maximum size of the journal in bytes after a large transaction."""
_OWN: Final = 0o600


class StoreError(HistoryError):
    """The store cannot be written now, and why. Only samples of this time are lost."""


FAULTS: Final = (sqlite3.Error, UnicodeDecodeError)
"""Exceptions that SQLite raises; the second one if a message contains damaged text."""


def is_damage(error: Exception) -> bool:
    """Return True if the file is damaged or not a history."""
    if isinstance(error, DamagedFileError | UnicodeDecodeError):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(code, int) and code & _PRIMARY_CODE in DAMAGE


@contextmanager
def recorder_lock(path: Path) -> Iterator[None]:
    """Hold the lock of the store. Raises ``StoreError``, also if another recorder has it."""
    lock = path.with_name(f"{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Never removed, because a lock on a removed file would not exclude the next recorder.
        file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _OWN)
    except OSError as error:
        raise StoreError(f"the history cannot be written: {lock}: {error.strerror}") from error
    try:
        try:
            # The kernel releases the lock when the process ends.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreError(f"waiting for another recorder, which is writing to {path}") from error
        yield
    finally:
        os.close(file)


def open_to_write(path: Path) -> sqlite3.Connection:
    """Open the file, and create its tables. Raises ``StoreError``, ``FAULTS`` and ``OSError``."""
    # Create it first, because SQLite would make it readable for others. Journals inherit its mode.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _OWN))
    # Refuse a newer or foreign file before changing anything, even its mode or journal.
    with closing(open_to_read(path)) as reading:
        _check_mark(reading)
    with suppress(PermissionError):  # a file of another user, writable by the volume's group
        path.chmod(_OWN)
    # No implicit transactions.
    connection = sqlite3.connect(path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
    connection.text_factory = _text
    try:
        # Before the first table: later it would need a VACUUM.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        # So that readers and the recorder do not block each other.
        connection.execute("PRAGMA journal_mode = WAL")
        # With WAL a power failure may lose the last batches, but does not damage the file.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {_JOURNAL}")
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise DamagedFileError(verdict)
        _check_mark(connection)
        with connection:
            # Atomic: a partial file would not be recognized as a history.
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
    """Device and inode of the file at ``path``; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


class DamagedFileError(sqlite3.DatabaseError):
    """SQLite's check found damage, or the database is not a history of this version."""


def _make(connection: sqlite3.Connection) -> None:
    """Create the tables. Raises ``DamagedFileError`` if existing ones differ, which SQLite's check does not notice."""
    for statement in CREATE:
        connection.execute(statement)
    # SQLite normalizes statements, so compare with a fresh database.
    with closing(sqlite3.connect(":memory:")) as fresh:
        for statement in CREATE:
            fresh.execute(statement)
        if not _schema(fresh) <= _schema(connection):
            raise DamagedFileError("its tables differ from the expected ones")


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
            f"a newer release wrote the history {path}: it has version {version}, this program supports version"
            f" {VERSION}; upgrade this program, or move the file away to begin a new one"
        )


def _check_mark(connection: sqlite3.Connection) -> None:
    application, version = _mark(connection)
    # A new file has neither application id nor tables.
    is_new = not application and not connection.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()[0]
    if not is_new and (application, version) != (APPLICATION, VERSION):
        raise DamagedFileError(f"expected a history of version {VERSION}, got version {version} of {application:#x}")


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open the file read-only. Raises ``HistoryError`` if missing or too new, and ``sqlite3.Error``."""
    if not path.is_file():
        raise HistoryError(f"there is no history at {path} yet: autoscale web or autoscale local up records one")
    parameters = "mode=ro&immutable=1" if _is_read_only_copy(path) else "mode=ro"
    uri = f"file:{quote(str(path))}?{parameters}"
    connection = sqlite3.connect(uri, uri=True, timeout=_BUSY, check_same_thread=False)
    connection.text_factory = _text
    try:
        _refuse_newer(path, connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _text(raw: bytes) -> str:
    """Decode text of a file whose damage may cause invalid UTF-8, also in SQLite's messages."""
    return raw.decode(errors="replace")


def _is_read_only_copy(path: Path) -> bool:
    """Return True for a cleanly closed copy in a read-only folder, where SQLite cannot create the file that it needs
    for reading.
    """
    # An immutable file is read without its WAL.
    may_write = os.access(path.parent, os.W_OK, effective_ids=True)
    return not may_write and not path.with_name(f"{path.name}-wal").exists()


def quarantine(path: Path, wall: float) -> Path:
    """Rename a damaged file and its journals. Raises ``OSError``, also if there are ``MAX_QUARANTINED`` already."""
    if len(quarantined_files(path)) >= MAX_QUARANTINED:
        raise FileExistsError(
            EEXIST, f"there are {MAX_QUARANTINED} damaged files already: check the disk, then move them away"
        )
    names = (f"{path.name}{_ASIDE}{int(wall) + later}" for later in count())
    # Unique even within a second.
    aside = next(free for name in names if not (free := path.with_name(name)).exists())
    # This is only an index, which SQLite recreates.
    path.with_name(path.name + _SHARED).unlink(missing_ok=True)
    for journal in _JOURNALS:  # before the file itself, because a new file would use them
        with suppress(FileNotFoundError):
            path.with_name(path.name + journal).rename(f"{aside}{journal}")
    # Do not repair or delete it, because its owner may want the content.
    return path.rename(aside)


def quarantined_files(path: Path) -> list[Path]:
    """The damaged files that were set aside, without their journals."""
    files = path.parent.glob(f"{path.name}{_ASIDE}*")
    return sorted(file for file in files if not file.name.endswith(_JOURNALS))
