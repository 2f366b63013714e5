"""Choice among the offered options: the lowest rank among sound groups, and never none (S2.5, S2.8a)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from typing import Final, NamedTuple

from protocol.units import Instant
from scheduler_plugin.expander.failures import Failures
from scheduler_plugin.expander.scaleup import ScaleUp, ScaleUpOption


class Rank(NamedTuple):
    """An option's rank (lower is better); ``is_estimated`` if there is a price table and it lacks the node."""

    # First, so that a group without a price in the table comes after all those with one, however cheap its parts seem.
    is_estimated: bool
    value: float


LISTED: Final = Rank(False, 0.0)

Judgement = Rank | str
"""An option's rank, or why it has none."""


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
    for options, note in ((sound, ""), (offered, "every group has failed lately, ")):
        # Groups without a rank are left out if any of the others has one.
        ranks = {option.group: rank for option in options if isinstance(rank := judgements[option.group], Rank)}
        if ranks:
            return _lowest(options, ranks, failures, now, note)
        # None of them can be judged, so all are passed on: the autoscaler's next expander picks one.
        if options:
            reasons = "; ".join(f"{option.group}: {judgements[option.group]}" for option in options[:3])
            return list(options), f"{note}none of {len(options)} can be judged ({reasons})"
    return [], "nothing was offered"


def _lowest(
    options: Sequence[ScaleUpOption], ranks: Mapping[str, Rank], failures: Failures, now: Instant, note: str
) -> tuple[list[ScaleUpOption], str]:
    lowest = min(ranks.values())
    tied = [group for group, rank in ranks.items() if _is_equal(rank, lowest)]
    # All tied groups are named, except to find out which of several suspects fails.
    chosen = set(failures.one_of(tied, now))
    why = f"{note}rank {lowest.value:.4g} is the lowest of {len(ranks)}"
    if lowest.is_estimated:
        why += " (from the price of its parts: the price table has no price for any of them)"
    return [option for option in options if option.group in chosen], why


def _is_equal(one: Rank, other: Rank) -> bool:
    # Ranks of equal offers may differ in the last digits of a float.
    return one.is_estimated == other.is_estimated and isclose(one.value, other.value, rel_tol=1e-9)
