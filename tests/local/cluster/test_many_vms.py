"""Settings of a local cluster with many simulated VMs, so that one machine can run it."""

from __future__ import annotations

import pytest

from agent.config import read_policy
from agent.core.policy import Policy
from deploy.local.cluster import content
from deploy.local.cluster.settings import agents_policy
from protocol.kubernetes.api import ApiUnknownError
from protocol.kubernetes.objects import Json, name_of
from protocol.units import Seconds
from tests.fake_clock import SleepingClock


@pytest.mark.parametrize(("vms", "scrape", "stale"), [(201, 1.005, 5.0), (2000, 10.0, 30.0), (5000, 25.0, 75.0)])
def test_agents_of_many_vms_look_less_often(vms: int, scrape: float, stale: float) -> None:
    timing = read_policy(agents_policy(vms), Policy()).timing
    assert (timing.scrape, timing.stale) == (scrape, stale)


def test_agents_of_few_vms_have_their_own_policy() -> None:
    assert agents_policy(200) == ""


class _Server:
    """An API server that does not answer at first."""

    def __init__(self, silent: int) -> None:
        self.silent, self.made = silent, list[str]()

    async def ensure(self, kind: object, namespace: str, body: Json) -> None:
        if self.silent:
            self.silent -= 1
            raise ApiUnknownError("busy")
        self.made.append(name_of(body).name)


async def test_vms_are_created_despite_busy_server() -> None:
    server, told = _Server(silent=3), list[str]()
    clock = SleepingClock()
    await content.create_vms(server, 500, clock, told.append)  # type: ignore[arg-type]  # the one call that is made
    assert (len(server.made), server.made[-1], told) == (500, "vm-500", ["250 of 500", "500 of 500"])
    assert clock.now() >= SleepingClock().now() + Seconds(3.0)
