"""A history's file: opened by one recorder at a time, set aside where it is damaged.

A file of a newer release is neither written nor read nor renamed: it is whole, this program is too old for it.
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
"""A disk that damages one file after another must not fill up with them."""
_PRIMARY_CODE: Final = 0xFF
_BUSY: Final = 5.0
_JOURNAL: Final = 16 * 1024**2
"""Bytes of the journal that stay on the disk after a large transaction."""
_OWN: Final = 0o600


class StoreError(HistoryError):
    """The store cannot be written now; the message says why. What is recorded meanwhile is lost, nothing else."""


FAULTS: Final = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite raises: the second where its message would have a piece of the damage in it."""


def is_damage(error: Exception) -> bool:
    """Return True if the file itself is broken, or is none of ours."""
    if isinstance(error, DamagedFileError | UnicodeDecodeError):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(code, int) and code & _PRIMARY_CODE in DAMAGE


@contextmanager
def only_recorder(path: Path) -> Iterator[None]:
    """Holds the lock of the store. Raises ``StoreError``, also if another recorder has it."""
    lock = path.with_name(f"{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Never removed: a recorder that has the lock of a removed file would not exclude the next one.
        file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _OWN)
    except OSError as error:
        raise StoreError(f"the history cannot be written: {lock}: {error.strerror}") from error
    try:
        try:
            # The kernel gives it back however this process ends.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreError(f"another recorder writes {path}") from error
        yield
    finally:
        os.close(file)


def open_to_write(path: Path) -> sqlite3.Connection:
    """The file with its tables. Raises ``StoreError``, ``FAULTS`` and ``OSError``."""
    # Made before SQLite opens it, which would make it readable for others; the files beside it get the same rights.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _OWN))
    # Refuses a newer or foreign file before anything of it changes: even its mode, or that of its journal.
    with closing(open_to_read(path)) as reading:
        _own(reading)
    with suppress(PermissionError):  # a volume's group may write a file that another user made
        path.chmod(_OWN)
    # Without an isolation level Python begins no transactions of its own.
    connection = sqlite3.connect(path, timeout=_BUSY, isolation_level=None, check_same_thread=False)
    connection.text_factory = _text
    try:
        # Before the first table: later it has no effect without a VACUUM.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        # Readers do not block the recorder, nor does it block them.
        connection.execute("PRAGMA journal_mode = WAL")
        # With a WAL a power cut loses the last batches, and never damages the file.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {_JOURNAL}")
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise DamagedFileError(verdict)
        _own(connection)
        with connection:
            # All tables and marks or none: a half-made file would pass for a foreign one.
            connection.execute("BEGIN IMMEDIATE")
            _make(connection)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException as error:
        connection.close()
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:  # we ask nothing that is wrong
            raise DamagedFileError(str(error)) from error
        raise
    return connection


FileNumber = tuple[int, int]
"""What a file system knows a file by, whatever it is called."""


def file_number(path: Path) -> FileNumber | None:
    """That of the file at ``path``; None if none can be seen."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


class DamagedFileError(sqlite3.DatabaseError):
    """SQLite's check found damage, or the database is no history of this version; the message says what."""


def _make(connection: sqlite3.Connection) -> None:
    """Creates the tables. Raises ``DamagedFileError`` if there are different ones: SQLite's check accepts any."""
    for statement in CREATE:
        connection.execute(statement)
    # SQLite normalizes what it stores of a statement, so the text is compared with that of a fresh database.
    with closing(sqlite3.connect(":memory:")) as fresh:
        for statement in CREATE:
            fresh.execute(statement)
        if not _schema(fresh) <= _schema(connection):
            raise DamagedFileError("its tables are not as they were made")


def _schema(connection: sqlite3.Connection) -> set[tuple[str, ...]]:
    return set(connection.execute("SELECT type, name, tbl_name, IFNULL(sql, '') FROM sqlite_schema"))


def _mark(connection: sqlite3.Connection) -> tuple[int, int]:
    """The application and the version that the file is marked with."""
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
    # A new file has neither a mark nor tables. What has another mark is no history of ours.
    is_new = not application and not connection.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()[0]
    if not is_new and (application, version) != (APPLICATION, VERSION):
        raise DamagedFileError(f"expected a history of version {VERSION}, got version {version} of {application:#x}")


def open_to_read(path: Path) -> sqlite3.Connection:
    """The file for questions. Raises ``HistoryError`` if there is none or it is too new, ``sqlite3.Error``."""
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
    """Damage makes texts that are no UTF-8, also in what SQLite says of it."""
    return raw.decode(errors="replace")


def _is_laid_down(path: Path) -> bool:
    """Return True if the file is a copy that was closed in order, where nothing may be written: SQLite would want a
    file beside it even to read.
    """
    # A WAL beside it has data that an immutable open would miss.
    may_write = os.access(path.parent, os.W_OK, effective_ids=True)
    return not may_write and not path.with_name(f"{path.name}-wal").exists()


def set_aside(path: Path, wall: float) -> Path:
    """Renames a damaged file and its journals. Raises ``OSError``, also if ``MOST_ASIDE`` were set aside before."""
    if len(set_aside_files(path)) >= MOST_ASIDE:
        raise FileExistsError(EEXIST, f"{MOST_ASIDE} damaged files are beside it: check the disk, then move them away")
    names = (f"{path.name}{_ASIDE}{int(wall) + later}" for later in count())
    # Two files may be damaged within one second.
    aside = next(free for name in names if not (free := path.with_name(name)).exists())
    # An index of the journal only; SQLite makes it again.
    path.with_name(path.name + _SHARED).unlink(missing_ok=True)
    for journal in _JOURNALS:  # first: a new file would take it for its own
        with suppress(FileNotFoundError):
            path.with_name(path.name + journal).rename(f"{aside}{journal}")
    # Never repaired and never deleted: people may want what it holds.
    return path.rename(aside)


def set_aside_files(path: Path) -> list[Path]:
    """The damaged files that were set aside, without their journals."""
    files = path.parent.glob(f"{path.name}{_ASIDE}*")
    return sorted(file for file in files if not file.name.endswith(_JOURNALS))
