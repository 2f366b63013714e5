"""The API server is away for a minute, for one program refused and for another silent."""

from __future__ import annotations

import time

import pytest

from protocol.units import Resources
from scheduler_plugin.auth.authenticator import ACCEPTED_FOR
from tests.kubernetes.failing.commitment import never_over_committed, settled
from tests.kubernetes.failing.fleet import until
from tests.kubernetes.failing.permit_asker import SMALL, asking
from tests.kubernetes.failing.stage import Stage

pytestmark = pytest.mark.kubernetes

KINDS = 7
"""What the scheduler watches."""


async def test_api_outage_only_delays_growth(stage: Stage) -> None:
    fleet, way, silent, of_groups = stage.fleet, await stage.way(), await stage.way(), await stage.way()
    node = await fleet.node()
    first, second, goes = [await fleet.vm(node) for _ in range(3)]
    content = await fleet.vm(await fleet.node())
    ours, observer, groups = await stage.scheduler(way), await stage.scheduler(silent), await stage.groups(of_groups)
    await until(groups.leads, "the groups' program leads")
    askers = [stage.asker(ours, each) for each in (first, second)]
    agent, held, quiet = askers[0], Resources.parse("2", "8Gi"), stage.asker(ours, content)
    assert await agent.ask(held) == 200
    known = time.monotonic()
    assert await quiet.ask(SMALL) == 200

    silent.silence()
    await way.close()
    await of_groups.close()
    assert await agent.ask(held) == 200, "what needs no writing is permitted"
    assert await agent.ask(Resources.parse("3", "8Gi")) == 503, "what cannot be kept is not permitted"
    await fleet.remove(goes)
    await fleet.vm(node, slots=2)
    async with never_over_committed(fleet), asking(askers):
        await until(lambda: observer.has_booked(fleet), "who hears nothing looks again", 60.0)
        await until(lambda: quiet.is_refused(SMALL), "a token is asked about anew, for what needs no writing", 75.0)
        began = time.monotonic()
        assert began - known >= ACCEPTED_FOR, "until then the answer is known"
        await way.open()
        await of_groups.open()
        await until(lambda: agent.gets(Resources.parse("1", "4Gi")), "permits again", 10.0)
        await until(lambda: quiet.gets(SMALL), "permits again for what needs no writing", 10.0)
    await settled(ours, fleet, askers)
    await until(groups.leads, "the groups' program leads again", 15.0)
    assert len([each for each in way.since(began) if each.is_list]) <= KINDS, "no storm: each kind once"
    reviews = [each for each in way.since(began) if each.target.endswith("/tokenreviews")]
    assert 1 <= len(reviews) <= len((first, second, content)), "each token is asked about once at most"
