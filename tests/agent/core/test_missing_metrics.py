"""Pages without the metrics that decisions need: of another exporter, of a proxy, with collectors switched off."""

from __future__ import annotations

import pytest
from msgspec import structs

from agent.core.events import Scraped
from agent.core.guest import CpuSeconds, GuestSample
from protocol.units import Bytes
from tests.agent.core.story import GIB, Story, cu, sample, settled, vm

CPUS = {"0": CpuSeconds(1.0)}


@pytest.mark.parametrize(
    ("sample", "missing"),
    [
        (GuestSample(), "CPU and memory"),
        (GuestSample(load1=0.5, mem_total=Bytes(2), mem_available=Bytes(1)), "CPU"),
        (GuestSample(cpus=CPUS, mem_total=Bytes(2)), "memory"),
    ],
)
def test_incomplete_metrics_are_a_trouble(sample: GuestSample, missing: str) -> None:
    """The agent of such a VM once looked healthy, although its VM could never shrink."""
    story = Story().sees(vm(cu(4)))
    story.happens(Scraped(sample)).at(1.0).happens(Scraped(sample))
    failure = story.state.guest.failure
    assert failure is not None
    assert (failure.fault, failure.reason, failure.since, failure.count) == (
        "guest",
        f"the metrics say nothing about {missing}, so the size does not shrink",
        0.0,
        2,
    )
    story.at(2.0).happens(Scraped(GuestSample(cpus=CPUS, mem_total=Bytes(2), mem_available=Bytes(1))))
    assert story.state.guest.failure is None


@pytest.mark.parametrize("every", [2, 3])
def test_growth_despite_incomplete_pages(every: int) -> None:
    """Each rate needs two pages in a row, so a VM whose every other page was incomplete never grew."""
    story = settled()
    for second in range(1, 10):
        story.at(float(second))
        if second % every:
            story.happens(Scraped(GuestSample(load1=0.5)))
        else:
            story.looks(cores=0.25, span=every)
    assert story.state.guest.goal.cpu == cu(2).cpu


def test_lasting_incomplete_pages_are_used() -> None:
    story = settled()
    page = GuestSample(mem_total=Bytes(64 * GIB), mem_available=Bytes(61 * GIB))
    needs = []
    for second in (2.0, 3.0, 4.0, 5.0):
        story.at(second).happens(Scraped(page))
        needs.append(story.state.guest.goal.mem)
    assert needs == [Bytes(0), Bytes(0), Bytes(6 * GIB), Bytes(6 * GIB)]


def test_incomplete_page_after_repetitions_is_missed() -> None:
    """Vector samples every 15 s, so its last sample may be old although its last page is not."""
    story = settled()
    first, following = (structs.replace(sample(busy, 0.0, 0.0), stamp=busy * 4) for busy in (1.0, 4.75))
    for second in range(2, 16):
        story.at(float(second)).happens(Scraped(first))
    story.at(16.0).happens(Scraped(GuestSample(load1=0.5)))
    story.at(17.0).happens(Scraped(following))
    assert story.state.guest.goal.cpu == cu(2).cpu
