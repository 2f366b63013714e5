"""A cache of build results: folders by key.

A folder with its final name is complete. Concurrent builds of a key wait for the first one and use its result.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import ENOENT
from pathlib import Path
from typing import Final

_SIZES: Final = ".sizes"

Report = Callable[[str], None]
"""Reports one line of progress."""


def cache_root() -> Path:
    """``$AUTOSCALE_CACHE``, else ``autoscale`` in the user's cache directory.

    Raises ``FileNotFoundError`` if the user has no home folder.
    """
    if configured := os.environ.get("AUTOSCALE_CACHE"):
        return Path(configured)
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches, "autoscale")
    try:
        return Path.home() / ".cache" / "autoscale"
    # The user has neither HOME nor an entry in the user database.
    except RuntimeError:
        raise FileNotFoundError(ENOENT, "no home folder: set AUTOSCALE_CACHE or HOME") from None


class Store:
    """Folders by key, each built once."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def cached(self, key: str) -> Path | None:
        """The folder of ``key``; None if it is missing or damaged."""
        final = self._root / key
        return final if _is_whole(final) else None

    def get(self, key: str, make: Callable[[Path], None], report: Report) -> Path:
        """The folder of ``key``; if it is missing or damaged, ``make`` builds it in an empty folder."""
        final = self._root / key
        if _is_whole(final):
            return final
        self._root.mkdir(parents=True, exist_ok=True)
        # Again, with the lock: another process may have built it meanwhile.
        with self._locked(key, report):
            if not _is_whole(final):
                # Files are missing or have another size than they were written with.
                if final.is_dir():
                    report(f"{final} is damaged; rebuilding it")
                    shutil.rmtree(final)
                with self._workspace(key) as work:
                    make(work)
                    _seal(work)
                    # Last, when the files are on disk: a folder with its final name is complete.
                    work.rename(final)
        return final

    def drop(self, key: str, report: Report) -> None:
        """Remove the folder of ``key``, so that it is built again."""
        self._root.mkdir(parents=True, exist_ok=True)
        with self._locked(key, report):
            shutil.rmtree(self._root / key, ignore_errors=True)

    @contextmanager
    def _locked(self, key: str, report: Report) -> Iterator[None]:
        """Lock ``key``. The kernel releases the lock if this process dies."""
        with (self._root / f".{key}.lock").open("w") as lock:
            try:
                # First without waiting, to report if it must wait.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report("waiting for another build with the same inputs")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _workspace(self, key: str) -> Iterator[Path]:
        # Leftovers of interrupted builds. This process has the lock, so none of them is in use.
        for leftover in self._root.glob(f".{key}.work.*"):
            shutil.rmtree(leftover, ignore_errors=True)
        prefix = f".{key}.work."
        with tempfile.TemporaryDirectory(prefix=prefix, dir=self._root, ignore_cleanup_errors=True) as name:
            # The folder is private, but users may share the cache.
            Path(name).chmod(0o755)
            yield Path(name)


def _seal(folder: Path) -> None:
    """Write a list of file sizes into ``folder``, and sync all files to disk."""
    sizes = "".join(f"{size} {name}\n" for name, size in _sizes(folder).items())
    (folder / _SIZES).write_text(sizes)
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            # Without fsync, a crash after the rename could leave empty files.
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _is_whole(folder: Path) -> bool:
    """Return True if all files of ``folder`` exist with their sizes. Older folders have no list of sizes."""
    try:
        listed = (folder / _SIZES).read_text().splitlines()
    except FileNotFoundError:
        return folder.is_dir()
    sizes = _sizes(folder)
    # The list is empty after a crash while it was written.
    return bool(listed) and all(
        sizes.get(name) == int(size) for size, _, name in (line.partition(" ") for line in listed)
    )


def _sizes(folder: Path) -> dict[str, int]:
    """Sizes in bytes of all files below ``folder``; links are not followed."""
    return {
        str(path.relative_to(folder)): path.lstat().st_size
        for path in sorted(folder.rglob("*"))
        if not path.is_dir() and path.name != _SIZES
    }
