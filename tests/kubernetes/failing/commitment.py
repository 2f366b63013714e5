"""Invariants of every moment of a test, checked with objects and with responses to agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import httpx2 as httpx

from protocol.units import Resources
from tests.kubernetes.failing.fleet import ZERO, Fleet, UnansweredError, over_committed, until
from tests.kubernetes.failing.our_programs import Scheduler
from tests.kubernetes.failing.permit_asker import Asker
from tests.kubernetes.scheduling.books import requests_of


@asynccontextmanager
async def never_over_committed(fleet: Fleet) -> AsyncIterator[None]:
    """At every sample, no node has promised its VMs more than it has."""
    found: list[str] = []
    looking = asyncio.create_task(_look(fleet, found))
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
    assert found == []


async def _look(fleet: Fleet, found: list[str]) -> None:
    while True:
        with suppress(httpx.TransportError, UnansweredError):
            found += over_committed(await fleet.claims())
        await asyncio.sleep(0.1)


@asynccontextmanager
async def always_requested(fleet: Fleet, askers: Sequence[Asker]) -> AsyncIterator[None]:
    """At every sample, each VM's pod requests all that its agent was granted; requests rose and fell."""
    short: list[str] = []
    sizes: set[Resources] = set()
    looking = asyncio.create_task(_look_at_requests(fleet, askers, short, sizes))
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
    assert short == []
    assert len(sizes) > 2, sizes


async def _look_at_requests(fleet: Fleet, askers: Sequence[Asker], short: list[str], sizes: set[Resources]) -> None:
    while True:
        for each in askers:
            before = each.granted, each.sequence
            with suppress(httpx.TransportError, UnansweredError):
                asked = requests_of(await fleet.pod(each.vm))
                sizes.add(asked)
                if (each.granted, each.sequence) == before and not each.granted.within(asked):
                    short.append(f"{each.vm.name}: granted {each.granted}, requested {asked}")
        await asyncio.sleep(0.05)


async def settled(ours: Scheduler, fleet: Fleet, askers: Sequence[Asker], seconds: float = 10.0) -> None:
    """Returns once the book is what the objects say, and every agent has at most what its object permits.

    For half a minute the book may have more for an agent: what it was granted before, or asked for without success.
    """
    most = {each.vm.name: each.most for each in askers}

    async def agrees() -> bool:
        claims, book = await fleet.claims(), await ours.book()
        within = [each.granted.within(claims[each.vm.node][each.vm.name]) for each in askers]
        return (
            all(within)
            and book.keys() == claims.keys()
            and all(_covers(book[node], claims[node], most) for node in book)
        )

    await until(agrees, "book, objects and agents agree", seconds)


def _covers(book: Mapping[str, Resources], claims: Mapping[str, Resources], most: Mapping[str, Resources]) -> bool:
    """True if the ledger has the same VMs, each with the amounts of its objects and no more than it ever requested."""
    return book.keys() == claims.keys() and all(
        claims[vm].within(reserved) and reserved.within(claims[vm].at_least(most.get(vm, ZERO)))
        for vm, reserved in book.items()
    )
