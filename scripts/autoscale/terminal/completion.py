"""Shell completion: names of databases, namespaces and nodes of the cluster that the typed flags select."""

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

TIMEOUT: Final = 1.5
"""Maximum seconds that the user waits after pressing tab."""
_NO_COMPLETION: Final = (ApiError, CredentialsError, TimeoutError, OSError, ValueError)
_SHELLS: Final = ("bash", "zsh", "fish")


def complete_database(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes names of VMs and of pods that opted in, in the form of ``complete_vm``."""
    flags = flags_of(ctx.params)
    pods = map(database_of, _names_of(flags, PODS, OPTED_IN))
    names = [*_names_of(flags, VIRTUAL_MACHINES), *pods]
    return fitting(names, ctx.params.get("namespace") or _namespace(flags), incomplete)


def complete_vm(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes names of VMs: ``NAME`` in the selected namespace, ``NAMESPACE/NAME`` in others."""
    flags = flags_of(ctx.params)
    return fitting(_names_of(flags, VIRTUAL_MACHINES), ctx.params.get("namespace") or _namespace(flags), incomplete)


def complete_namespace(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes namespaces that contain VMs."""
    namespaces = {vm.namespace for vm in _names_of(flags_of(ctx.params), VIRTUAL_MACHINES)}
    return sorted(namespace for namespace in namespaces if namespace.startswith(incomplete))


def complete_node(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completes names of nodes."""
    nodes = _names_of(flags_of(ctx.params), NODES)
    return sorted(node.name for node in nodes if node.name.startswith(incomplete))


def fitting(names: Iterable[ObjectName], namespace: str, incomplete: str) -> list[str]:
    """The databases whose names start with ``incomplete``, as one may type them (pure)."""
    # Without the namespace if it is the selected one, unless a namespace is being typed.
    is_plain = "/" not in incomplete or incomplete.startswith(PREFIX)
    typed = (vm.name if vm.namespace == namespace and is_plain else str(vm) for vm in names)
    return sorted(candidate for candidate in typed if candidate.startswith(incomplete))


def _names_of(flags: ClusterFlags, kind: Resource, labels: str = "") -> list[ObjectName]:
    try:
        return asyncio.run(_listed(flags, kind, labels))
    except _NO_COMPLETION:
        # An error would be printed into the command line.
        return []


def _namespace(flags: ClusterFlags) -> str:
    try:
        return context_namespace(flags)
    except _NO_COMPLETION:
        return DEFAULT_NAMESPACE


async def _listed(flags: ClusterFlags, kind: Resource, labels: str) -> list[ObjectName]:
    async with asyncio.timeout(TIMEOUT), find_cluster(flags).client() as client:
        return await listed(client, kind, labels)


async def listed(client: ApiClient, kind: Resource, labels: str = "") -> list[ObjectName]:
    """Names of all objects of a kind, or of those that ``labels`` selects. Raises like ``ApiClient.list``."""
    return [name_of(listed_object) for listed_object in (await client.list(kind, label_selector=labels)).objects]


def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish", autocompletion=lambda: _SHELLS)],
) -> None:
    """Print a script that completes `autoscale` in a shell: eval "$(autoscale completion bash)"."""
    if shell not in _SHELLS:
        raise typer.BadParameter(f"expected one of {', '.join(_SHELLS)}, got {shell!r}")
    # typer's scripts call the program with this variable set.
    print(get_completion_script(prog_name="autoscale", complete_var="_AUTOSCALE_COMPLETE", shell=shell))
