"""``autoscale cost``: cost of databases, savings by scaling, effect of a policy, and nodes that could be emptied."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from deploy.local.cluster.folder import ClusterFolder
from protocol.kubernetes.objects import items, labels_of, name_of, text
from protocol.kubernetes.resources import NODES, PODS
from protocol.kubernetes.timestamps import timestamp
from protocol.messages import ObjectName
from protocol.ranking.config import RankingConfig, RankingConfigError, parse_ranking
from protocol.smoothing.policy import SmoothingPolicyError
from protocol.yaml_text import YamlError, read_yaml
from scheduler_plugin.history.core.decoding import node_price_keys
from scheduler_plugin.history.core.samples import HOUR, MINUTE, SECOND, size_at
from scheduler_plugin.history.costs.bills import LABEL, NONE, Bill, bill, key_of, line_of
from scheduler_plugin.history.costs.consolidation import bound_pods, emptied, read_nodes
from scheduler_plugin.history.costs.prices import Price, PriceList, priced, reference_price
from scheduler_plugin.history.costs.rendering import More
from scheduler_plugin.history.ports import Extent, History, Period, Usage
from scheduler_plugin.history.priced_usage import priced_usage
from scripts.autoscale.cluster_flags import cluster_command
from scripts.autoscale.clusters import ClusterFlags, ReachedCluster, find_cluster
from scripts.autoscale.costs.cost_views import CostOutput, advice, advice_document, show, written
from scripts.autoscale.costs.policy_change import ChosenPolicy, PolicyChange, chosen_policy
from scripts.autoscale.costs.policy_replay import STEP
from scripts.autoscale.history.finding import (
    check_url,
    context_name,
    history_path,
    local_cluster_name,
    opened_history,
    period_since,
)
from scripts.autoscale.site import SCHEDULER, SiteError, open_site
from scripts.autoscale.terminal.printing import print_lines, serialised


def price_table(file: Path | None, cluster: str) -> tuple[RankingConfig, str]:
    """Returns the prices and a description of their source. Raises ``typer.BadParameter``.

    ``file`` contains a section ``ranking``, or a scheduler's settings with one. Without it, the scheduler's settings of
    the local cluster ``cluster`` (empty for any other cluster) apply, if they contain prices.
    """
    if file is not None:
        return _read(file), f"the price table {file}"
    settings = ClusterFolder.of(cluster).scheduler_config if cluster else None
    if settings is not None and settings.is_file() and "ranking" in (_document(settings) or {}):
        return _read(settings), "the scheduler's price table"
    return RankingConfig(), "the published reference prices (to use your own: --prices FILE)"


def _read(path: Path) -> RankingConfig:
    document = _document(path)
    try:
        # A whole settings file, or only its section.
        return parse_ranking(document.get("ranking", document) if isinstance(document, Mapping) else document)
    except RankingConfigError as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="--prices") from None


def _document(path: Path) -> Mapping[str, object] | None:
    try:
        document = read_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--prices") from None
    except (YamlError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="--prices") from None
    return document if isinstance(document, Mapping) or document is None else {"": document}


HIGH: Final = 0.995
"""The share of time that the second fixed size covers."""
MOST_PLAYED: Final = 500
"""Maximum number of VMs on which a policy is replayed, the most expensive ones: a week takes some 15 ms per VM."""
_OF_THE_CONTROL_PLANE: Final = frozenset({"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"})
OF_A_FILE: Final = "Prometheus does not have the labels of VMs; autoscale record --label KEY records them in a file"
NOT_WRITTEN_YET: Final = 5 * MINUTE
"""Milliseconds until the latest samples are in the file."""

BY_VM: Final = "vm"
A_WEEK: Final = "7d"

Since = Annotated[str, typer.Option(help="How far back, such as 6h or 7d.")]


@cluster_command()
async def cost(  # noqa: PLR0913, PLR0917 - each is an option of the command
    since: Since = A_WEEK,
    by: Annotated[
        str, typer.Option(help="vm (each database), namespace, group, node, or label=KEY (a recorded label).")
    ] = BY_VM,
    output: Annotated[CostOutput, typer.Option("--output", "-o", help="Output format.")] = "text",
    policy: Annotated[str, typer.Option(help="Also estimate the cost with this policy (file or name).")] = "",
    consolidate: Annotated[
        bool, typer.Option("--consolidate", help="List the nodes that could be emptied now.")
    ] = False,
    prices: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Price table, in the format of the scheduler's section `ranking`."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Read this history file instead of the cluster's.")
    ] = None,
    prometheus: Annotated[str, typer.Option(help="Query this Prometheus instead of a file.", callback=check_url)] = "",
    *,
    flags: ClusterFlags,
) -> int:
    """Show the cost of databases by their reservations, and what scaling saved.

    Examples: autoscale cost --since 24h --by namespace · autoscale cost -o csv > costs.csv ·
    autoscale cost --policy calm.yaml · autoscale cost --consolidate
    """
    if file is not None and prometheus:
        raise typer.BadParameter("cannot be combined with --file", param_hint="--prometheus")
    if consolidate:
        changed = {"by": by != BY_VM, "since": since != A_WEEK}
        _refuse_history_options(file=file, prometheus=prometheus, policy=policy, **changed)
    path = history_path(flags)
    local = local_cluster_name(path)
    ranking, prices_title = price_table(prices, local)
    try:
        period = period_since(since)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from None
    _check_grouping(by, prometheus)
    if consolidate:
        if output in {"csv", "opencost"}:
            raise typer.BadParameter("--consolidate prints text, wide, json or yaml", param_hint="--output")
        return await _consolidate(ranking, find_cluster(flags), output)
    cluster = local or context_name(flags)
    try:
        played_policy = chosen_policy(policy) if policy else None
    except SmoothingPolicyError as error:
        raise typer.BadParameter(str(error), param_hint="--policy") from None
    async with opened_history(file or path, prometheus) as history:
        total_bill, more, notes = await _billed(history, period, by, ranking, played_policy)
    if output in {"text", "wide"}:
        show(Console(), total_bill, by, prices_title, notes, more=more, is_wide=output == "wide")
    else:
        sys.stdout.write(written(total_bill, by, output, cluster, notes, more))
        # CSV and OpenCost cannot contain notes.
        if output in {"csv", "opencost"}:
            print_lines(Console(stderr=True), notes)
    return 0


def _check_grouping(by: str, prometheus: str) -> None:
    try:
        key_of(by)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--by") from None
    # Prometheus has no series with the labels of VMs.
    if prometheus and by.startswith(LABEL):
        raise typer.BadParameter(OF_A_FILE, param_hint="--by")


def _refuse_history_options(**values: Path | str | bool | None) -> None:
    """Refuses options that do not concern the current nodes, which ``--consolidate`` lists."""
    for option, value in values.items():
        if value:
            raise typer.BadParameter(f"cannot be combined with --{option}", param_hint="--consolidate")


async def _billed(
    history: History, period: Period, by: str, ranking: RankingConfig, policy: ChosenPolicy | None
) -> tuple[Bill, More | None, Sequence[str]]:
    """Returns the bill of the period, how ``policy`` would change it, and notes on both."""
    table, usages = await priced_usage(history, period, ranking)
    total_bill = bill(usages, await history.high_needs(period, HIGH), table, key_of(by), period)
    change, changes = await _changed(history, usages, period, policy, table) if policy else (None, [])
    # Queried last: its notes are about the queries before it.
    extent = await history.extent()
    notes = (*_missing(extent, period), *_unlabelled(total_bill, by), *extent.notes, *changes)
    return total_bill, None if change is None else _figures(change, by), notes


def _missing(extent: Extent, period: Period) -> Iterator[str]:
    if extent.since is None or extent.until is None:
        yield "The history is empty."
        return
    missing_after = (period.until - extent.until) / HOUR
    if extent.since > period.since:
        covered = max(0, period.until - extent.since) / HOUR
        yield f"The history begins at {timestamp(extent.since / SECOND)}: it covers the last {covered:.1f} h only."
    # Samples are buffered for some minutes before they are written.
    if missing_after * HOUR > NOT_WRITTEN_YET:
        yield f"The history ends {missing_after:.1f} h before now: nothing was recorded since then."


def _unlabelled(total_bill: Bill, by: str) -> Iterator[str]:
    if by.startswith(LABEL) and total_bill.lines.keys() == {NONE}:
        label = by.removeprefix(LABEL)
        yield f"No database has a recorded {label}: record it with autoscale record --label {label}."


def _figures(change: PolicyChange, by: str) -> More:
    lines, total = change.lines(key_of(by)), change.total
    return lambda name: change.figures(total if name is None else lines.get(name))


async def _changed(
    history: History, usages: Sequence[Usage], period: Period, policy: ChosenPolicy, prices: PriceList
) -> tuple[PolicyChange, list[str]]:
    """Returns the cost or savings of the policy, and the same in sentences."""
    latest: dict[ObjectName, Usage] = {}
    money: dict[ObjectName, Fraction] = defaultdict(Fraction)
    # In order of time, so that the last record of each VM stays in `latest`.
    for usage in sorted(usages, key=lambda usage: usage.span.until):
        latest[usage.facts.vm] = usage
        money[usage.facts.vm] += line_of(usage, None, prices.on(usage.facts.node, usage.span)).reserved.money
    # The name breaks ties, so that repeated runs replay the same VMs.
    most_expensive = sorted(latest, key=lambda vm: (-money[vm], vm))[:MOST_PLAYED]
    change = PolicyChange(policy)
    for vm in most_expensive:
        spans = await history.vm_series(vm, period, STEP)
        # The VM may have moved; the price is its last node's.
        change.add(latest[vm].facts, spans, prices.on(latest[vm].facts.node, latest[vm].span))
    shares = sum(money[vm] for vm in most_expensive), sum(money.values())
    return change, [*change.sentences(), *_replay_coverage(len(most_expensive), len(latest), shares)]


def _replay_coverage(played: int, vms: int, shares: tuple[Fraction | int, Fraction | int]) -> Iterator[str]:
    if played < vms:
        # Prices may all be zero.
        share = float(shares[0] / shares[1]) if shares[1] else 1.0
        yield f"Replayed on the {played} most expensive of {vms} databases ({share:.0%} of the reserved cost)."


async def _consolidate(ranking: RankingConfig, cluster: ReachedCluster, output: CostOutput) -> int:
    async with open_site(cluster) as site:
        answer = await site.of_scheduler("/nodes")
        if answer is None:
            raise SiteError(f"the scheduler does not respond ({site.request_errors[SCHEDULER]}); run autoscale check")
        listed = (await site.client.list(NODES)).objects
        bound = bound_pods((await site.client.list(PODS)).objects)
    keys = node_price_keys(listed)
    # Nodes of the control plane stay.
    staying = {name_of(node).name for node in listed if labels_of(node).keys() & _OF_THE_CONTROL_PLANE}
    prices: dict[str, Price] = {}
    for node in items(answer, "nodes"):
        size, label = size_at(node, "total"), text(node, "name")
        price = None if size is None else priced(size, (label, *keys.get(label, ())), ranking)
        if price is not None:
            prices[label] = price
    candidates = emptied(read_nodes(answer, prices, reference_price(ranking), staying, bound))
    if output in {"text", "wide"}:
        print_lines(Console(), advice(candidates))
    else:
        print(serialised(advice_document(candidates), output))
    return 0
