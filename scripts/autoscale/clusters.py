"""Finds a command's cluster: by kubectl's flags, or the local cluster that is running.

A flag that selects no cluster is an error: there is no fallback to another one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from deploy.kube.client import ApiClient, client_of
from deploy.local.cluster.folder import ClusterFolder, clusters_root
from protocol.kubernetes.impersonation import Impersonation
from protocol.kubernetes.kubeconfig import Login
from protocol.runtime.clock import SystemClock
from protocol.runtime.credentials import Credentials, CredentialsError, for_command, login_of

LOCAL: Final = "local"
DEFAULT_NAMESPACE: Final = "default"
KUBECTL_DEFAULT: Final = "kubectl's"
"""The default of ``--kubeconfig`` in the kubectl plugin: kubectl's cluster takes precedence over a local one."""
DEFAULT_KUBECONFIG: Final = Path("~/.kube/config")


@dataclass(frozen=True, slots=True)
class ClusterFlags:
    """The flags that select a cluster, and a user to impersonate; empty if not given."""

    name: str = ""
    kubeconfig: str = ""
    context: str = ""
    user: str = ""
    groups: tuple[str, ...] = ()

    @property
    def selects_kubectl(self) -> bool:
        """Return True if kubectl's cluster is selected. Raises ``CredentialsError`` if a local one is named too."""
        # `--name` and `--context` (or `--kubeconfig`) name two clusters; neither wins silently.
        if self.name and (self.context or self.kubeconfig not in ("", KUBECTL_DEFAULT)):
            other = "--context" if self.context else "--kubeconfig"
            raise CredentialsError(f"--name {self.name} and {other} select different clusters: use only one of them")
        # $KUBECONFIG takes precedence over a running local cluster: it may select another cluster.
        return bool(self.kubeconfig or self.context or os.environ.get("KUBECONFIG")) and not self.name

    @property
    def local_name(self) -> str:
        """The name of the local cluster to use, if it is running."""
        return self.name or LOCAL

    def kubeconfigs(self) -> tuple[Path, ...]:
        """The kubeconfig files to read, if any. Raises ``CredentialsError`` if no file of ``$KUBECONFIG`` exists."""
        if self.kubeconfig and self.kubeconfig != KUBECTL_DEFAULT:
            return (Path(self.kubeconfig),)
        return default_kubeconfigs()


def flags_of(values: Mapping[str, object]) -> ClusterFlags:
    """Picks the cluster flags from the values of a command's options."""
    # typer passes None for a repeatable option that was not given.
    groups = values.get("as_group")
    name, kubeconfig, context, user = (
        str(values.get(option) or "") for option in ("name", "kubeconfig", "context", "as_user")
    )
    return ClusterFlags(name, kubeconfig, context, user, tuple(groups) if isinstance(groups, list | tuple) else ())


@dataclass(frozen=True, slots=True)
class ReachedCluster:
    """A cluster and how to reach it. ``title`` names it in output; ``folder`` is set for a running local cluster."""

    kubeconfigs: tuple[Path, ...]
    context: str
    login: Login
    title: str
    folder: ClusterFolder | None = None
    impersonation: Impersonation = Impersonation()  # noqa: RUF009 - frozen

    @property
    def namespace(self) -> str:
        """The default namespace: the context's."""
        return self.login.namespace or DEFAULT_NAMESPACE

    @property
    def is_embedded(self) -> bool:
        """Return True for a local cluster with the embedded API server, whose pods cannot be port-forwarded to."""
        return self.folder is not None and not self.folder.read_spec().kubernetes

    def credentials(self) -> Credentials:
        """Credentials for its API; runs credential plug-ins. Raises ``CredentialsError``."""
        login = self.login
        # Like kubectl, send no credentials in plain text.
        if login.server.startswith("http://"):
            login = replace(login, token="", token_path="", basic="", plugin=None)
        return for_command(login, SystemClock(), self.impersonation)

    def client(self) -> ApiClient:
        """Returns a client of its API. Raises ``CredentialsError``."""
        return client_of(self.credentials())

    def kubectl(self) -> list[str]:
        """The command line of kubectl for this cluster, with ``kubectl_environment``."""
        flags = [
            *(["--context", self.context] if self.context else []),
            *(["--as", self.impersonation.user] if self.impersonation else []),
        ]
        return ["kubectl", *flags, *(f"--as-group={group}" for group in self.impersonation.groups)]

    @property
    def kubectl_environment(self) -> Mapping[str, str]:
        """The environment of ``kubectl``."""
        # kubectl merges the files of $KUBECONFIG, but `--kubeconfig` accepts only one.
        return {**os.environ, "KUBECONFIG": os.pathsep.join(map(str, self.kubeconfigs))}


def find_cluster(flags: ClusterFlags) -> ReachedCluster:
    """Finds the selected cluster. Raises ``CredentialsError`` if there is none, or its kubeconfig cannot be used."""
    # Flags take precedence, then `$KUBECONFIG`, then the cluster `local`, then kubectl's default kubeconfig.
    folder = None if flags.selects_kubectl else local_folder(flags)
    paths = flags.kubeconfigs() if folder is None else (folder.kubeconfig,)
    if not paths:
        raise CredentialsError(_no_kubeconfig(flags))
    login = login_of(paths, flags.context)
    # A kubeconfig with the API server of a running local cluster selects that cluster.
    if (
        folder is None
        and (local_cluster := find_cluster_folder(paths, login)) is not None
        and local_cluster.is_running()
    ):
        folder = local_cluster
    title = f"cluster of {', '.join(map(str, paths))}"
    if folder is not None:
        title = f"local cluster {folder.name!r}"
    elif flags.context:
        title = f"context {flags.context!r}"
    return ReachedCluster(paths, flags.context, login, title, folder, Impersonation(flags.user, flags.groups))


def _no_kubeconfig(flags: ClusterFlags) -> str:
    """The reason why no cluster is selected."""
    missing = f"no kubeconfig (--kubeconfig FILE, $KUBECONFIG, or {DEFAULT_KUBECONFIG})"
    # A context, and the kubectl plugin, never select the running local cluster by default.
    if flags.selects_kubectl and local_folder(ClusterFlags()) is not None:
        without = " without --context" if flags.context else ""
        return f"{missing}; to use the running local cluster: --name {LOCAL}{without}"
    return f"{missing}, and no local cluster is running (autoscale local up)"


def context_namespace(flags: ClusterFlags) -> str:
    """The selected cluster's default namespace; ``default`` if the cluster is gone and only its history is left."""
    try:
        return find_cluster(flags).namespace
    except CredentialsError:
        return DEFAULT_NAMESPACE


def local_folder(flags: ClusterFlags) -> ClusterFolder | None:
    """The running local cluster to use, if any. Raises ``CredentialsError`` if ``--name`` is not running."""
    try:
        folder = ClusterFolder.of(flags.local_name)
    except FileNotFoundError:  # no home folder, hence no local cluster
        if flags.name:
            raise
        return None
    if flags.name:
        if not folder.is_running():
            remedy = f"autoscale local up --name {folder.name}"
            raise CredentialsError(f"local cluster {folder.name!r} is not running; start it: {remedy}")
        return folder
    return folder if folder.is_running() else None


def find_cluster_folder(paths: Sequence[Path], login: Login | None) -> ClusterFolder | None:
    """The local cluster of these kubeconfigs: by its own file, also while it is down, or by its API server."""
    return next((folder for folder in _folders() if _is_of(folder, paths, login)), None)


def _folders() -> list[ClusterFolder]:
    try:
        roots = sorted(path for path in clusters_root().iterdir() if (path / "kubeconfig").is_file())
    except OSError:
        return []
    return [ClusterFolder(path.name, path) for path in roots]


def _is_of(folder: ClusterFolder, paths: Sequence[Path], login: Login | None) -> bool:
    # Its own kubeconfig selects this cluster even while it is down.
    if [path.resolve() for path in paths] == [folder.kubeconfig.resolve()]:
        return True
    if login is None or not folder.is_running():
        return False
    try:
        own = login_of([folder.kubeconfig])
    except CredentialsError:
        return False
    # A server's address alone is not enough: another cluster may have had the same port.
    return (own.server, own.authority) == (login.server, login.authority)


def default_kubeconfigs() -> tuple[Path, ...]:
    """kubectl's default: the existing files of ``$KUBECONFIG``, or else the one in the home folder, if it exists.

    Raises ``CredentialsError`` if the variable is set and none of its files exists.
    """
    if variable := os.environ.get("KUBECONFIG", ""):
        # kubectl skips empty entries and files that do not exist; a dict drops duplicates.
        paths = dict.fromkeys(Path(entry) for entry in variable.split(os.pathsep) if entry)
        existing = tuple(path for path in paths if path.exists())
        # No fallback to the home folder, whose kubeconfig may select another cluster.
        if not existing:
            raise CredentialsError(f"KUBECONFIG={variable}: no such file; correct the variable, or unset it")
        return existing
    try:
        path = DEFAULT_KUBECONFIG.expanduser()
    except RuntimeError:  # neither HOME nor an account with a home folder
        return ()
    return (path,) if path.exists() else ()
