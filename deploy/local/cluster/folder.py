"""A cluster's folder: all its files, and the lock that says whether it runs (``lock``).

The folder is private to its owner: it holds tokens.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from errno import ENOENT
from pathlib import Path

import msgspec

from deploy.local.cluster.lock import ClusterLock, is_held, owner_of
from deploy.local.cluster.settings import EXTENDER_TOKEN
from deploy.local.cluster.spec import ClusterSpec
from deploy.local.kubelet.agents import EXPLAIN_TOKEN
from deploy.local.private_file import write_private


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
