"""A cluster's folder: all its files, and the lock that says who runs the cluster.

The folder is private to its owner: it holds tokens. The lock is held from before the first thing of a cluster is made
until after the last is removed: first by the command that starts the cluster, then by the cluster's process, to which
its open files are passed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from errno import ENOENT
from pathlib import Path
from typing import Final

import msgspec

from deploy.local.cluster.settings import EXTENDER_TOKEN
from deploy.local.cluster.spec import ClusterSpec
from deploy.local.kubelet.agents import EXPLAIN_TOKEN
from deploy.local.private_file import write_private

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


def clusters_root() -> Path:
    """The folder of clusters: ``$AUTOSCALE_HOME``, else ``~/.local/state/autoscale``.

    Raises ``FileNotFoundError`` if there is no home folder either.
    """
    if chosen := os.environ.get("AUTOSCALE_HOME"):
        return Path(chosen)
    try:
        return Path.home() / ".local" / "state" / "autoscale"
    # pathlib raises it for a user with neither HOME nor an entry in the user database.
    except RuntimeError:
        raise FileNotFoundError(ENOENT, "there is no home folder: set AUTOSCALE_HOME, or HOME") from None


@dataclass
class ClusterFolder:
    """The folder of one cluster, by its name, and the paths in it."""

    name: str
    root: Path

    def __post_init__(self) -> None:
        root = self.root
        self.kubeconfig = root / "kubeconfig"  # for people and their tools
        self.control_kubeconfig = root / "control.kubeconfig"  # for the control plane, inside the cluster's network
        self.scheduler_config = root / "scheduler.yaml"  # a change takes effect at once, as with the next one
        self.groups_settings = root / "groups.yaml"
        self.agents_policy = root / "agents.yaml"  # of all agents, if there are too many VMs for the usual one
        self.extender_token = root / EXTENDER_TOKEN  # the scheduling loop shows it to the scheduler's extender
        self.explain_token = root / EXPLAIN_TOKEN  # opens what the scheduler, the groups' program and agents explain
        self.control = root / "control.json"  # the address of the cluster's process: ``port``, ``token`` and ``pid``
        self.api_data = root / "api"  # the API server's store
        self.real = root / "kubernetes"  # the keys, the store and the nodes of a real Kubernetes
        self.nodes = self.real / "nodes"  # a folder each
        self.logs = root / "logs"  # of the cluster's own parts

    @classmethod
    def of(cls, name: str) -> ClusterFolder:
        """The folder of the cluster ``name`` under the usual root."""
        return cls(name, clusters_root() / name)

    def log(self, part: str) -> Path:
        """The log of one part: ``cluster``, ``api-server`` or ``scheduler``."""
        return self.logs / f"{part}.log"

    def write_spec(self, spec: ClusterSpec) -> None:
        """Store the specification. Creates the folder."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self.root / "spec.json", msgspec.json.encode(spec).decode())

    def read_spec(self) -> ClusterSpec:
        """The specification the cluster was created with."""
        return msgspec.json.decode((self.root / "spec.json").read_bytes(), type=ClusterSpec)

    def exists(self) -> bool:
        """Return True if the folder holds a cluster."""
        # The lock's file alone is not enough: taking the lock creates it.
        return (self.root / "spec.json").exists()

    @contextmanager
    def locked(self) -> Iterator[ClusterLock]:
        """Holds the lock; a process that inherited it keeps it. Raises ``AlreadyRunsError``."""
        lock = ClusterLock.take(self.name, self.root)
        try:
            yield lock
        finally:
            lock.release()

    def owner(self) -> int | None:
        """The process that holds the lock; None if the cluster does not run."""
        return owner_of(self.root)

    def runs(self) -> bool:
        """Return True if the cluster's process lives, or a command starts or removes it."""
        return is_held(self.root)

    def clear(self) -> None:
        """Removes everything but the lock, which must be held."""
        for path in self.root.iterdir():
            # `rmtree` refuses symbolic links.
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            # A new lock file would be another lock, which nobody holds.
            elif path.name != "lock":
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Removes everything. Only for a cluster that does not run."""
        shutil.rmtree(self.root, ignore_errors=True)
