"""The API server takes seconds for each answer, has too much to do, or fails."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import pytest

from tests.kubernetes.failing.commitment import never_over_committed, settled
from tests.kubernetes.failing.faulty_proxy import Answer, Asked, FaultyProxy
from tests.kubernetes.failing.fleet import until
from tests.kubernetes.failing.permit_asker import SIZES, Asker, all_granted, any_refused, asking
from tests.kubernetes.failing.stage import Stage

pytestmark = pytest.mark.kubernetes

KINDS = 7
"""What the scheduler watches."""


async def test_slow_api_delays_permits_but_ends_no_watch(stage: Stage) -> None:
    fleet, way = stage.fleet, await stage.way()
    vm = await fleet.vm(await fleet.node())
    ours = await stage.scheduler(way)
    agent = stage.asker(ours, vm)
    way.delay = 2.0
    began = time.monotonic()
    for size in (SIZES[3], SIZES[-1]):
        assert await agent.ask(size) == 200
        assert agent.granted == size == (await fleet.permits())[vm.name]
    assert [each for each in way.since(began) if each.is_list] == []


async def test_overloaded_api_server_is_not_stormed(stage: Stage) -> None:
    fleet, way = stage.fleet, await stage.way()
    node = await fleet.node()
    vms = [await fleet.vm(node) for _ in range(4)]
    ours = await stage.scheduler(way)
    askers = [stage.asker(ours, each) for each in vms]
    async with never_over_committed(fleet), asking(askers):
        for answer in (Answer(429, "Retry-After: 1\r\n"), Answer(503, "Retry-After: 1\r\n"), Answer(500)):
            await until(all_granted(askers), "agents are permitted something", 15.0)
            await fails_for_a_while(way, answer, askers)
    await settled(ours, fleet, askers)


async def fails_for_a_while(way: FaultyProxy, answer: Answer, askers: Sequence[Asker]) -> None:
    """Every request is answered with ``answer`` until agents and all watches have met it."""
    refused, began = any_refused(askers), time.monotonic()
    way.judge = partial(always, answer)
    way.cut()
    await until(refused, "agents are told to come again")
    await until(lambda: way.has_refused("GET", KINDS, began), "all watches are refused")
    if answer.headers:
        reads = [each for each in way.since(began) if each.method == "GET"]
        assert len(reads) <= KINDS * (2 + time.monotonic() - began)
    way.judge = partial(always, None)


def always(answer: Answer | None, _: Asked) -> Answer | None:
    return answer
