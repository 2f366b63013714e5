"""The cluster that a command means: by the flags that kubectl has too, or a local one that runs.

A flag that names no cluster is an error: no other cluster takes its place.
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
from protocol.runtime.credentials import Credentials, CredentialsError, for_person, login_of

LOCAL: Final = "local"
DEFAULT_NAMESPACE: Final = "default"
KUBECTLS: Final = "kubectl's"
"""The default of ``--kubeconfig`` in kubectl's plugin: no local cluster goes before kubectl's own."""
USUAL: Final = Path("~/.kube/config")


@dataclass(frozen=True, slots=True)
class ClusterFlags:
    """The flags that say which cluster is meant, and as whom; empty: not given."""

    name: str = ""
    kubeconfig: str = ""
    context: str = ""
    user: str = ""
    groups: tuple[str, ...] = ()

    @property
    def of_kubectl(self) -> bool:
        """Return True if kubectl's cluster is meant. Raises ``CredentialsError`` if a local one is named too."""
        # `--name` and `--context` (or `--kubeconfig`) name two clusters; neither wins silently.
        if self.name and (self.context or self.kubeconfig not in ("", KUBECTLS)):
            other = "--context" if self.context else "--kubeconfig"
            raise CredentialsError(f"--name {self.name} and {other} select different clusters: use only one of them")
        # A set variable never gives way to a local cluster that happens to run: it may lead to another one.
        return bool(self.kubeconfig or self.context or os.environ.get("KUBECONFIG")) and not self.name

    @property
    def local_name(self) -> str:
        """The name of the local cluster that may be meant."""
        return self.name or LOCAL

    def kubeconfigs(self) -> tuple[Path, ...]:
        """The files to read; none if there are none. Raises ``CredentialsError`` if ``$KUBECONFIG`` names none."""
        if self.kubeconfig and self.kubeconfig != KUBECTLS:
            return (Path(self.kubeconfig),)
        return usual_kubeconfigs()


def flags_of(values: Mapping[str, object]) -> ClusterFlags:
    """The flags among the values of a command's options."""
    # typer gives None for a repeatable option that was not given.
    groups = values.get("as_group")
    name, kubeconfig, context, user = (
        str(values.get(option) or "") for option in ("name", "kubeconfig", "context", "as_user")
    )
    return ClusterFlags(name, kubeconfig, context, user, tuple(groups) if isinstance(groups, list | tuple) else ())


@dataclass(frozen=True, slots=True)
class ReachedCluster:
    """One cluster. ``title`` is its name in output; ``folder`` that of a local cluster that runs, None of any other."""

    kubeconfigs: tuple[Path, ...]
    context: str
    login: Login
    title: str
    folder: ClusterFolder | None = None
    whom: Impersonation = Impersonation()  # noqa: RUF009 - frozen

    @property
    def namespace(self) -> str:
        """The namespace of names without one: the context's."""
        return self.login.namespace or DEFAULT_NAMESPACE

    @property
    def is_embedded(self) -> bool:
        """Return True for a local cluster with the embedded API server, without pods that one could reach."""
        return self.folder is not None and not self.folder.read_spec().kubernetes

    def credentials(self) -> Credentials:
        """Our credentials for its API. Runs credential plug-ins. Raises ``CredentialsError``."""
        login = self.login
        # kubectl sends no credentials without TLS, where anyone on the way could read them.
        if login.server.startswith("http://"):
            login = replace(login, token="", token_path="", basic="", plugin=None)
        return for_person(login, SystemClock(), self.whom)

    def client(self) -> ApiClient:
        """Its API. Raises ``CredentialsError``."""
        return client_of(self.credentials())

    def kubectl(self) -> list[str]:
        """The command line of kubectl for this cluster, with ``kubectl_environment``."""
        flags = [
            *(["--context", self.context] if self.context else []),
            *(["--as", self.whom.user] if self.whom else []),
        ]
        return ["kubectl", *flags, *(f"--as-group={group}" for group in self.whom.groups)]

    @property
    def kubectl_environment(self) -> Mapping[str, str]:
        """The environment of ``kubectl``."""
        # kubectl merges several files itself, but `--kubeconfig` takes one only.
        return {**os.environ, "KUBECONFIG": os.pathsep.join(map(str, self.kubeconfigs))}


def find_cluster(flags: ClusterFlags) -> ReachedCluster:
    """The cluster that is meant. Raises ``CredentialsError`` if there is none, or its kubeconfig cannot be used."""
    # Flags go first, then `$KUBECONFIG`, then the cluster `local`, then kubectl's usual one.
    folder = None if flags.of_kubectl else local_folder(flags)
    paths = flags.kubeconfigs() if folder is None else (folder.kubeconfig,)
    if not paths:
        nowhere = f"no kubeconfig (--kubeconfig FILE, $KUBECONFIG, or {USUAL}), and no local cluster is running"
        raise CredentialsError(f"{nowhere} (autoscale local up)")
    login = login_of(paths, flags.context)
    # A kubeconfig that leads to a running local cluster means that cluster, whatever file it is in.
    if folder is None and (local_cluster := known_folder(paths, login)) is not None and local_cluster.is_running():
        folder = local_cluster
    title = f"cluster of {', '.join(map(str, paths))}"
    if folder is not None:
        title = f"local cluster {folder.name!r}"
    elif flags.context:
        title = f"context {flags.context!r}"
    return ReachedCluster(paths, flags.context, login, title, folder, Impersonation(flags.user, flags.groups))


def context_namespace(flags: ClusterFlags) -> str:
    """The namespace of names without one; the default one if the cluster is gone, and only its history is left."""
    try:
        return find_cluster(flags).namespace
    except CredentialsError:
        return DEFAULT_NAMESPACE


def local_folder(flags: ClusterFlags) -> ClusterFolder | None:
    """The local cluster that is meant, if any. Raises ``CredentialsError`` if the one that is named does not run."""
    try:
        folder = ClusterFolder.of(flags.local_name)
    except FileNotFoundError:  # no home folder, hence no local cluster
        if flags.name:
            raise
        return None
    if flags.name:
        # A named cluster that does not run is an error: no other cluster takes its place.
        if not folder.is_running():
            remedy = f"autoscale local up --name {folder.name}"
            raise CredentialsError(f"local cluster {folder.name!r} is not running; start it: {remedy}")
        return folder
    return folder if folder.is_running() else None


def known_folder(paths: Sequence[Path], login: Login | None) -> ClusterFolder | None:
    """The local cluster of these kubeconfigs: by its own file, which stays while it is down, or by where they lead."""
    return next((folder for folder in _folders() if _is_of(folder, paths, login)), None)


def _folders() -> list[ClusterFolder]:
    try:
        roots = sorted(path for path in clusters_root().iterdir() if (path / "kubeconfig").is_file())
    except OSError:
        return []
    return [ClusterFolder(path.name, path) for path in roots]


def _is_of(folder: ClusterFolder, paths: Sequence[Path], login: Login | None) -> bool:
    # Its own kubeconfig means this cluster even while it is down.
    if [path.resolve() for path in paths] == [folder.kubeconfig.resolve()]:
        return True
    if login is None or not folder.is_running():
        return False
    try:
        there = login_of([folder.kubeconfig])
    except CredentialsError:
        return False
    # A server's address alone is not enough: another cluster may have had the same port.
    return (there.server, there.authority) == (login.server, login.authority)


def usual_kubeconfigs() -> tuple[Path, ...]:
    """kubectl's: the files of ``$KUBECONFIG`` that exist, else the one in the home folder; none if there is none.

    Raises ``CredentialsError`` if the variable is set and none of its files exists.
    """
    if variable := os.environ.get("KUBECONFIG", ""):
        # kubectl skips empty entries and files that do not exist; a dict drops duplicates.
        paths = dict.fromkeys(Path(entry) for entry in variable.split(os.pathsep) if entry)
        existing = tuple(path for path in paths if path.exists())
        # A variable that leads nowhere is an error: kubectl's usual cluster may be another one.
        if not existing:
            raise CredentialsError(f"KUBECONFIG={variable}: no such file; correct the variable, or unset it")
        return existing
    try:
        usual = USUAL.expanduser()
    except RuntimeError:  # neither HOME nor an account with a home folder
        return ()
    return (usual,) if usual.exists() else ()
