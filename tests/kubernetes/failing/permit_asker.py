"""The agent of a VM as far as permits go, for many VMs in one process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import httpx2 as httpx

from protocol.codec import decode_response, encode_request
from protocol.messages import AgentRequest, ObjectName
from protocol.units import Bytes, Resources
from protocol.versions import AGENT_SPEAKS
from tests.kubernetes.failing.fleet import Vm

SLOT: Final = Bytes.parse("1Gi")
SMALL: Final = Resources.parse("1", "4Gi")
SIZES: Final = [Resources.parse(cpu, mem) for cpu in ("1", "2", "3", "4") for mem in ("4Gi", "8Gi", "12Gi")]


@dataclass(slots=True)
class Asker:
    """The agent of one VM as far as permits go: it tells of a decrease after it, and asks for an increase before it.

    ``granted`` is what it may use by the answers it got, ``most`` the most that it asked for; ``outcomes`` are all
    statuses, 0 for no answer.
    """

    vm: Vm
    scheduler: str
    http: httpx.AsyncClient
    granted: Resources
    sequence: int = 0
    most: Resources = SMALL
    outcomes: list[int] = field(default_factory=list)

    async def ask(self, wanted: Resources) -> int:
        """Asks once; the status."""
        self.sequence += 1
        self.most = self.most.at_least(wanted)
        self.granted = self.granted.at_most(wanted)
        pod = ObjectName("default", f"{self.vm.name}-pod")
        request = AgentRequest(pod, wanted, self.granted, sequence=self.sequence)
        headers = {"Authorization": f"Bearer {self.vm.token}"}
        body = encode_request(AGENT_SPEAKS, request, SLOT)
        try:
            response = await self.http.post(self.scheduler, content=body, headers=headers, timeout=6.0)
        except httpx.HTTPError:
            self.outcomes.append(0)
            return 0
        if response.status_code == httpx.codes.OK:
            self.granted = decode_response(AGENT_SPEAKS, response.content, SLOT).permit
        self.outcomes.append(response.status_code)
        return response.status_code

    async def gets(self, wanted: Resources) -> bool:
        """True if it is permitted all of ``wanted`` now."""
        await self.ask(wanted)
        return wanted.within(self.granted)

    async def is_refused(self, wanted: Resources) -> bool:
        """True if the response says to retry."""
        return await self.ask(wanted) == httpx.codes.SERVICE_UNAVAILABLE

    async def keep_asking(self, sizes: random.Random, over: asyncio.Event) -> None:
        """Asks for one size after another until it is over."""
        while not over.is_set():
            status = await self.ask(sizes.choice(SIZES))
            await asyncio.sleep(0.05 if status == httpx.codes.OK else 0.25)


@asynccontextmanager
async def asking(askers: Sequence[Asker]) -> AsyncIterator[None]:
    """All of them ask for one size after another, each in its own order."""
    over = asyncio.Event()
    tasks = [asyncio.create_task(each.keep_asking(random.Random(each.vm.name), over)) for each in askers]
    try:
        yield
    finally:
        over.set()
        await asyncio.gather(*tasks)


def all_granted(askers: Sequence[Asker]) -> Callable[[], Awaitable[bool]]:
    """True if every one of them has been answered since this was called."""
    counts = [len(each.outcomes) for each in askers]

    async def look() -> bool:
        return all(httpx.codes.OK in each.outcomes[count:] for each, count in zip(askers, counts, strict=True))

    return look


def any_refused(askers: Sequence[Asker]) -> Callable[[], Awaitable[bool]]:
    """True if any of them has been told to retry since this was called."""
    counts = [len(each.outcomes) for each in askers]

    async def look() -> bool:
        return any(503 in each.outcomes[count:] for each, count in zip(askers, counts, strict=True))

    return look
