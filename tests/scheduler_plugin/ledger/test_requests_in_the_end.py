"""After refusals, losses and changes, everything that fits is eventually granted, and excess requests are lowered."""

from __future__ import annotations

import pytest

from protocol.units import Resources
from tests.examples import THOROUGH
from tests.scheduler_plugin.ledger.refusing import FIRST, Refusing, Rules

SEEDS = range(60 if THOROUGH else 8)
LONG = 400
"""Seconds in which the longest pause has passed several times."""


def stormy(seed: int) -> Refusing:
    world = Refusing(seed)
    for _ in range(world.chance.randint(1, 25)):
        world.change()
        for _ in range(world.chance.randint(1, 40)):
            world.second()
    world.wish = world.some()
    return world


def ends(world: Refusing, rules: Rules) -> tuple[Resources, Resources, Resources | None]:
    """Final permits, requests and allocations after ``rules`` have applied for long, with few writes."""
    world.rules = rules
    for _ in range(LONG):
        world.second()
    assert sum(at > world.seconds - LONG / 2 for at in world.writes) <= LONG / 8
    return world.held, world.at.asked, world.at.allocated


@pytest.mark.parametrize("seed", SEEDS)
def test_requests_recover_after_refusals(seed: int) -> None:
    world = stormy(seed)
    assert ends(world, Rules()) == (world.wish,) * 3
    assert world.at.ledger.explain("uid-a", world.at.now).requests_problem == ""


@pytest.mark.parametrize("seed", SEEDS)
def test_unresizable_memory_does_not_hold_cpu(seed: int) -> None:
    world = stormy(seed)
    held, asked, allocated = ends(world, Rules(swap=True))
    assert allocated is not None
    assert {held.cpu, asked.cpu, allocated.cpu} == {world.wish.cpu}


@pytest.mark.parametrize("seed", SEEDS)
def test_requests_fall_to_allowed_minimum(seed: int) -> None:
    world = stormy(seed)
    world.wish = world.wish.at_least(world.at.asked.at_most(FIRST))
    held, asked, allocated = ends(world, Rules(minimum=FIRST.at_most(world.at.asked)))
    assert (held, asked) == (world.wish, allocated)
    assert asked.within(world.wish.at_least(FIRST))


@pytest.mark.parametrize("seed", SEEDS)
def test_vm_gets_available_part_per_resource(seed: int) -> None:
    world = stormy(seed)
    ends(world, Rules())
    maximum, world.wish = world.some(minimum=4).at_least(world.wish), world.some()
    held, asked, allocated = ends(world, Rules(maximum=maximum))
    assert held == asked == allocated == world.wish.at_most(maximum)
