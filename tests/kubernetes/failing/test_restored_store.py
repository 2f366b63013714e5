"""The store of the cluster is replaced by an older one: resource versions go back, objects are gone or there again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from protocol.units import Resources
from tests.kubernetes.failing.bare_control_plane import BareControlPlane
from tests.kubernetes.failing.faulty_proxy import FaultyProxy
from tests.kubernetes.failing.fleet import Asker, Fleet, over_committed, until
from tests.kubernetes.failing.our_programs import identity, scheduler

pytestmark = pytest.mark.kubernetes


async def test_the_book_follows_a_store_that_was_restored(
    plane: BareControlPlane, proxy: FaultyProxy, fleet: Fleet, tmp_path: Path
) -> None:
    node = await fleet.node()
    stays, goes = await fleet.vm(node), await fleet.vm(node)
    known = await identity(tmp_path, plane, proxy, fleet, "autoscaling-scheduler")
    async with scheduler(known) as ours:
        agent = Asker(stays, ours.agents, ours.http, Resources.parse("1", "4Gi"))
        assert await agent.ask(Resources.parse("2", "8Gi")) == 200
        snapshot = plane.save()
        assert await agent.ask(Resources.parse("4", "8Gi")) == 200
        await fleet.remove(goes)
        came = await fleet.vm(node)
        await until(lambda: same(ours, fleet), "the book has all")
        print(await ours.book())
        plane.restore(snapshot)
        plane.ready()
        began = time.monotonic()
        await until(lambda: same(ours, fleet), "the book has what was restored")
        print("took", time.monotonic() - began)
        print(await ours.book(), await fleet.claims(), agent.granted)
        ghost = Asker(came, ours.agents, ours.http, Resources.parse("1", "4Gi"))
        print(await ghost.ask(Resources.parse("2", "4Gi")))
        print(await agent.ask(Resources.parse("5", "8Gi")), agent.granted)
        print(await ours.book(), await fleet.claims(), agent.granted)
        print([(a.method, a.target, a.status) for a in proxy.since(began)][:60])
        print(ours.log.read_text()[-6000:])


async def same(ours, fleet) -> bool:
    return await ours.book() == await fleet.claims()
