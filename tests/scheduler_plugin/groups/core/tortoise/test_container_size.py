"""The size of a container: the first rule that applies, within the bounds."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_plugin.groups.core.tortoise.autoscaler import Scaling
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.core.tortoise.vertical import ReplicaCounts, SizeFacts, container_size
from tests.examples import examples

FACTS = SizeFacts(request=1000, recommended=600, minimum=100, maximum=5000, target=80)
SOME = ReplicaCounts(replicas=6, hpa_min=4, minimum_min=3, preferred_max=30)
USUAL = Configuration()
FREE = Configuration(buffer_ratio_on_vertical_resource=Fraction(0), max_allowed_scaling_down_ratio=Fraction(0))


@pytest.mark.parametrize(
    ("policy", "facts", "numbers", "size", "because"),
    [
        (Scaling.OFF, FACTS, SOME, 1000, "its policy is Off"),
        (Scaling.HORIZONTAL, FACTS, SOME, 1000, "the number of replicas follows the need"),
        (
            Scaling.HORIZONTAL,
            FACTS,
            replace(SOME, replicas=30, grows=True),
            1300,
            "there are as many replicas as preferred, so containers grow instead",
        ),
        (
            Scaling.HORIZONTAL,
            FACTS,
            replace(SOME, replicas=25),
            1000,
            "smaller containers might need more replicas than preferred",
        ),
        (
            Scaling.HORIZONTAL,
            FACTS,
            replace(SOME, replicas=3),
            600,
            "the replicas are at their minimum, so containers shrink instead",
        ),
        (
            Scaling.HORIZONTAL,
            replace(FACTS, recommended=1200),
            replace(SOME, replicas=3),
            1000,
            "the replicas are at their minimum, and they use what they request",
        ),
        (
            Scaling.HORIZONTAL,
            replace(FACTS, several=True),
            SOME,
            750,
            "other containers drive the number of replicas, and this one uses little",
        ),
        (
            Scaling.HORIZONTAL,
            replace(FACTS, several=True, target=None),
            SOME,
            1000,
            "the number of replicas follows the need",
        ),
        (
            Scaling.HORIZONTAL,
            replace(FACTS, several=True),
            replace(SOME, replicas=4),
            1000,
            "the number of replicas follows the need",
        ),
        (
            Scaling.HORIZONTAL,
            replace(FACTS, several=True),
            replace(SOME, replicas=5, hpa_min=6),  # its minimum was just raised
            1000,
            "the number of replicas follows the need",
        ),
        (Scaling.VERTICAL, FACTS, SOME, 600, "the recommendation is far below the request"),
        (Scaling.VERTICAL, replace(FACTS, recommended=1100), SOME, 1100, "the recommendation is above the request"),
        (Scaling.VERTICAL, replace(FACTS, recommended=1000), SOME, 1000, "the recommendation is close to the request"),
    ],
)
def test_the_first_rule_decides(
    policy: Scaling, facts: SizeFacts, numbers: ReplicaCounts, size: int, because: str
) -> None:
    found = container_size(policy, facts, numbers, FREE)
    assert (found.size, found.desired, found.reason) == (size, size, because)


def test_clipped_wish_is_reported() -> None:
    found = container_size(Scaling.HORIZONTAL, replace(FACTS, recommended=50), replace(SOME, replicas=3), USUAL)
    assert (found.size, found.desired) == (800, 50)  # one step down keeps four fifths


FACTS_OF_ANY_KIND = st.builds(
    SizeFacts,
    request=st.integers(1, 20_000),
    recommended=st.integers(1, 20_000),
    minimum=st.integers(0, 3000),
    maximum=st.integers(3000, 10_000),
    target=st.one_of(st.none(), st.integers(1, 100)),
    several=st.booleans(),
)
NUMBERS_OF_ANY_KIND = st.builds(
    ReplicaCounts,
    replicas=st.integers(0, 60),
    hpa_min=st.one_of(st.none(), st.integers(1, 20)),
    minimum_min=st.integers(1, 10),
    preferred_max=st.integers(10, 40),
    grows=st.booleans(),
)


@settings(max_examples=examples(20, 150))
@given(FACTS_OF_ANY_KIND, NUMBERS_OF_ANY_KIND, st.sampled_from([Scaling.HORIZONTAL, Scaling.VERTICAL]))
def test_a_size_is_never_outside_the_bounds(facts: SizeFacts, numbers: ReplicaCounts, policy: Scaling) -> None:
    assert facts.minimum <= container_size(policy, facts, numbers, USUAL).size <= facts.maximum


@settings(max_examples=examples(15, 100))
@given(FACTS_OF_ANY_KIND)
def test_constant_need_size_is_monotone(facts: SizeFacts) -> None:
    sizes = [facts.request]
    for _ in range(40):
        found = container_size(Scaling.VERTICAL, replace(facts, request=max(1, sizes[-1])), SOME, USUAL)
        sizes.append(found.size)
    inside = [size for size in sizes if facts.minimum <= size <= facts.maximum]
    assert inside in (sorted(inside), sorted(inside, reverse=True))
    assert sizes[-1] == sizes[-2]
