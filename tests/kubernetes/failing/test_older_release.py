"""A build of an earlier release next to this one, as during an upgrade or rollback (docs/upgrades.md)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest

from protocol.units import Resources
from tests.deploy.manifests import ROOT
from tests.kubernetes.failing.fleet import until
from tests.kubernetes.failing.obedient_guest import Guest
from tests.kubernetes.failing.our_programs import NodeAgent
from tests.kubernetes.failing.released_build import unpack_newest_release
from tests.kubernetes.failing.stage import Stage

pytestmark = pytest.mark.kubernetes
TOGETHER = 'autoscale_agent_scheduler_messages_total{form="together"}'
SMALL, LARGE = Resources.parse("1", "4Gi"), Resources.parse("2", "4Gi")


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of the newest release."""
    folder = tmp_path_factory.mktemp("older")
    unpack_newest_release(ROOT, folder)
    return folder


@contextmanager
def build_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use the code in ``folder`` for programs that are started within the block."""
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        patch.setenv("PYTHONSAFEPATH", "1")  # or the folder in which the tests run would go before it
        where = "import agent, scheduler_plugin; print(agent.__file__, scheduler_plugin.__file__)"
        found = subprocess.run([sys.executable, "-c", where], capture_output=True, text=True, check=True).stdout.split()
        assert [Path(each).is_relative_to(folder) for each in found] == [True, True], found
        yield


async def test_older_agent_scales_with_this_scheduler(
    stage: Stage, older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vm, way = await stage.fleet.vm(await stage.fleet.node()), await stage.way()
    ours = await stage.scheduler(way)
    with build_of(older, monkeypatch):
        guest = await stage.agent(way, ours, vm)
    guest.load(2.0)
    await until(lambda: guest.has(LARGE), "the VM grows", 20.0)
    assert (guest.beyond, LARGE.within((await stage.fleet.permits())[vm.name])) == ([], True)


async def test_agent_grows_with_rolled_back_scheduler(
    stage: Stage, older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vm, way = await stage.fleet.vm(await stage.fleet.node()), await stage.way()
    with build_of(older, monkeypatch):
        theirs = await stage.scheduler(way)
    guest = await stage.agent(way, theirs, vm)
    guest.load(2.0)
    await until(lambda: guest.has(LARGE), "the VM grows", 20.0)
    assert guest.beyond == []


@pytest.mark.parametrize("older_side", ["none", "agent", "scheduler"])
async def test_node_agent_batches_across_releases(
    stage: Stage, older: Path, monkeypatch: pytest.MonkeyPatch, older_side: str
) -> None:
    node, way = await stage.fleet.node(), await stage.way()
    vms = [await stage.fleet.vm(node) for _ in range(3)]
    with build_of(older, monkeypatch) if older_side == "scheduler" else nullcontext():
        scheduler = await stage.scheduler(way)
    with build_of(older, monkeypatch) if older_side == "agent" else nullcontext():
        agent, guests = await stage.node_agent(way, scheduler, vms)
    await all_grow(guests)
    await until(lambda: _more(agent, TOGETHER, 2), "they ask together", 60.0)

    async def are_answered() -> bool:
        return await scheduler.metric("autoscale_scheduler_batch_requests_sum") >= len(vms)

    await until(are_answered, "each has been asked for in a message with others", 60.0)
    permits = await stage.fleet.permits()
    assert [LARGE.within(permits[vm.name]) for vm in vms] == [True] * 3


async def all_grow(guests: Sequence[Guest]) -> None:
    """All of them get what the load on the first one needs, and none of them more than it was permitted."""
    guests[0].load(2.0)
    for each in guests:
        await until(partial(each.has, LARGE), "each VM grows", 30.0)
    assert [each.beyond for each in guests] == [[]] * len(guests)


async def _more(agent: NodeAgent, metric: str, count: float) -> bool:
    return await agent.metric(metric) >= count


async def test_each_scheduler_reserves_what_the_other_build_granted(
    stage: Stage, older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vm, way = await stage.fleet.vm(await stage.fleet.node()), await stage.way()
    with build_of(older, monkeypatch):
        theirs = await stage.scheduler(way)
    agent = stage.asker(theirs, vm)
    assert await agent.gets(LARGE)
    ours = await stage.scheduler(way)
    await until(lambda: ours.has_booked(stage.fleet), "this one reserves what the older one granted", 20.0)
    agent.scheduler = ours.agents
    assert await agent.gets(Resources.parse("3", "8Gi"))
    with build_of(older, monkeypatch):
        back = await stage.scheduler(way)
    await until(lambda: back.has_booked(stage.fleet), "the older one reserves what this one granted", 20.0)
    assert Resources.parse("3", "8Gi").within((await stage.fleet.permits())[vm.name])
