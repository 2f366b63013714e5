"""Guest use <= permit <= reservation <= node, through thousands of random steps of the real core and the real ledger.

``AUTOSCALE_SCENARIO_STEPS`` sets how many steps each story has, ``AUTOSCALE_SCENARIO_SEED`` plays one story again.
"""

from __future__ import annotations

import os

import pytest

from scheduler_plugin.ledger.accounts.claims import ClaimState
from scheduler_plugin.ledger.events import Listed
from scheduler_plugin.ledger.invariants import violations
from scheduler_plugin.ledger.ledger import Ledger
from tests.examples import examples
from tests.scenarios.world import World

STEPS = int(os.environ.get("AUTOSCALE_SCENARIO_STEPS", examples(1500, 3000)))
SEEDS = [int(seed) for seed in os.environ.get("AUTOSCALE_SCENARIO_SEED", "2,5,9,18").split(",")]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
def test_guests_never_exceed_their_reservation(seed: int, is_open: bool) -> None:
    world = World(seed, is_open=is_open)
    denied = 0
    for _ in range(STEPS):
        world.step()
        denied += world.unmet
    assert world.agents.answers > STEPS / 100, "the story was too quiet to prove anything"
    assert world.planned, "the planner had nothing to do"
    assert world.moved, "no VM has moved"
    assert world.sleepers.woken, "no VM has slept and woken"
    assert denied, "no VM was ever denied anything: the story was too easy"
    assert_nothing_has_leaked(world)


@pytest.mark.parametrize("seed", range(100, 100 + examples(2, 40)))
@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
def test_random_runs_keep_the_invariant(seed: int, is_open: bool) -> None:
    world = World(seed, is_open=is_open)
    for _ in range(STEPS):
        world.step()
    assert_nothing_has_leaked(world)


def placed(ledger: Ledger) -> dict[str, str]:
    """The node of every pod; other bookings depend on the order of events."""
    return {uid: claim.node for uid, claim in ledger.claims.items() if claim.state is not ClaimState.INCOMING}


def assert_nothing_has_leaked(world: World) -> None:
    """Once every event has arrived, the books hold exactly the pods that are there, and at least what a rebuild has.

    Except for pods that their VMs have left: what those had only the books know, and a rebuild takes what may fit. And
    except for VMs that are waking: a rebuild keeps what its predecessor may have begun to write for them.
    """
    if world.scheduler.ledger is None:
        world.scheduler.start(world.now)
    ledger = world.scheduler.ledger
    assert ledger is not None
    while world.scheduler.binds:
        world.scheduler.bind(world.scheduler.binds[0], "lost", world.now)
    while world.scheduler.creations:
        world.scheduler.create("lost", world.now)
    world.scheduler.late_binds.clear()
    world.scheduler.late_creations.clear()
    for kind, stream in world.cluster.streams.items():
        while stream:
            world.scheduler.hear(kind, world.now)
    while world.scheduler.reads:
        world.scheduler.read(world.now)
    while world.scheduler.doubts:
        world.scheduler.settle(world.now)
    world.scheduler.relist(world.now)
    fresh = Ledger()
    vms = [vm.facts() for vm in world.cluster.vms.values()]
    moving = [each.facts for each in world.cluster.migrations.values()]
    fresh.apply(Listed(world.cluster.nodes.values(), world.cluster.pods.values(), vms, moving), world.now)
    assert violations(fresh) == []
    assert placed(ledger) == placed(fresh)
    assert {name: each.phase for name, each in ledger.migrations.items()} == {
        name: each.facts.phase for name, each in world.cluster.migrations.items()
    }
    for uid, claim in fresh.claims.items():
        if (
            uid not in placed(fresh)
            or ledger.claims[uid].left_with is not None
            or (claim.vm and claim.vm.uncertain_wake.any)
        ):
            continue
        assert claim.reserved.within(ledger.claims[uid].reserved)
    assert set(ledger.rooms) == set(fresh.rooms)
