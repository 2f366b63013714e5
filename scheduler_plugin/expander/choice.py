"""Ranks options with the shared ranking library (S2.1-S2.7), and chooses among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from typing import Final, NamedTuple

from protocol.ranking.config import RankingConfig
from protocol.ranking.prices import is_estimated, node_price
from protocol.ranking.rank import Option, rank_options
from protocol.units import Instant
from scheduler_plugin.expander import texts
from scheduler_plugin.expander.failures import Failures
from scheduler_plugin.expander.scaleup import NodeShape, ScaleUp, ScaleUpOption


class Rank(NamedTuple):
    """An option's rank; lower is better. ``is_estimated`` is True if the node is not in the price table."""

    # First, so that groups without a price come after all with a price.
    is_estimated: bool
    value: float


LISTED: Final = Rank(False, 0.0)

Judgement = Rank | str
"""An option's rank, or the reason why it has none."""


def judge(config: RankingConfig, cluster_nodes: Callable[[], int | None], scale_up: ScaleUp) -> Mapping[str, Judgement]:
    """The rank of each option's group, or the reason why it has none.

    The price of a node is the price of its group, pool or machine type in the price table. Nodes that are not in it are
    ranked among each other by the price of their CPU and memory.
    """
    options: list[Option] = []
    estimates: set[str] = set()
    judgements: dict[str, Judgement] = {}
    for offered in scale_up.options:
        shape = scale_up.shapes.get(offered.group)
        why_not = scale_up.problems.get(offered.group) or _flaw(offered, shape)
        if why_not or shape is None:
            judgements[offered.group] = why_not
            continue
        # The default, because the ranking leaves out ranks that are not finite.
        judgements[offered.group] = texts.NOT_A_NUMBER
        # Most specific first.
        names = (offered.group, *shape.price_keys)
        if is_estimated(names, config):
            estimates.add(offered.group)
        pods = tuple([pod.needs for pod in offered.pods])
        price = node_price(names, shape.offers, config)
        options.append(Option(offered.group, offered.nodes, shape.offers, price, pods))
    for ranked in rank_options(options, cluster_nodes(), config):
        group = ranked.option.group
        judgements[group] = Rank(group in estimates, ranked.rank)
    return judgements


def _flaw(offered: ScaleUpOption, shape: NodeShape | None) -> str:
    if shape is None:
        return texts.NO_NODE_SENT
    if not shape.offers.resources.cpu:
        return texts.NO_CPU
    return "" if offered.nodes else texts.NO_NODES


@dataclass(frozen=True, slots=True)
class Verdict:
    """The options to return, and the reason in one line.

    ``learnt`` are outcomes of earlier choices that this call has revealed. ``unlisted`` are groups that are not in the
    price table.
    """

    options: tuple[ScaleUpOption, ...]
    why: str
    learnt: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()


def choose(scale_up: ScaleUp, judgements: Mapping[str, Judgement], failures: Failures, now: Instant) -> Verdict:
    """Choose among the options, and record the choice. ``judgements`` has an entry for each option's group."""
    requested_pods = {pod.key for option in scale_up.options for pod in option.pods}
    # Before the choice, because outcomes of earlier choices affect it.
    learnt = failures.learn_outcomes(requested_pods, now)
    options, why = _best(scale_up.options, judgements, failures, now)
    pods = {pod.key for option in options for pod in option.pods}
    # Only pods of the chosen options can get nodes.
    failures.record_choice([option.group for option in options], pods, now)
    ranks = {group: rank for group, rank in judgements.items() if isinstance(rank, Rank)}
    unlisted = tuple(option.group for option in scale_up.options if ranks.get(option.group, LISTED).is_estimated)
    return Verdict(tuple(options), why, tuple(learnt), unlisted)


def _best(
    offered: Sequence[ScaleUpOption], judgements: Mapping[str, Judgement], failures: Failures, now: Instant
) -> tuple[list[ScaleUpOption], str]:
    not_demoted = [option for option in offered if not failures.is_demoted(option.group, now)]
    # Groups that have failed come last, regardless of rank.
    for options, note in ((not_demoted, ""), (offered, texts.ALL_FAILED)):
        # Groups without a rank are used only if no group has one.
        ranks = {option.group: rank for option in options if isinstance(rank := judgements[option.group], Rank)}
        if ranks:
            return _lowest(options, ranks, failures, now, note)
        # Without ranks return all options, so that the autoscaler's next expander chooses.
        if options:
            reasons = "; ".join(f"{option.group}: {judgements[option.group]}" for option in options[:3])
            return list(options), texts.NONE_RANKED.format(note=note, options=len(options), reasons=reasons)
    return [], texts.NOTHING_OFFERED


def _lowest(
    options: Sequence[ScaleUpOption], ranks: Mapping[str, Rank], failures: Failures, now: Instant, note: str
) -> tuple[list[ScaleUpOption], str]:
    lowest = min(ranks.values())
    tied = [group for group, rank in ranks.items() if _is_equal(rank, lowest)]
    # Return all tied groups, unless it must be found out which of them fails.
    chosen = set(failures.one_of(tied, now))
    estimated = texts.ESTIMATED if lowest.is_estimated else ""
    why = texts.LOWEST.format(note=note, rank=lowest, ranks=len(ranks), estimated=estimated)
    return [option for option in options if option.group in chosen], why


def _is_equal(one: Rank, other: Rank) -> bool:
    # Tolerate float rounding.
    return one.is_estimated == other.is_estimated and isclose(one.value, other.value, rel_tol=1e-9)
