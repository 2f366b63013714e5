"""``autoscale explain``: why a VM has its size, in sentences, from its agent and the scheduler; or why a group has."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from deploy.kube.client import ApiError
from protocol.kubernetes.objects import Json, name_of, text
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import EVENTS, PODS, VIRTUAL_MACHINES
from scheduler_plugin.dashboard.story import story, warnings_about
from scripts.autoscale.clusters import Context, Kubeconfig
from scripts.autoscale.explain_group import find_group, group_account, group_name, group_story
from scripts.autoscale.local import AsJson, Name
from scripts.autoscale.running import run
from scripts.autoscale.site import NAME_LABEL, SiteError, explanation, open_site
from scripts.autoscale.vms import DEFAULT, VmNamespace, vm_name


def explain(  # noqa: PLR0913, PLR0917 - each is an option of the command
    what: Annotated[str, typer.Argument(help="A VM as [NAMESPACE/]NAME, or a group as [[NAMESPACE/]KIND/]NAME.")],
    as_json: AsJson = False,
    name: Name = "local",
    kubeconfig: Kubeconfig = "",
    context: Context = "",
    namespace: VmNamespace = DEFAULT,
) -> None:
    """Say why a VM has its size (metrics, needs, permit, who denied what), or why a group has so many replicas."""
    run(_explain(what, namespace, (name, kubeconfig, context), as_json=as_json))


async def _explain(given: str, namespace: str, where: tuple[str, str, str], *, as_json: bool) -> int:
    async with open_site(*where) as site:
        if (group := group_name(given, namespace)) is not None:
            return _show_group(await group_account(site, *group), as_json=as_json)
        try:
            vm = await site.client.get(VIRTUAL_MACHINES, vm_name(given, namespace))
        except ApiError as error:
            group = await find_group(site, vm_name(given, namespace)) if error.kind is RefusalKind.NOT_FOUND else None
            if group is None:
                raise SiteError(str(error)) from error
            return _show_group(await group_account(site, *group), as_json=as_json)
        listed = await site.client.list(PODS, name_of(vm).namespace)
        agents = await site.client.list(PODS, label_selector=f"{NAME_LABEL}=autoscaling-agent")
        events = await site.client.list(EVENTS, name_of(vm).namespace)
        pods = {text(each, "metadata", "name"): each for each in (*listed.objects, *agents.objects)}
        agent = await explanation(site, vm, pods)
        scheduler = await site.of_scheduler(f"/explain/{name_of(vm)}")
    if as_json:
        warnings = warnings_about(vm, events.objects)
        print(json.dumps({"vm": vm, "warnings": warnings, "agent": agent, "scheduler": scheduler}, indent=2))
        return 0
    console = Console()
    for line in story(vm, agent, scheduler, events.objects):
        console.print(escape(line), soft_wrap=True, highlight=False)
    return 0


def _show_group(found: Json | None, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(found, indent=2))
        return 0
    console = Console()
    for line in group_story(found):
        console.print(escape(line), soft_wrap=True, highlight=False)
    return 0
