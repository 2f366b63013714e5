"""Pages without the metrics that decisions need: of another exporter, of a proxy, with collectors switched off."""

from __future__ import annotations

import pytest

from agent.core.events import Scraped
from agent.core.guest import CpuSeconds, GuestSample
from protocol.units import Bytes
from tests.agent.core.story import Story, cu, vm

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
