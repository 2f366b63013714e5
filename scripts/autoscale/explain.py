"""``autoscale explain``: explains a database's size, from its agent and the scheduler, or a group's replica count."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Final, NoReturn

import msgspec
import typer

from protocol.durations import DurationError
from protocol.kubernetes.api import ApiError
from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import EVENTS, PODS
from protocol.kubernetes.timestamps import timestamp
from protocol.messages import ObjectName
from protocol.names import LABEL_ENABLED
from protocol.pod_database import is_pod_database, pod_of
from scheduler_plugin.dashboard.explanation import RequestErrors, database_explanation, warnings_about
from scheduler_plugin.databases import database_name, is_pod
from scheduler_plugin.history.core.samples import SECOND, DecisionRecord, MoveRecord
from scheduler_plugin.history.ports import History, Period
from scripts.autoscale.cluster_flags import (
    MissingDatabaseError,
    VmNamespace,
    cluster_command,
    parse_database,
    read_database,
)
from scripts.autoscale.clusters import ClusterFlags, ReachedCluster, context_namespace, find_cluster
from scripts.autoscale.explain_group import find_group, group_explanation, group_name, no_response
from scripts.autoscale.history.finding import check_url, history_path, opened_history, period_since
from scripts.autoscale.site import (
    AGENT,
    GROUPS,
    NAME_LABEL,
    SCHEDULER,
    Site,
    SiteError,
    SitePods,
    agent_response,
    open_site,
)
from scripts.autoscale.terminal.completion import complete_database
from scripts.autoscale.terminal.printing import Output, OutputFormat, show
from scripts.autoscale.terminal.visible import visible_lines

MOST_SHOWN: Final = 10_000
"""Maximum number of decisions shown: about as many as a history keeps per VM."""


async def recorded_explanation(history: History, vm: ObjectName, period: Period) -> tuple[list[str], Json]:
    """Returns the recorded decisions and migrations of a database, as lines and as fields. Raises ``HistoryError``."""
    # One more than is shown, to learn whether there are older ones.
    decisions = await history.decisions(vm, period, MOST_SHOWN + 1)
    # The extent is queried last: its notes are about the queries before it.
    moves, extent = await history.moves(vm, period, MOST_SHOWN), await history.extent()
    older = (
        [f"Only the last {MOST_SHOWN} decisions are shown; use a shorter --since to see all of them."]
        if len(decisions) > MOST_SHOWN
        else []
    )
    notes = (*older, *extent.notes)
    fields: Json = {
        "vm": str(vm),
        # The history answers the newest first.
        "decisions": msgspec.to_builtins(sorted(decisions[:MOST_SHOWN], key=lambda record: record.at)),
        "migrations": msgspec.to_builtins(sorted(moves, key=lambda record: record.since)),
        "notes": list(notes),
    }
    return list(lines_of(vm, decisions[:MOST_SHOWN], moves, notes)), fields


def lines_of(
    vm: ObjectName, decisions: Sequence[DecisionRecord], moves: Sequence[MoveRecord], notes: Sequence[str]
) -> Iterator[str]:
    """Yields decisions and migrations in the order of time, then the notes (pure)."""
    events = [(record.at, list(_decided(record))) for record in decisions] + [
        (record.since, [_moved(record)]) for record in moves
    ]
    if not events:
        yield f"Nothing was recorded for {vm} in this period."
    for at, (first, *rest) in sorted(events, key=lambda event: event[0]):
        yield f"{timestamp(at / SECOND)} {first}"
        yield from (f"  {sentence}" for sentence in rest)
    yield from notes


def _decided(decision: DecisionRecord) -> Iterator[str]:
    headline, *rest = decision.sentences or ("",)
    size = "" if decision.size is None else f" ({decision.size.resources})"
    yield f"{decision.by}{size}: {headline}{' Partly denied.' if decision.denied else ''}"
    yield from rest


def _moved(move: MoveRecord) -> str:
    downtime = "" if move.downtime is None else f", {move.downtime} ms downtime"
    why = f": {move.reason}" if move.reason else ""
    nodes = f"{move.source or '?'} to {move.target or '?'}"
    return f"migration from {nodes}: {move.phase} after {(move.until - move.since) / SECOND:.0f} s{downtime}{why}"


_EVERY: Final = 1.0
_NO_ANSWER: Final = (ApiError, SiteError)
_UNAVAILABLE: Final = "No explanation available"


@cluster_command()
async def explain(  # noqa: PLR0913, PLR0917 - each is an option of the command
    what: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A VM as [NAMESPACE/]NAME, a pod as [NAMESPACE/]pod/NAME, or a group as [[NAMESPACE/]KIND/]NAME.",
            autocompletion=complete_database,
        ),
    ],
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second, until Ctrl-C.")] = False,
    since: Annotated[str, typer.Option(help="Show the decisions recorded in this time instead, such as 12h.")] = "",
    prometheus: Annotated[
        str, typer.Option(help="With --since: query this Prometheus instead of a file.", callback=check_url)
    ] = "",
    output: OutputFormat = Output.TEXT,
    namespace: VmNamespace = "",
    *,
    flags: ClusterFlags,
) -> int:
    """Explain a database's size (metrics, needs, permit, who denied what), or a group's number of replicas.

    Examples: autoscale explain db --watch · autoscale explain -n shop pod/pg-1 · autoscale explain shop/db --since 12h
    """
    if since and watch:
        raise typer.BadParameter("cannot be combined with --since", param_hint="--watch")
    if prometheus and not since:
        raise typer.BadParameter("needs --since", param_hint="--prometheus")
    # The past needs only the history, which outlives the cluster.
    if not since:
        return await _explain(what, namespace, find_cluster(flags), output, watch=watch)
    try:
        period = period_since(since)
    except DurationError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from None
    database = parse_database(what, namespace or context_namespace(flags))
    async with opened_history(history_path(flags), prometheus) as history:
        show(*await recorded_explanation(history, database, period), output)
    return 0


async def _explain(name: str, namespace: str, cluster: ReachedCluster, output: Output, *, watch: bool) -> int:
    async with open_site(cluster) as site:
        ask = partial(_explanation, site, name, namespace or cluster.namespace)
        # Ask once before opening the screen, so that a wrong name is an ordinary error.
        lines, fields = await ask()
        # Scripts want a stream of documents; a person wants a screen that is redrawn.
        if watch and sys.stdout.isatty() and not output.is_for_scripts:
            await _watch(name, ask)
            return 0
        show(lines, fields, output)
        if watch:
            await print_repeatedly(ask, output, lambda: asyncio.sleep(_EVERY))
    return 0


Explanation = tuple[list[str], Json | None]
"""An explanation as lines, and as fields."""


async def print_repeatedly(
    ask: Callable[[], Awaitable[Explanation]], output: Output, pause: Callable[[], Awaitable[None]]
) -> NoReturn:
    """Asks and prints after each ``pause``, until cancelled; a repeated error is printed once."""
    last_error = ""
    while True:
        await pause()
        try:
            lines, fields = await ask()
        except _NO_ANSWER as error:
            # The same error each second would fill the terminal.
            if str(error) != last_error:
                print(visible_lines(f"{_UNAVAILABLE}: {error}"), file=sys.stderr)
            last_error = str(error)
            continue
        last_error = ""
        if output is Output.YAML:
            print("---")  # another document
        show(["", *lines], fields, output)


async def _watch(title: str, ask: Callable[[], Awaitable[Explanation]]) -> None:
    from scripts.autoscale.terminal.text_screen import WatchApp  # noqa: PLC0415 - takes half a second to import

    async def lines() -> list[str]:
        try:
            return (await ask())[0]
        except _NO_ANSWER as error:
            return [f"{_UNAVAILABLE}: {error}"]

    await WatchApp(title, lines, _EVERY).run_async()


async def _explanation(site: Site, argument: str, namespace: str) -> Explanation:
    """Explains a database or a group. Raises ``SiteError`` or ``ApiError``."""
    group = group_name(argument, namespace)
    if group is None:
        name = parse_database(argument, namespace)
        try:
            database = await read_database(site.client, name)
        except MissingDatabaseError:
            group = await find_group(site, name) if pod_of(name) is None else None
            if group is None:
                raise
        else:
            if is_pod(database) and not is_pod_database(database):
                raise SiteError(
                    f"{name} is not autoscaled: it has no label {LABEL_ENABLED}=true, or is the pod of a VM"
                )
            return await explain_database(site, database)
    kind, name = group
    explanation = await site.of_groups(f"/explain/{name.namespace}/{kind.kind}/{name.name}")
    if explanation is None:
        raise SiteError(no_response(site.request_errors.get(GROUPS, "")))
    return list(group_explanation(explanation)), explanation


async def explain_database(site: Site, vm: Json) -> Explanation:
    """Explains a database; fields of programs that did not respond are None. Raises like ``ApiClient.list``."""
    name = database_name(vm)
    listed = await site.client.list(PODS, name.namespace)
    # Agents of nodes are in the namespace of the installation, whichever that is.
    agents = await site.client.list(PODS, label_selector=f"{NAME_LABEL}={AGENT}")
    events = (await site.client.list(EVENTS, name.namespace)).objects
    agent = await agent_response(site, vm, SitePods.of((*listed.objects, *agents.objects)))
    scheduler = await site.of_scheduler(f"/explain/{name}")
    # Read after the requests, which set it.
    errors = RequestErrors(site.request_errors.get(AGENT, ""), site.request_errors.get(SCHEDULER, ""))
    fields: Json = {"vm": vm, "warnings": warnings_about(vm, events), "agent": agent, "scheduler": scheduler}
    return list(database_explanation(vm, agent, scheduler, events, errors)), fields
