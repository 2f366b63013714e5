"""A guest whose exporter counts by its own clock repeats a sample in several scrapes: it counts once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from agent.core.events import Scraped
from agent.core.guest import LONGEST, GuestSample
from tests.agent.core.story import Story, sample, settled

STAMPED = structs.replace(sample(1.0, 0.0, 0.0), stamp=500.0)
COUNTED = structs.replace(sample(1.0, 0.0, 0.0), counted=500.0)


def looked_once(first: GuestSample) -> Story:
    """An agent that has seen ``first`` at two seconds, with what its guest did until then."""
    return settled().at(2.0).happens(Scraped(first))


@pytest.mark.parametrize(
    "again",
    [STAMPED, structs.replace(STAMPED, cpus=sample(9.0, 0.0, 0.0).cpus), COUNTED],
    ids=["the same page", "a page with other counters under one stamp", "a page without stamps"],
)
def test_repeated_sample_only_refreshes_its_time(again: GuestSample) -> None:
    story = looked_once(COUNTED if again is COUNTED else STAMPED)
    guest = story.state.guest
    before = guest.observed, guest.rates, guest.goal, guest.counted
    story.at(3.0).happens(Scraped(again))
    assert guest.observed is not None
    assert (guest.observed.at, guest.observed.last) == (2.0, 3.0)
    assert (replace(guest.observed, again=before[0].again), guest.rates, guest.goal, guest.counted) == before  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (STAMPED, structs.replace(STAMPED, stamp=501.0)),
        (COUNTED, structs.replace(COUNTED, counted=501.0)),
        (structs.replace(COUNTED, counted=None), structs.replace(COUNTED, counted=None)),
    ],
    ids=["another stamp", "other counters", "neither is known"],
)
def test_sample_without_stamp_is_new(first: GuestSample, second: GuestSample) -> None:
    story = looked_once(first).at(3.0).happens(Scraped(second))
    assert story.state.guest.observed is not None
    assert story.state.guest.observed.at == 3.0


def test_old_repeated_sample_expires() -> None:
    story = looked_once(STAMPED).at(2.0 + LONGEST + 1.0).happens(Scraped(STAMPED))
    assert story.state.guest.observed is not None
    assert story.state.guest.observed.last == 2.0
