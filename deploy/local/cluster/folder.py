"""A cluster's folder (mode 0700: it holds tokens), its files, and its lock.

The command that starts a cluster takes the lock and passes its file descriptors to the cluster's process. The lock is
held until the last resource of the cluster is removed.
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
"""Environment variable with the lock's inherited descriptors."""

# Cleared at boot, as are the namespaces and control groups that the lock protects.
_MACHINE: Final = Path("/run")


class AlreadyRunningError(Exception):
    """The cluster is running, or another command is starting or removing it.

    ``elsewhere`` is the running cluster's folder if it is another one.
    """

    def __init__(self, name: str, elsewhere: str = "") -> None:
        where = f" on this machine, in {elsewhere}: stop it there, or use another name" if elsewhere else ""
        super().__init__(f"cluster {name!r} is already running{where}")
        self.elsewhere = elsewhere


class ClusterLock:
    """An acquired lock. ``release`` drops it in this process only, not in a process that inherited it."""

    def __init__(self, descriptors: Sequence[int], folder: Path) -> None:
        self.descriptors = tuple(descriptors)
        self._folder = folder

    @classmethod
    def take(cls, name: str, folder: Path) -> ClusterLock:
        """Acquire the lock of cluster ``name`` in ``folder``; creates the folder. Raises ``AlreadyRunningError``."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptors: list[int] = []
        for path in _lock_paths(name, folder):
            descriptor = _try_lock(path)
            if descriptor is None:
                other = _owner_folder(path)
                # Release the locks acquired so far.
                cls(descriptors, folder).release()
                raise AlreadyRunningError(name, other if other != str(folder) else "")
            descriptors.append(descriptor)
        taken = cls(descriptors, folder)
        taken._write_owner()
        return taken

    @classmethod
    def inherited(cls, folder: Path, descriptors: str) -> ClusterLock:
        """The lock that the parent process passed to this one."""
        taken = cls([int(number) for number in descriptors.split(",")], folder)
        for descriptor in taken.descriptors:
            # Children of this process must not keep the lock.
            os.set_inheritable(descriptor, False)
        taken._write_owner()
        return taken

    @property
    def environment(self) -> dict[str, str]:
        """Environment variable for the process that inherits the descriptors."""
        return {INHERITED: ",".join(map(str, self.descriptors))}

    def release(self) -> None:
        """Close the lock's files in this process."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = ()

    def _write_owner(self) -> None:
        # Overwritten in place: a new file would be an inode that the lock does not cover.
        for descriptor in self.descriptors:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {self._folder}".encode(), 0)


def _lock_paths(name: str, folder: Path) -> list[Path]:
    # As root, also a machine-wide lock: namespaces and control groups are named after the cluster, not its folder.
    machine_wide = [_MACHINE / f"autoscale-{name}.lock"] if os.geteuid() == 0 and os.access(_MACHINE, os.W_OK) else []
    return [folder / "lock", *machine_wide]


def _try_lock(path: Path) -> int | None:
    """Lock ``path`` and return the descriptor; None if another process has the lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The file may have been removed meanwhile, and another process may lock a new one.
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        os.close(descriptor)


def _owner_folder(path: Path) -> str:
    try:
        return path.read_text().partition(" ")[2]
    except OSError:
        return ""


def clusters_root() -> Path:
    """The folder of all clusters: ``$AUTOSCALE_HOME``, else ``~/.local/state/autoscale``.

    Raises ``FileNotFoundError`` if the user has no home folder.
    """
    if chosen := os.environ.get("AUTOSCALE_HOME"):
        return Path(chosen)
    try:
        return Path.home() / ".local" / "state" / "autoscale"
    # The user has neither HOME nor an entry in the user database.
    except RuntimeError:
        raise FileNotFoundError(ENOENT, "no home folder: set AUTOSCALE_HOME or HOME") from None


@dataclass
class ClusterFolder:
    """The folder of cluster ``name``, and the paths in it."""

    name: str
    root: Path

    def __post_init__(self) -> None:
        root = self.root
        self.kubeconfig = root / "kubeconfig"  # for users and their tools
        self.control_kubeconfig = root / "control.kubeconfig"  # for the control plane, inside the cluster's network
        self.scheduler_config = root / "scheduler.yaml"  # reloaded when it changes
        self.groups_settings = root / "groups.yaml"  # reloaded when it changes
        self.agents_policy = root / "agents.yaml"  # in large fleets only
        self.extender_token = root / EXTENDER_TOKEN  # bearer token of the scheduler's extender
        self.explain_token = root / EXPLAIN_TOKEN  # bearer token of /explain
        self.control = root / "control.json"  # the control endpoint: ``port``, ``token`` and ``pid``
        self.api_data = root / "api"  # the API server's store
        self.real = root / "kubernetes"  # keys, etcd and nodes of a real Kubernetes
        self.nodes = self.real / "nodes"  # one folder per node
        self.logs = root / "logs"

    @classmethod
    def of(cls, name: str) -> ClusterFolder:
        """The folder of cluster ``name`` in ``clusters_root()``."""
        return cls(name, clusters_root() / name)

    def log(self, part: str) -> Path:
        """The log file of one process, such as ``cluster``, ``api-server`` or ``scheduler``."""
        return self.logs / f"{part}.log"

    def write_spec(self, spec: ClusterSpec) -> None:
        """Store the specification; creates the folder."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self.root / "spec.json", msgspec.json.encode(spec).decode())

    def read_spec(self) -> ClusterSpec:
        """The stored specification."""
        return msgspec.json.decode((self.root / "spec.json").read_bytes(), type=ClusterSpec)

    def exists(self) -> bool:
        """Return True if the folder holds a cluster."""
        # Not the lock file: taking the lock creates it.
        return (self.root / "spec.json").exists()

    @contextmanager
    def locked(self) -> Iterator[ClusterLock]:
        """Hold the lock while the context is open. Raises ``AlreadyRunningError``."""
        lock = ClusterLock.take(self.name, self.root)
        try:
            yield lock
        finally:
            lock.release()

    def owner(self) -> int | None:
        """The pid of the process that holds the lock; None if the cluster is not running."""
        try:
            written = (self.root / "lock").read_text().partition(" ")[0] if self.is_running() else ""
        except OSError:
            return None
        return int(written) if written.isdecimal() else None

    def is_running(self) -> bool:
        """Return True if the cluster is running, or a command is starting or removing it.

        Raises ``OSError`` if the lock cannot be opened.
        """
        try:
            with (self.root / "lock").open("rb") as probe:
                # A shared lock fails only while another process has an exclusive one. Locks of dead processes are
                # dropped.
                fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except BlockingIOError:
            return True
        return False

    def clear(self) -> None:
        """Remove everything except the lock file. The caller must hold the lock."""
        for path in self.root.iterdir():
            # `rmtree` refuses symbolic links.
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != "lock":
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder of a stopped cluster."""
        shutil.rmtree(self.root, ignore_errors=True)
