"""The store of the cluster is replaced by an older one: versions go back, objects are gone or there again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import pytest

from protocol.units import Resources
from tests.kubernetes.failing.faulty_proxy import Answer
from tests.kubernetes.failing.fleet import over_committed, until
from tests.kubernetes.failing.stage import Stage
from tests.kubernetes.failing.terms import writes_out_of_term

pytestmark = pytest.mark.kubernetes

PLAIN: Final = ()
BUMPED: Final = ("--bump-revision=1000000000", "--mark-compacted")
"""As etcd advises for Kubernetes: revisions jump ahead, and objects keep their old versions."""

BOTH: Final = pytest.mark.parametrize("flags", [PLAIN, BUMPED], ids=["plain", "bumped"])


@BOTH
async def test_ledger_follows_restored_store(stage: Stage, flags: tuple[str, ...]) -> None:
    """After the snapshot VMs have come, gone, shrunk and moved, and a pod was bound; nothing else happens later."""
    fleet, plane = stage.fleet, stage.plane
    here, there = await fleet.node(), await fleet.node()
    shrinks, goes, moves = await fleet.vm(here, 5), await fleet.vm(here, 2), await fleet.vm(there, 2)
    waits = await fleet.unbound_vm()
    uid = (await fleet.pod(waits))["metadata"]["uid"]
    ours = await stage.scheduler(await stage.way())
    snapshot = plane.save()
    await fleet.resize(shrinks, 1, 4)
    await fleet.remove(goes)
    await fleet.vm(here, 2)
    await fleet.move(moves, here)
    assert await ours.bind(waits, uid, there) == ""
    await until(lambda: ours.has_booked(fleet), "the book is as the objects are")

    plane.restore(snapshot, *flags)
    await stage.ready()
    await until(lambda: ours.has_booked(fleet), "the book is what was restored", 60.0)
    assert over_committed(await fleet.claims()) == []
    asker = stage.asker(ours, shrinks)
    assert await asker.ask(Resources.parse("8", "4Gi")) == 200
    assert asker.granted == Resources.parse("6", "4Gi"), "what is back counts"
    assert await ours.bind(waits, uid, there) == ""
    assert (await fleet.pod(waits))["spec"]["nodeName"] == there, "it was really bound again"


@BOTH
async def test_missing_vm_gets_no_permit(stage: Stage, flags: tuple[str, ...]) -> None:
    fleet, plane, way = stage.fleet, stage.plane, await stage.way()
    node = await fleet.node()
    stays, goes = await fleet.vm(node), await fleet.vm(node)
    ours = await stage.scheduler(way)
    agent = stage.asker(ours, stays)
    assert await agent.ask(Resources.parse("2", "8Gi")) == 200
    snapshot = plane.save()
    assert await agent.ask(Resources.parse("3", "8Gi")) == 200
    await fleet.remove(goes)
    came = await fleet.vm(node)
    ghost = stage.asker(ours, came)
    assert await ghost.ask(Resources.parse("2", "4Gi")) == 200

    plane.restore(snapshot, *flags)
    await stage.ready()
    held = {stays.name: agent.granted}
    await until(lambda: ours.has_booked(fleet, held), "the book is what was restored, and what an agent holds", 60.0)
    assert set((await fleet.claims())[node]) == {stays.name, goes.name}
    assert await ghost.ask(Resources.parse("3", "4Gi")) in {401, 404}
    assert await agent.ask(Resources.parse("4", "8Gi")) == 200
    assert (await fleet.permits())[stays.name] == Resources.parse("4", "8Gi")
    again = stage.asker(ours, goes)
    assert await again.ask(Resources.parse("8", "8Gi")) == 200
    assert again.granted == Resources.parse("4", "8Gi"), "what came back counts"
    assert over_committed(await fleet.claims()) == []


@BOTH
async def test_agent_continues_with_restored_vm(stage: Stage, flags: tuple[str, ...]) -> None:
    fleet, plane, way = stage.fleet, stage.plane, await stage.way()
    vm = await fleet.vm(await fleet.node())
    ours = await stage.scheduler(await stage.way())
    guest = await stage.agent(way, ours, vm)
    snapshot = plane.save()
    guest.load(2.0)
    await until(lambda: guest.has(Resources.parse("2", "4Gi")), "the VM grows")
    assert await guest.was_below(Resources.parse("2", "4Gi")), "until it grew"
    # Until the guest has seen the former size: the agent may order the next one before the guest looks. A conflict says
    # that nothing was changed.
    way.judge = lambda asked: Answer(409) if asked.method == "PATCH" else None
    plane.restore(snapshot, *flags)
    await stage.ready()
    await until(lambda: guest.was_below(Resources.parse("2", "4Gi")), "the object orders the former size", 60.0)
    way.judge = lambda _: None
    await until(lambda: guest.has(Resources.parse("2", "4Gi")), "the VM grows again")
    assert guest.beyond == []


@BOTH
async def test_controllers_continue_in_restored_store(stage: Stage, flags: tuple[str, ...]) -> None:
    """A leader that cannot reach the API server for too long exits, as intended, and the other one takes over."""
    fleet, plane = stage.fleet, stage.plane
    first = await stage.neonvm(await stage.way())
    await until(first.leads, "the first leads")
    second = await stage.neonvm(await stage.way())
    await until(second.stands_by, "the second stands by")
    stays = await fleet.bare_vm()
    await until(lambda: fleet.has_pods_of(stays), "the pod of a VM")
    snapshot = plane.save()
    goes = await fleet.bare_vm()
    await until(lambda: fleet.has_pods_of(stays, goes), "the pod of another VM")
    plane.restore(snapshot, *flags)
    await stage.ready()
    back = datetime.now(UTC)
    await until(lambda: fleet.has_pods_of(stays), "what was restored")
    comes = await fleet.bare_vm()
    await until(lambda: fleet.has_pods_of(stays, comes), "the pod of a VM that neither has seen before", 120.0)
    assert writes_out_of_term(plane.written(), "neonvm-controller", back) == []
