"""The lock of a cluster: it says who runs it, and keeps others from making or removing it at the same time.

It is held from before the first thing of a cluster is made until after the last is removed: first by the command that
starts the cluster, then by the cluster's process, to which its open files are passed.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

INHERITED: Final = "AUTOSCALE_LOCK"
"""The environment variable with the descriptors that a process inherits."""

# Cleared at boot, like the namespaces and control groups that the lock protects.
_MACHINE: Final = Path("/run")


class AlreadyRunsError(Exception):
    """The cluster runs, or another command starts or removes it; ``elsewhere`` is its folder if that is another."""

    def __init__(self, name: str, elsewhere: str = "") -> None:
        place = f" on this machine, in {elsewhere}: end it there, or use another name" if elsewhere else ""
        super().__init__(f"the cluster {name!r} runs already{place}")
        self.elsewhere = elsewhere


class ClusterLock:
    """A lock that is held. ``release`` drops it in this process; a process that inherited it keeps it."""

    def __init__(self, descriptors: Sequence[int], folder: Path) -> None:
        self.descriptors = tuple(descriptors)
        self._folder = folder

    @classmethod
    def take(cls, name: str, folder: Path) -> ClusterLock:
        """Takes the lock of the cluster ``name`` in ``folder``, which is made. Raises ``AlreadyRunsError``."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptors: list[int] = []
        for path in _paths(name, folder):
            descriptor = _locked(path)
            if descriptor is None:
                other = _folder_in(path)
                # Locks taken on the way must not stay behind: the caller gets no object to release.
                cls(descriptors, folder).release()
                raise AlreadyRunsError(name, other if other != str(folder) else "")
            descriptors.append(descriptor)
        taken = cls(descriptors, folder)
        taken._write_owner()
        return taken

    @classmethod
    def inherited(cls, folder: Path, descriptors: str) -> ClusterLock:
        """The lock that was passed on to this process, whose lock it is from now on."""
        taken = cls([int(number) for number in descriptors.split(",")], folder)
        for descriptor in taken.descriptors:
            # The children of this process must not hold the lock after it has ended.
            os.set_inheritable(descriptor, False)
        taken._write_owner()
        return taken

    @property
    def passed_on(self) -> dict[str, str]:
        """Environment variables for the process that inherits the descriptors."""
        return {INHERITED: ",".join(map(str, self.descriptors))}

    def release(self) -> None:
        """Closes the lock's files here."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = ()

    def _write_owner(self) -> None:
        # The same file is overwritten in place. A new file would be a new inode, which the lock does not cover.
        for descriptor in self.descriptors:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {self._folder}".encode(), 0)


def owner_of(folder: Path) -> int | None:
    """The pid of the process that holds the lock of ``folder``; None if none does."""
    try:
        written = (folder / "lock").read_text().partition(" ")[0] if is_held(folder) else ""
    except OSError:
        return None
    return int(written) if written.isdecimal() else None


def is_held(folder: Path) -> bool:
    """Return True if a process holds the lock of ``folder``. Raises ``OSError`` if it cannot be opened."""
    try:
        with (folder / "lock").open("rb") as probe:
            # A shared lock suffices to probe: it fails only while an exclusive one is held. The kernel drops that
            # when its last descriptor closes, so a stale pid never looks like a running cluster.
            fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except BlockingIOError:
        return True
    return False


def _paths(name: str, folder: Path) -> list[Path]:
    # As root the lock covers the machine as well: namespaces and control groups are named after the cluster alone,
    # wherever its folder is.
    of_machine = [_MACHINE / f"autoscale-{name}.lock"] if os.geteuid() == 0 and os.access(_MACHINE, os.W_OK) else []
    return [folder / "lock", *of_machine]


def _locked(path: Path) -> int | None:
    """The descriptor of a lock that was taken; None if another process has it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A lock's file may be removed while it is held, and a removed file locks nothing: a later process would
            # lock a new one.
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        os.close(descriptor)  # its file was removed between opening and locking


def _folder_in(path: Path) -> str:
    try:
        return path.read_text().partition(" ")[2]
    except OSError:
        return ""
