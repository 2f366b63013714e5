"""What a shell completes: names of VMs, namespaces and nodes of the cluster that the flags so far mean.

A cluster that is away, slow or forbidden completes nothing, and says nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]  # documented, and not in __all__

from deploy.kube.client import ApiClient, ApiError, ApiUnavailableError, client_from_kubeconfig
from deploy.local.cluster.folder import ClusterFolder
from protocol.kubernetes.objects import Json, name_of
from protocol.kubernetes.resources import NODES, VIRTUAL_MACHINES, Resource
from protocol.messages import ObjectName
from protocol.runtime.credentials import CredentialsError
from scripts.autoscale.clusters import usual_kubeconfig

PATIENCE: Final = 1.5
"""Seconds that a person waits at most after the tabulator key."""
_DEFAULT: Final = "default"
_SILENT: Final = (ApiError, ApiUnavailableError, CredentialsError, TimeoutError, OSError, ValueError)
_SHELLS: Final = ("bash", "zsh", "fish")


def complete_vm(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of VMs: plain in the namespace that is meant, as ``NAMESPACE/NAME`` in others."""
    return fitting(_names(ctx, VIRTUAL_MACHINES), ctx.params.get("namespace") or _DEFAULT, incomplete)


def complete_namespace(ctx: typer.Context, incomplete: str) -> list[str]:
    """Namespaces that have VMs."""
    found = {each.namespace for each in _names(ctx, VIRTUAL_MACHINES)}
    return sorted(each for each in found if each.startswith(incomplete))


def complete_node(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of nodes."""
    return sorted(each.name for each in _names(ctx, NODES) if each.name.startswith(incomplete))


def fitting(names: Iterable[ObjectName], namespace: str, begun: str) -> list[str]:
    """The VMs whose names begin so, as one may type them (pure)."""
    typed = (each.name if each.namespace == namespace and "/" not in begun else str(each) for each in names)
    return sorted(each for each in typed if each.startswith(begun))


def vms_of_kubectl(incomplete: str) -> list[str]:
    """Names of VMs for kubectl's plugin: of the cluster that kubectl means."""
    return fitting(_names_at(usual_kubeconfig(), "", VIRTUAL_MACHINES), _DEFAULT, incomplete)


def _names(ctx: typer.Context, kind: Resource) -> list[ObjectName]:
    try:
        path = _kubeconfig(ctx.params.get("name") or "local", ctx.params)
    except _SILENT:
        return []
    return _names_at(path, ctx.params.get("context") or "", kind)


def _names_at(path: Path | None, context: str, kind: Resource) -> list[ObjectName]:
    try:
        return [] if path is None else asyncio.run(_listed(path, context, kind))
    except _SILENT:
        return []


def _kubeconfig(name: str, given: dict[str, object]) -> Path | None:
    chosen, folder = str(given.get("kubeconfig") or ""), ClusterFolder.of(name)
    if not chosen and not given.get("context") and folder.runs():
        return folder.kubeconfig
    return Path(chosen) if chosen else usual_kubeconfig()


async def _listed(path: Path, context: str, kind: Resource) -> list[ObjectName]:
    async with asyncio.timeout(PATIENCE), client_from_kubeconfig(path, context) as client:
        return await listed(client, kind)


async def listed(client: ApiClient, kind: Resource) -> list[ObjectName]:
    """The names of all objects of a kind. Raises as ``ApiClient.list``."""
    found: list[Json] = (await client.list(kind)).objects
    return [name_of(each) for each in found]


def completion(shell: Annotated[str, typer.Argument(help="bash, zsh or fish", autocompletion=lambda: _SHELLS)]) -> None:
    """Print a script that completes `autoscale` in a shell: eval "$(autoscale completion bash)"."""
    if shell not in _SHELLS:
        raise typer.BadParameter(f"expected one of {', '.join(_SHELLS)}, got {shell!r}")
    print(get_completion_script(prog_name="autoscale", complete_var="_AUTOSCALE_COMPLETE", shell=shell))
