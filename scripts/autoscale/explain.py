"""``autoscale explain``: why a database has its size, from its agent and the scheduler; or why a group has."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Final, NoReturn

import msgspec
import typer

from protocol.durations import DurationError
from protocol.kubernetes.api import ApiError, ApiRefusedError
from protocol.kubernetes.objects import Json
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import EVENTS, PODS
from protocol.kubernetes.timestamps import timestamp
from protocol.messages import ObjectName
from protocol.names import LABEL_ENABLED
from protocol.pod_database import is_pod_database, pod_of
from scheduler_plugin.dashboard.story import Silence, story, warnings_about
from scheduler_plugin.databases import database_name, database_object, is_pod
from scheduler_plugin.history.core.samples import SECOND, DecisionRecord, MoveRecord
from scheduler_plugin.history.ports import History, Period
from scripts.autoscale.cluster_flags import VmNamespace, database_named, of_a_cluster
from scripts.autoscale.clusters import ClusterFlags, ReachedCluster, context_namespace, find_cluster
from scripts.autoscale.explain_group import find_group, group_name, group_story
from scripts.autoscale.history.finding import a_url, history_path, opened_history, period_since
from scripts.autoscale.site import (
    AGENT,
    GROUPS,
    NAME_LABEL,
    SCHEDULER,
    Site,
    SiteError,
    SitePods,
    agent_says,
    open_site,
)
from scripts.autoscale.terminal.completion import complete_database
from scripts.autoscale.terminal.printing import Output, OutputFormat, show
from scripts.autoscale.terminal.visible import visible_lines

MOST_SHOWN: Final = 10_000
"""Decisions shown at once: about as many as a history keeps of one VM."""


async def told_since(history: History, vm: ObjectName, period: Period) -> tuple[list[str], Json]:
    """The decisions and migrations of a database as lines, and as fields. Raises ``HistoryError``."""
    # One more than is shown, to see whether there are older ones.
    decisions = await history.decisions(vm, period, MOST_SHOWN + 1)
    # The extent goes last: its notes say how the queries before it were answered.
    moves, extent = await history.moves(vm, period, MOST_SHOWN), await history.extent()
    older = (
        [f"There are older decisions than these {MOST_SHOWN}: ask for less time."]
        if len(decisions) > MOST_SHOWN
        else []
    )
    notes = (*older, *extent.notes)
    fields: Json = {
        "vm": str(vm),
        "decisions": msgspec.to_builtins(decisions[:MOST_SHOWN]),
        "migrations": msgspec.to_builtins(moves),
        "notes": list(notes),
    }
    return list(lines_of(vm, decisions[:MOST_SHOWN], moves, notes)), fields


def lines_of(
    vm: ObjectName, decisions: Sequence[DecisionRecord], moves: Sequence[MoveRecord], notes: Sequence[str]
) -> Iterator[str]:
    """The oldest first; texts of other programs are shown as they are (pure)."""
    events = [(record.at, list(_decided(record))) for record in decisions] + [
        (record.since, [_moved(record)]) for record in moves
    ]
    if not events:
        yield f"Nothing is recorded of {vm} in that time."
    for at, (first, *rest) in sorted(events, key=lambda event: event[0]):
        yield f"{timestamp(at / SECOND)} {first}"
        yield from (f"  {sentence}" for sentence in rest)
    yield from notes


def _decided(found: DecisionRecord) -> Iterator[str]:
    headline, *rest = found.sentences or ("",)
    size = "" if found.size is None else f" ({found.size.resources})"
    yield f"{found.by}{size}: {headline}{' Denied in part.' if found.denied else ''}"
    yield from rest


def _moved(found: MoveRecord) -> str:
    took = "" if found.downtime is None else f", {found.downtime} ms stopped"
    why = f": {found.reason}" if found.reason else ""
    way = f"{found.source or '?'} to {found.target or '?'}"
    return f"migration from {way}: {found.phase} after {(found.until - found.since) / SECOND:.0f} s{took}{why}"


_EVERY: Final = 1.0
_NO_ANSWER: Final = (ApiError, SiteError)
_NOT_NOW: Final = "It cannot be asked now"


@of_a_cluster()
async def explain(  # noqa: PLR0913, PLR0917 - each is an option of the command
    what: Annotated[
        str,
        typer.Argument(
            help="A VM as [NAMESPACE/]NAME, a pod as [NAMESPACE/]pod/NAME, or a group as [[NAMESPACE/]KIND/]NAME.",
            autocompletion=complete_database,
        ),
    ],
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second, until Ctrl-C.")] = False,
    since: Annotated[str, typer.Option(help="Show the recorded decisions of this long instead, such as 12h.")] = "",
    prometheus: Annotated[
        str, typer.Option(help="With --since: query this Prometheus instead of a file.", callback=a_url)
    ] = "",
    output: OutputFormat = Output.TEXT,
    namespace: VmNamespace = "",
    *,
    flags: ClusterFlags,
) -> int:
    """Say why a database has its size (metrics, needs, permit, who denied what), or why a group has this many replicas.

    Examples: autoscale explain db --watch · autoscale explain -n shop pod/pg-1 · autoscale explain shop/db --since 12h
    """
    if since and watch:
        raise typer.BadParameter("--watch and --since cannot be combined")
    if prometheus and not since:
        raise typer.BadParameter("needs --since", param_hint="--prometheus")
    # The present needs the cluster; the past only its history, which outlives it.
    if not since:
        return await _explain(what, namespace, find_cluster(flags), output, watch=watch)
    try:
        period = period_since(since)
    except DurationError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from None
    database = database_named(what, namespace or context_namespace(flags))
    async with opened_history(history_path(flags), prometheus) as history:
        show(*await told_since(history, database, period), output)
    return 0


async def _explain(given: str, namespace: str, cluster: ReachedCluster, output: Output, *, watch: bool) -> int:
    async with open_site(cluster) as site:
        ask = partial(_told, site, given, namespace or cluster.namespace)
        # The first answer is outside the screen, so that a wrong name is an error and not a picture.
        lines, fields = await ask()
        # Scripts want a stream of documents; a person wants a screen that is redrawn.
        if watch and sys.stdout.isatty() and not output.is_for_scripts:
            await _watch(given, ask)
            return 0
        show(lines, fields, output)
        if watch:
            await told_again(ask, output, lambda: asyncio.sleep(_EVERY))
    return 0


Told = tuple[list[str], Json | None]
"""An account as lines, and as fields."""


async def told_again(
    ask: Callable[[], Awaitable[Told]], output: Output, pause: Callable[[], Awaitable[None]]
) -> NoReturn:
    """Asks and prints after each ``pause``, until cancelled; an error that stays the same is printed once."""
    trouble = ""
    while True:
        await pause()
        try:
            lines, fields = await ask()
        except _NO_ANSWER as error:
            # The same trouble each second would fill the terminal.
            if str(error) != trouble:
                print(visible_lines(f"{_NOT_NOW}: {error}"), file=sys.stderr)
            trouble = str(error)
            continue
        trouble = ""
        if output is Output.YAML:
            print("---")  # another document
        show(["", *lines], fields, output)


async def _watch(title: str, ask: Callable[[], Awaitable[Told]]) -> None:
    from scripts.autoscale.terminal.text_screen import WatchApp  # noqa: PLC0415 - takes half a second that one answer need not pay

    async def lines() -> list[str]:
        try:
            return (await ask())[0]
        except _NO_ANSWER as error:
            return [f"{_NOT_NOW}: {error}"]

    await WatchApp(title, lines, _EVERY).run_async()


async def _told(site: Site, given: str, namespace: str) -> Told:
    """The account of a database or group as lines, and as fields. Raises ``SiteError`` or ``ApiError``."""
    group = group_name(given, namespace)
    if group is None:
        name = database_named(given, namespace)
        try:
            database = await site.client.get(*database_object(name))
        except ApiRefusedError as error:
            # Only a missing VM may be a group; a refusal of the API is shown as it is.
            may_be_group = error.kind is RefusalKind.NOT_FOUND and pod_of(name) is None
            group = await find_group(site, name) if may_be_group else None
            if group is None:
                raise
        else:
            if is_pod(database) and not is_pod_database(database):
                raise SiteError(
                    f"{name} is not autoscaled: it has no label {LABEL_ENABLED}=true, or is the pod of a VM"
                )
            return await explained(site, database)
    kind, name = group
    account = await site.of_groups(f"/explain/{name.namespace}/{kind.kind}/{name.name}")
    return list(group_story(account, site.silence.get(GROUPS, ""))), account


async def explained(site: Site, vm: Json) -> Told:
    """The account of a database from all that know it; what did not answer is None. Raises as ``ApiClient.list``."""
    name = database_name(vm)
    listed = await site.client.list(PODS, name.namespace)
    # Agents of nodes are in the namespace of the installation, whichever that is.
    agents = await site.client.list(PODS, label_selector=f"{NAME_LABEL}={AGENT}")
    events = (await site.client.list(EVENTS, name.namespace)).objects
    agent = await agent_says(site, vm, SitePods.of((*listed.objects, *agents.objects)))
    scheduler = await site.of_scheduler(f"/explain/{name}")
    # It is read after the questions: `Site` notes why something did not answer as it asks.
    silence = Silence(site.silence.get(AGENT, ""), site.silence.get(SCHEDULER, ""))
    fields: Json = {"vm": vm, "warnings": warnings_about(vm, events), "agent": agent, "scheduler": scheduler}
    return list(story(vm, agent, scheduler, events, silence)), fields
