"""Ranks of the offered options by the shared ranking library (S2.1-S2.7), and the choice among them."""

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
    """An option's rank (lower is better); ``is_estimated`` if there is a price table and it lacks the node."""

    # First, so that a group without a price in the table comes after all those with one, however cheap its parts seem.
    is_estimated: bool
    value: float


LISTED: Final = Rank(False, 0.0)

Judgement = Rank | str
"""An option's rank, or why it has none."""


def judge(config: RankingConfig, cluster_nodes: Callable[[], int | None], scale_up: ScaleUp) -> Mapping[str, Judgement]:
    """The rank of each option's group, or why it has none.

    A node costs what the table says of its group, its pool or its machine type. If the table has none of these, the
    price of its parts only ranks it among others that the table lacks.
    """
    options: list[Option] = []
    estimates: set[str] = set()
    judged: dict[str, Judgement] = {}
    for offered in scale_up.options:
        shape = scale_up.shapes.get(offered.group)
        why_not = scale_up.problems.get(offered.group) or _flaw(offered, shape)
        if why_not or shape is None:
            judged[offered.group] = why_not
            continue
        # Stands unless a rank replaces it below: the ranking leaves out ranks that are not finite.
        judged[offered.group] = texts.NOT_A_NUMBER
        # The most specific first: the table may name the group, its pool or its machine type.
        names = (offered.group, *shape.price_keys)
        if is_estimated(names, config):
            estimates.add(offered.group)
        pods = tuple([pod.needs for pod in offered.pods])
        price = node_price(names, shape.offers, config)
        options.append(Option(offered.group, offered.nodes, shape.offers, price, pods))
    for ranked in rank_options(options, cluster_nodes(), config):
        group = ranked.option.group
        judged[group] = Rank(group in estimates, ranked.rank)
    return judged


def _flaw(offered: ScaleUpOption, shape: NodeShape | None) -> str:
    if shape is None:
        return texts.NO_NODE_SENT
    if not shape.offers.resources.cpu:
        return texts.NO_CPU
    return "" if offered.nodes else texts.NO_NODES


@dataclass(frozen=True, slots=True)
class Verdict:
    """The options that are passed on, and why in one line.

    ``learnt`` is what the question revealed about earlier answers; ``unlisted`` are the groups that the price table
    lacks.
    """

    options: tuple[ScaleUpOption, ...]
    why: str
    learnt: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()


def choose(scale_up: ScaleUp, judgements: Mapping[str, Judgement], failures: Failures, now: Instant) -> Verdict:
    """Answers one question and remembers the answer. ``judgements`` has an entry for each option's group."""
    requested_pods = {pod.key for option in scale_up.options for pod in option.pods}
    # First: what this question reveals about earlier answers already counts for this choice.
    learnt = failures.asked(requested_pods, now)
    options, why = _best(scale_up.options, judgements, failures, now)
    pods = {pod.key for option in options for pod in option.pods}
    # Only the pods of the chosen options can expect nodes.
    failures.answered([option.group for option in options], pods, now)
    ranks = {group: rank for group, rank in judgements.items() if isinstance(rank, Rank)}
    unlisted = tuple(option.group for option in scale_up.options if ranks.get(option.group, LISTED).is_estimated)
    return Verdict(tuple(options), why, tuple(learnt), unlisted)


def _best(
    offered: Sequence[ScaleUpOption], judgements: Mapping[str, Judgement], failures: Failures, now: Instant
) -> tuple[list[ScaleUpOption], str]:
    sound = [option for option in offered if not failures.demoted(option.group, now)]
    # Groups that failed come after every group that did not, whatever the ranks.
    for options, note in ((sound, ""), (offered, texts.ALL_FAILED)):
        # Groups without a rank are left out if any of the others has one.
        ranks = {option.group: rank for option in options if isinstance(rank := judgements[option.group], Rank)}
        if ranks:
            return _lowest(options, ranks, failures, now, note)
        # None of them can be judged, so all are passed on: the autoscaler's next expander picks one.
        if options:
            reasons = "; ".join(f"{option.group}: {judgements[option.group]}" for option in options[:3])
            return list(options), texts.NONE_JUDGED.format(note=note, options=len(options), reasons=reasons)
    return [], texts.NOTHING_OFFERED


def _lowest(
    options: Sequence[ScaleUpOption], ranks: Mapping[str, Rank], failures: Failures, now: Instant, note: str
) -> tuple[list[ScaleUpOption], str]:
    lowest = min(ranks.values())
    tied = [group for group, rank in ranks.items() if _is_equal(rank, lowest)]
    # All tied groups are named, except to find out which of several suspects fails.
    chosen = set(failures.one_of(tied, now))
    estimated = texts.ESTIMATED if lowest.is_estimated else ""
    why = texts.LOWEST.format(note=note, rank=lowest, ranks=len(ranks), estimated=estimated)
    return [option for option in options if option.group in chosen], why


def _is_equal(one: Rank, other: Rank) -> bool:
    # Ranks of equal offers may differ in the last digits of a float.
    return one.is_estimated == other.is_estimated and isclose(one.value, other.value, rel_tol=1e-9)
