"""The scenario of a group ends within its limits, and reports what did not happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from protocol.units import Seconds
from scripts.autoscale.demonstration.group_scenario import FIRST, GroupScenario
from scripts.autoscale.demonstration.loads import ReplicaLoad
from scripts.autoscale.demonstration.pgbench import Outcome
from scripts.autoscale.demonstration.report import group_report
from scripts.autoscale.site import Site, SiteError
from tests.fake_clock import SleepingClock


class Reads:
    """A read load that one replica can answer, for as long as the test wants."""

    def __init__(self, clock: SleepingClock) -> None:
        self._clock = clock

    async def press(self, goes_on: Callable[[], bool], on_tps: Callable[[float], None]) -> Outcome:
        while goes_on():
            on_tps(100.0)
            await self._clock.sleep(Seconds(5.0))
        return Outcome(900, 0, "")


class NoSite:
    """A cluster in which nothing ever changes."""

    client = None


def group_scenario(clock: SleepingClock) -> GroupScenario:
    async def reads() -> ReplicaLoad:
        return Reads(clock).press

    site = cast("Site", NoSite())
    return GroupScenario(site, clock, lambda _: None, lambda: Seconds(float(clock.now())), reads, "{}")


async def test_group_that_ignores_load_times_out() -> None:
    clock = SleepingClock()
    scenario = group_scenario(clock)
    scenario.observed.record(Seconds(0.0), 2, {"shop-primary": 1.0, FIRST.name: 1.0})
    began = clock.now()
    await scenario.play()
    assert clock.now() - began < 700
    assert group_report(scenario.observed).problems == [
        "the replica did not grow beyond the 1 vCPU that it had before the load",
        "no replica was added under load within 300 s: the group gives no reason",
        "2 replicas serve instead of one within 300 s: the group gives no reason",
    ]


async def test_replica_that_stays_large_gets_no_load() -> None:
    clock = SleepingClock()
    scenario = group_scenario(clock)
    with pytest.raises(SiteError, match=r"the replica stays large without load, .* within 240 s"):
        await scenario.play()
    assert group_report(scenario.observed).problems == ["the group's load did not run"]
