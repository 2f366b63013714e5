"""Shell completion: names of VMs, namespaces and nodes of the cluster that the flags so far mean."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated, Final

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]  # documented, and not in __all__

from deploy.kube.client import ApiClient
from protocol.kubernetes.api import ApiError
from protocol.kubernetes.objects import name_of
from protocol.kubernetes.resources import NODES, PODS, VIRTUAL_MACHINES, Resource
from protocol.messages import ObjectName
from protocol.pod_database import PREFIX, database_of
from protocol.runtime.credentials import CredentialsError
from scheduler_plugin.databases import OPTED_IN
from scripts.autoscale.clusters import (
    DEFAULT_NAMESPACE,
    ClusterFlags,
    context_namespace,
    find_cluster,
    flags_of,
)

PATIENCE: Final = 1.5
"""Seconds that a person waits at most after the tab key."""
_SILENT: Final = (ApiError, CredentialsError, TimeoutError, OSError, ValueError)
_SHELLS: Final = ("bash", "zsh", "fish")


def complete_database(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of VMs and of pods that opted in, as ``complete_vm`` has them."""
    flags = flags_of(ctx.params)
    pods = map(database_of, _names_of(flags, PODS, OPTED_IN))
    names = [*_names_of(flags, VIRTUAL_MACHINES), *pods]
    return fitting(names, ctx.params.get("namespace") or _namespace(flags), incomplete)


def complete_vm(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of VMs: plain in the namespace that is meant, as ``NAMESPACE/NAME`` in others."""
    flags = flags_of(ctx.params)
    return fitting(_names_of(flags, VIRTUAL_MACHINES), ctx.params.get("namespace") or _namespace(flags), incomplete)


def complete_namespace(ctx: typer.Context, incomplete: str) -> list[str]:
    """Namespaces that have VMs."""
    namespaces = {vm.namespace for vm in _names_of(flags_of(ctx.params), VIRTUAL_MACHINES)}
    return sorted(namespace for namespace in namespaces if namespace.startswith(incomplete))


def complete_node(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of nodes."""
    nodes = _names_of(flags_of(ctx.params), NODES)
    return sorted(node.name for node in nodes if node.name.startswith(incomplete))


def fitting(names: Iterable[ObjectName], namespace: str, begun: str) -> list[str]:
    """The databases whose names begin with ``begun``, as one may type them (pure)."""
    # A name is plain in the namespace that is meant, unless another namespace is being typed.
    is_plain = "/" not in begun or begun.startswith(PREFIX)
    typed = (vm.name if vm.namespace == namespace and is_plain else str(vm) for vm in names)
    return sorted(candidate for candidate in typed if candidate.startswith(begun))


def _names_of(flags: ClusterFlags, kind: Resource, labels: str = "") -> list[ObjectName]:
    try:
        return asyncio.run(_listed(flags, kind, labels))
    except _SILENT:
        # An error would be printed into the command line, so a cluster that does not answer completes nothing.
        return []


def _namespace(flags: ClusterFlags) -> str:
    try:
        return context_namespace(flags)
    except _SILENT:
        return DEFAULT_NAMESPACE


async def _listed(flags: ClusterFlags, kind: Resource, labels: str) -> list[ObjectName]:
    async with asyncio.timeout(PATIENCE), find_cluster(flags).client() as client:
        return await listed(client, kind, labels)


async def listed(client: ApiClient, kind: Resource, labels: str = "") -> list[ObjectName]:
    """The names of all objects of a kind, or of those that ``labels`` selects. Raises as ``ApiClient.list``."""
    return [name_of(listed_object) for listed_object in (await client.list(kind, label_selector=labels)).objects]


def completion(shell: Annotated[str, typer.Argument(help="bash, zsh or fish", autocompletion=lambda: _SHELLS)]) -> None:
    """Print a script that completes `autoscale` in a shell: eval "$(autoscale completion bash)"."""
    if shell not in _SHELLS:
        raise typer.BadParameter(f"expected one of {', '.join(_SHELLS)}, got {shell!r}")
    # typer's scripts call the program again with this variable set.
    print(get_completion_script(prog_name="autoscale", complete_var="_AUTOSCALE_COMPLETE", shell=shell))
