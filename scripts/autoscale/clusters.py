"""Which cluster a command means: by the flags that kubectl has too, or a local one that runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from deploy.kube.client import ApiClient, client_from_kubeconfig
from deploy.local.cluster.folder import ClusterFolder
from protocol.kubernetes.objects import items, text
from protocol.yaml_text import YamlError, read_yaml

Kubeconfig = Annotated[str, typer.Option("--kubeconfig", help="Another cluster than the local one.")]
USUAL: Final = Path("~/.kube/config")


def complete_context(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of contexts: of the kubeconfig that was typed, else of kubectl's."""
    given = str(ctx.params.get("kubeconfig") or "")
    path = Path(given) if given else usual_kubeconfig()
    try:
        found = read_yaml(path.read_text()) if path is not None else None
    except (OSError, UnicodeDecodeError, YamlError):
        return []
    contexts = items(found, "contexts") if isinstance(found, dict) else []
    return sorted(name for each in contexts if (name := text(each, "name")).startswith(incomplete) and name)


Context = Annotated[
    str,
    typer.Option(
        "--context",
        help="The kubeconfig's context; the current one unless given.",
        autocompletion=complete_context,
    ),
]


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster. ``title`` is what it is called in output."""

    kubeconfig: Path
    context: str
    title: str


def find_cluster(name: str, kubeconfig: str, context: str) -> Cluster:
    """The cluster of ``kubeconfig`` where given; else the local one of that name where it runs and no context is given;
    else that of kubectl. Raises ``typer.BadParameter`` where there is none.
    """
    folder = ClusterFolder.of(name)
    if not kubeconfig and not context and folder.runs():
        if not folder.read_spec().kubernetes:
            raise typer.BadParameter(f"the local cluster {name!r} is no Kubernetes with an installation: autoscale top")
        return Cluster(folder.kubeconfig, "", f"local cluster {name!r}")
    path = Path(kubeconfig) if kubeconfig else usual_kubeconfig()
    if path is None:
        raise typer.BadParameter("there is no kubeconfig: --kubeconfig FILE, or $KUBECONFIG")
    return Cluster(path, context, f"context {context!r}" if context else f"cluster of {path}")


def usual_kubeconfig() -> Path | None:
    """kubectl's: the first file of ``$KUBECONFIG`` that is there, else the one in the home folder."""
    return next((path for path in _usual() if path.is_file()), None)


def _usual() -> Iterator[Path]:
    yield from (Path(each) for each in os.environ.get("KUBECONFIG", "").split(os.pathsep) if each)
    yield USUAL.expanduser()


def cluster_client(cluster: Cluster) -> ApiClient:
    """The API of the cluster. Raises ``CredentialsError``."""
    return client_from_kubeconfig(cluster.kubeconfig, cluster.context)
