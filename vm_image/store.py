"""The cache of finished images.

A folder under its final name is complete. One build of a name runs at a time; others wait and take its result.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_SIZES: Final = ".sizes"

Report = Callable[[str], None]
"""Takes one line of progress for a person."""


def cache_root() -> Path:
    """``$AUTOSCALE_CACHE``, else ``autoscale`` in the user's cache directory."""
    named = os.environ.get("AUTOSCALE_CACHE")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "autoscale"


class Store:
    """Folders by name, made once."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, key: str) -> Path:
        """Folder of ``key``, existing or not."""
        return self._root / key

    def kept(self, key: str) -> Path | None:
        """The folder of ``key``; None if it is missing or damaged."""
        final = self.path(key)
        return final if _is_whole(final) else None

    def get(self, key: str, make: Callable[[Path], None], report: Report) -> Path:
        """The folder of ``key``; if it is missing, ``make`` fills an empty one that then takes its place."""
        final = self.path(key)
        if _is_whole(final):
            return final
        self._root.mkdir(parents=True, exist_ok=True)
        # Checked again under the lock: another process may have built it while this one waited.
        with self._alone(key, report):
            if not _is_whole(final):
                # It exists, but some files are missing or have another size than when they were written.
                if final.is_dir():
                    report(f"{final} is damaged; building it again")
                    shutil.rmtree(final)
                with self._workspace(key) as work:
                    make(work)
                    _seal(work)
                    # Last, after the files have reached the disk: a folder under its final name is complete.
                    work.rename(final)
        return final

    def drop(self, key: str, report: Report) -> None:
        """Forgets the folder of ``key``, so that it is made again."""
        self._root.mkdir(parents=True, exist_ok=True)
        with self._alone(key, report):
            shutil.rmtree(self.path(key), ignore_errors=True)

    @contextmanager
    def _alone(self, key: str, report: Report) -> Iterator[None]:
        """Holds the name. The kernel releases the lock when its holder dies, however that happens."""
        with (self._root / f".{key}.lock").open("w") as lock:
            try:
                # Tried without waiting first, only to report that it waits.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report("another build of the same is running; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _workspace(self, key: str) -> Iterator[Path]:
        # Leftovers of interrupted builds of this name. The lock is held, so none of them is in use.
        for leftover in self._root.glob(f".{key}.work.*"):
            shutil.rmtree(leftover, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f".{key}.work.", dir=self._root))
        # mkdtemp makes it private; other users may share the cache.
        work.chmod(0o755)
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _seal(folder: Path) -> None:
    """Adds a list of sizes to the files of ``folder``, and syncs them all to the disk."""
    sizes = "".join(f"{size} {name}\n" for name, size in _sizes(folder).items())
    (folder / _SIZES).write_text(sizes)
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            # Without fsync, a crash after the rename could leave empty files under the final name.
            with path.open("rb") as written:
                os.fsync(written.fileno())


def _is_whole(folder: Path) -> bool:
    """Return True if ``folder`` has all that was written into it. A folder without a list predates the lists."""
    try:
        listed = (folder / _SIZES).read_text().splitlines()
    except FileNotFoundError:
        return folder.is_dir()
    sizes = _sizes(folder)
    # An empty list means that a crash hit the list itself.
    return bool(listed) and all(
        sizes.get(name) == int(size) for size, _, name in (line.partition(" ") for line in listed)
    )


def _sizes(folder: Path) -> dict[str, int]:
    """The files below ``folder``, each with its size in bytes. A link counts as itself."""
    return {
        str(path.relative_to(folder)): path.lstat().st_size
        for path in sorted(folder.rglob("*"))
        if not path.is_dir() and path.name != _SIZES
    }
