"""The lowest rank among sound groups is passed on, and something always is."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.ranking.prices import Needs
from protocol.units import ZERO, Instant
from scheduler_plugin.expander.choice import Judgement, Rank, choose
from scheduler_plugin.expander.failures import FailureRules, Failures
from scheduler_plugin.expander.scaleup import PodNeeds, ScaleUp, ScaleUpOption


def offered(*groups: str, pod: str = "p1") -> ScaleUp:
    return ScaleUp(tuple(ScaleUpOption(group, 1, (PodNeeds(pod, Needs(ZERO)),)) for group in groups), {}, {})


def judged(ranks: Mapping[str, float | str]) -> dict[str, Judgement]:
    """Numbers as ranks by a price of the table, texts as they are."""
    return {group: rank if isinstance(rank, str) else Rank(False, rank) for group, rank in ranks.items()}


def chosen(scale_up: ScaleUp, ranks: Mapping[str, float | str], failures: Failures, now: float = 0) -> tuple[str, str]:
    verdict = choose(scale_up, judged(ranks), failures, Instant(now))
    return ",".join(option.group for option in verdict.options), verdict.why


@pytest.mark.parametrize(
    ("judgements", "expected"),
    [
        ({"a": 2.0, "b": 1.5, "c": 9.0}, ("b", "rank 1.5 is the lowest of 3")),
        ({"a": 1.5, "b": 1.5 + 1e-12, "c": 9.0}, ("a,b", "rank 1.5 is the lowest of 3")),
        ({"a": "no price", "b": 3.0, "c": "no node"}, ("b", "rank 3 is the lowest of 1")),
        (
            {"a": "no price", "b": "no node", "c": "no pods"},
            ("a,b,c", "none of 3 groups can be ranked (a: no price; b: no node; c: no pods)"),
        ),
    ],
)
def test_the_lowest_rank_wins_and_ties_are_kept(judgements: dict[str, float | str], expected: tuple[str, str]) -> None:
    assert chosen(offered("a", "b", "c"), judgements, Failures(FailureRules())) == expected


def test_failed_group_ranks_last() -> None:
    failures = Failures(FailureRules())
    cheap: dict[str, float | str] = {"a": 1.0, "b": 2.0, "c": "no price"}
    assert chosen(offered("a", "b", "c"), cheap, failures, 0)[0] == "a"
    assert chosen(offered("a", "b", "c"), cheap, failures, 60)[0] == "b"
    assert chosen(offered("a", "b", "c"), cheap, failures, 120) == (
        "c",
        "none of 1 groups can be ranked (c: no price)",
    )


def test_all_failed_retries_the_best() -> None:
    failures = Failures(FailureRules())
    chosen(offered("a"), {"a": 1.0}, failures, 0)
    verdict = choose(offered("a"), judged({"a": 1.0}), failures, Instant(60))
    assert [option.group for option in verdict.options] == ["a"]
    assert verdict.why == "every group has failed recently, rank 1 is the lowest of 1"
    assert verdict.learnt == ("a got no nodes 1 times in a row; it comes last for 300 s",)
    assert chosen(offered("b"), {"b": "no price"}, failures, 61)[1] == "none of 1 groups can be ranked (b: no price)"


def test_failing_tie_member_is_identified() -> None:
    failures = Failures(FailureRules())
    equal: dict[str, float | str] = {"zone-1": 1.0, "zone-2": 1.0, "big": 5.0}
    groups = ("zone-1", "zone-2", "big")
    answers = [chosen(offered(*groups), equal, failures, now)[0] for now in (0, 60, 120, 180)]
    assert answers == ["zone-1,zone-2", "zone-1", "zone-2", "big"]


def test_nothing_offered_is_nothing_chosen() -> None:
    assert chosen(ScaleUp((), {}, {}), {}, Failures(FailureRules())) == ("", "the call has no options")


groups = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True)
ranks = st.dictionaries(st.sampled_from("abcdef"), st.floats(0.1, 10) | st.just("no price"))


@given(st.lists(st.tuples(groups, ranks, st.floats(0, 900)), max_size=12))
def test_some_option_is_always_passed_on(
    questions: list[tuple[list[str], dict[str, float | str], float]],
) -> None:
    failures, now = Failures(FailureRules()), 0.0
    for names, known, pause in questions:
        now += pause
        judgements = judged({name: known.get(name, "no price") for name in names})
        verdict = choose(offered(*names), judgements, failures, Instant(now))
        assert {option.group for option in verdict.options} <= set(names)
        assert verdict.options


def test_priced_groups_come_before_estimated_ones() -> None:
    """A group that the price table lacks is chosen once all that it has failed; then the best by its parts."""
    failures = Failures(FailureRules())
    ranks: dict[str, Judgement] = {"a": Rank(False, 9.0), "b": Rank(True, 0.1), "c": Rank(True, 0.2)}
    answers = [choose(offered("a", "b", "c"), ranks, failures, Instant(now)) for now in (0, 60)]
    assert [[option.group for option in answer.options] for answer in answers] == [["a"], ["b"]]
    assert answers[0].unlisted == ("b", "c")
    assert [answer.why for answer in answers] == [
        "rank 9 is the lowest of 3",
        "rank 0.1 is the lowest of 2 (estimated from CPU and memory: none of the groups is in the price table)",
    ]


def test_estimated_and_priced_rank_never_tie() -> None:
    ranks: dict[str, Judgement] = {"a": Rank(True, 1.0), "b": Rank(False, 1.0)}
    found = choose(offered("a", "b"), ranks, Failures(FailureRules()), Instant(0))
    assert [option.group for option in found.options] == ["b"]
