"""What must hold at every moment of a story, read from the objects and the answers to agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import httpx

from protocol.units import Resources
from tests.kubernetes.failing.fleet import ZERO, Fleet, UnansweredError, over_committed, until
from tests.kubernetes.failing.our_programs import Scheduler
from tests.kubernetes.failing.permit_asker import Asker


@asynccontextmanager
async def never_over_committed(fleet: Fleet) -> AsyncIterator[None]:
    """No node has ever more promised to its VMs than it has, as often as one looks."""
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


async def settled(ours: Scheduler, fleet: Fleet, askers: Sequence[Asker], seconds: float = 10.0) -> None:
    """Returns once the book is what the objects say, and every agent has at most what its object permits.

    For half a minute the book may have more for an agent: what it was granted before, or asked for in vain.
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
    """Whether the book has the same VMs, each with what its objects say and no more than it ever asked for."""
    return book.keys() == claims.keys() and all(
        claims[vm].within(reserved) and reserved.within(claims[vm].at_least(most.get(vm, ZERO)))
        for vm, reserved in book.items()
    )
