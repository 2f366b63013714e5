"""A node's agent sends the requests of all its VMs in one message, once the scheduler has announced batches (decision
55).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from agent.adapters.batch_connection import BatchConnection
from agent.adapters.node_scheduler import BATCH_DELAY, OFFER_RETRY, OFFER_WAIT, RECONNECT, NodeScheduler
from agent.adapters.scheduler_client import HttpScheduler
from agent.adapters.token import no_token
from agent.core.events import Fault
from agent.ports import PortError
from protocol.codec import PluginResponseView, encode_request
from protocol.messages import AgentRequest, Metrics, ObjectName
from protocol.units import Bytes, ComputeUnit, MilliCpu, Resources, Seconds
from protocol.versions import AGENT_SPEAKS
from protocol.wire.wire_batches import LONGEST_BATCH, MAX_REQUESTS
from tests.agent.adapters.scheduler_peer import Peer, entries, scheduler_peer
from tests.fake_clock import FakeClock, settle
from tests.plain_http import TRUSTS_NONE, plain_client

SLOT = Bytes.parse("1Gi")
HAS = Resources.parse(2, "8Gi")
ANSWER = PluginResponseView(HAS, ComputeUnit.parse("250m", "1Gi"), migrate=False)
ONE = ("/", ["vm-0"])


def request(number: int, wants: Resources = HAS) -> AgentRequest:
    metrics = Metrics(0.5, 0.25, Bytes(1000))
    return AgentRequest(ObjectName("default", f"vm-{number}"), wants, HAS, metrics=metrics, sequence=number + 1)


class Node:
    """The agent of a node, and the scheduler it talks to."""

    def __init__(self, peer: Peer, line: BatchConnection, scheduler: NodeScheduler, clock: FakeClock) -> None:
        self.peer, self.line, self.scheduler, self.clock = peer, line, scheduler, clock

    def begins(self, *numbers: int, wants: Resources = HAS) -> list[asyncio.Task[PluginResponseView]]:
        """These VMs are due now."""
        return [asyncio.create_task(self.scheduler.ask(request(each, wants), SLOT)) for each in numbers]

    async def asks(self, *numbers: int) -> list[Any]:
        """The responses to requests of VMs that are due together."""
        asking = self.begins(*numbers)
        await self.clock.advance(BATCH_DELAY)
        return await asyncio.gather(*asking, return_exceptions=True)


@asynccontextmanager
async def node(peer: Peer, deadline: float = 2.0) -> AsyncIterator[Node]:
    clock = FakeClock()
    async with scheduler_peer(peer), plain_client() as http:
        alone = HttpScheduler(http, f"{peer.url}/", no_token, Seconds(deadline))
        line = BatchConnection(peer.url, TRUSTS_NONE, no_token, Seconds(deadline))
        scheduler = NodeScheduler(alone, line, clock)
        running = asyncio.create_task(scheduler.run())
        try:
            yield Node(peer, line, scheduler, clock)
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


def faults(found: Iterable[Any]) -> list[tuple[Fault, str, float | None]]:
    return [(each.fault, each.reason, each.retry_after) for each in found if isinstance(each, PortError)]


async def test_batches_due_requests_after_offer_is_accepted() -> None:
    async with node(Peer()) as here:
        assert await here.asks(0) == [ANSWER]
        assert await here.asks(1, 2, 3) == [ANSWER] * 3
        assert await here.asks(4, 5) == [ANSWER] * 2
        assert here.peer.asked == [ONE, ("/permits", ["vm-1", "vm-2", "vm-3"]), ("/permits", ["vm-4", "vm-5"])]
        assert (here.peer.offered, len(here.peer.writers)) == (1, 1)
        assert here.scheduler.messages == {"alone": 1, "together": 2}


async def test_late_request_joins_batch() -> None:
    """A scheduler refuses an empty batch, and the agent would then send every request alone for a minute."""
    async with node(Peer()) as here:
        await here.asks(0)
        asking = here.begins(1)
        await here.clock.advance(Seconds(BATCH_DELAY / 2))
        asking += here.begins(2)
        await here.clock.advance(Seconds(BATCH_DELAY / 2))
        assert await asyncio.gather(*asking) == [ANSWER] * 2
        await here.clock.advance(BATCH_DELAY)
        assert await here.asks(3, 4) == [ANSWER] * 2
        assert here.peer.asked == [ONE, ("/permits", ["vm-1", "vm-2"]), ("/permits", ["vm-3", "vm-4"])]


async def test_older_scheduler_gets_no_batch() -> None:
    async with node(Peer(offers=None)) as here:
        for _ in range(3):
            assert await here.asks(0, 1) == [ANSWER] * 2
        assert ({path for path, _ in here.peer.asked}, here.peer.sizes, here.peer.offered) == ({"/"}, [1] * 6, 1)
        await here.clock.advance(OFFER_RETRY)
        here.peer.offers = "128"
        await here.asks(0)
        await here.asks(0, 1)
        assert here.peer.sizes[-2:] == [1, 2], "it was upgraded"


async def test_rolled_back_scheduler_gets_no_batch() -> None:
    """A batch is sent only on a connection that announced batches: another connection may reach another release."""
    async with node(Peer()) as here:
        await here.asks(0)
        assert await here.asks(1, 2) == [ANSWER] * 2
        here.peer.offers = None
        here.peer.hang_up()
        await settle()
        assert await here.asks(1, 2) == [ANSWER] * 2
        assert await here.asks(1, 2) == [ANSWER] * 2
        assert here.peer.sizes == [1, 2, 1, 1, 1, 1]


@pytest.mark.parametrize("offered", ["", "0", "many", "-1", "1e9", "٣", "9" * 40])
async def test_an_offer_that_makes_no_sense_is_none(offered: str) -> None:
    async with node(Peer(offers=offered)) as here:
        await here.asks(0)
        await here.asks(1, 2)
        assert here.peer.sizes == [1, 1, 1]


async def test_batch_respects_scheduler_limit() -> None:
    async with node(Peer(offers="2")) as here:
        await here.asks(0)
        assert await here.asks(1, 2, 3) == [ANSWER] * 3
        assert sorted(here.peer.sizes) == [1, 1, 2]


async def test_growing_vm_skips_the_batch() -> None:
    """A VM that wants more waits neither for other VMs nor for their response."""
    async with node(Peer()) as here:
        await here.asks(0)
        (growth,) = here.begins(1, wants=Resources.parse(4, "8Gi"))
        assert (await growth).permit == Resources.parse(4, "8Gi")
        assert here.peer.asked[1:] == [("/", ["vm-1"])], "no time has passed"
        here.peer.silent = True
        here.peer.heard.clear()
        asking = here.begins(2, 3)
        await here.clock.advance(BATCH_DELAY)
        await here.peer.heard.wait()
        here.peer.silent = False
        (growth,) = here.begins(2, wants=Resources.parse(4, "8Gi"))
        (other,) = here.begins(4)
        assert (await growth, await other) == (
            PluginResponseView(Resources.parse(4, "8Gi"), ANSWER.compute_unit, migrate=False),
            ANSWER,
        )
        assert not any(each.done() for each in asking)
        for each in asking:
            each.cancel()


async def test_each_vm_gets_its_own_answer() -> None:
    def answer(requests: Any) -> Any:
        found = entries(requests)[1]
        return 200, [
            {**found[0], "migrate": {}},
            {"status": 403, "error": "not the agent"},
            {"status": 503, "error": "still being written", "retryAfter": 0.0},
            {"status": 200, "permit": 7},
            {"permit": {}},
            found[5],
        ]

    async with node(Peer(batch=answer)) as here:
        await here.asks(0)
        found = await here.asks(1, 2, 3, 4, 5, 6)
        assert found[0] == PluginResponseView(HAS, ANSWER.compute_unit, migrate=True)
        assert found[5] == ANSWER
        undecodable = "cannot decode the scheduler's response: "
        assert faults(found) == [
            (Fault.AGENT, "the scheduler does not authorize this agent for this pod: not the agent", None),
            (Fault.SCHEDULER, "the scheduler is not ready: still being written", 0.0),
            (Fault.SCHEDULER, f"{undecodable}permit: expected object, got int", None),
            (Fault.SCHEDULER, f"{undecodable}status: expected a value, the field is missing", None),
        ]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ((200, []), "cannot decode the scheduler's response: expected 2 entries, got 0"),
        ((200, {"permit": 1}), "cannot decode the scheduler's response: document: expected array, got object"),
        ((200, "x" * LONGEST_BATCH), f"the scheduler's response exceeds {LONGEST_BATCH} bytes"),
        ((503, {"error": "not the leader"}), "the scheduler is not ready: not the leader"),
        ((500, {"error": "a fault"}), "the scheduler returned 500: a fault"),
    ],
)
async def test_failed_batch_fails_only_its_vms(said: Any, reason: str) -> None:
    async with node(Peer(batch=lambda _: said)) as here:
        await here.asks(0)
        found = await here.asks(1, 2)
        assert [(each.fault, each.reason) for each in found] == [(Fault.SCHEDULER, reason)] * 2
        here.peer.batch = entries
        assert await here.asks(3) == [ANSWER]


@pytest.mark.parametrize("status", [400, 404, 405, 413])
async def test_refused_batch_falls_back_to_single_requests(status: int) -> None:
    """For example behind a load balancer that spreads messages over schedulers."""
    async with node(Peer(batch=lambda _: (status, {"error": "what is that?"}))) as here:
        await here.asks(0)
        assert await here.asks(1, 2) == [ANSWER] * 2
        assert await here.asks(1, 2) == [ANSWER] * 2
        assert here.peer.sizes == [1, 2, 1, 1, 1, 1]


async def test_batch_timeout_closes_the_connection() -> None:
    """At the deadline all requests of the batch fail, and the connection carries no other."""
    async with node(Peer(), deadline=0.05) as here:
        await here.asks(0)
        here.peer.silent = True
        found = await here.asks(1, 2)
        assert {(each.fault, each.reason) for each in found} == {
            (Fault.NETWORK, f"the scheduler at {here.peer.url} did not respond within 0.05 s")
        }
        assert here.line.most == 0


async def test_unreachable_scheduler_is_retried_soon() -> None:
    async with node(Peer(refuses=1)) as here:
        (found,) = await here.asks(0)
        assert found.fault is Fault.NETWORK
        assert await here.asks(1) == [ANSWER]
        assert here.peer.offered == 0
        await here.clock.advance(RECONNECT)
        await here.asks(0)
        await here.asks(1, 2)
        assert here.peer.sizes == [1, 1, 2]


async def test_starting_scheduler_gets_batches() -> None:
    """Its refusal does not mean that it lacks batches: otherwise all VMs of a node would send single requests."""
    starting = 503, {"error": "starting"}
    async with node(Peer(single=starting, batch=lambda _: starting, retry=1)) as here:
        asking = here.begins(*range(30))
        await asyncio.wait(asking[:1])
        await here.clock.advance(BATCH_DELAY)
        said = await asyncio.gather(*asking, return_exceptions=True)
        assert faults(said) == [(Fault.SCHEDULER, "the scheduler is not ready: starting", 1.0)] * 30
        here.peer.single, here.peer.batch = None, entries
        assert await here.asks(*range(30)) == [ANSWER] * 30
        assert here.peer.sizes == [1, 29, 30]


async def test_followers_share_refusal_by_standby() -> None:
    """One request shows that it does not lead yet; all retry after their first delay."""
    async with node(Peer(single=(503, {"error": "not the leader"}))) as here:
        said = await asyncio.gather(*here.begins(*range(30)), return_exceptions=True)
        assert faults(said) == [(Fault.SCHEDULER, "the scheduler is not ready: not the leader", 0.0)] * 30
        assert here.peer.sizes == [1]
        await here.clock.advance(RECONNECT)
        here.peer.single = None
        asking = here.begins(*range(30))
        await asking[0]
        await here.clock.advance(BATCH_DELAY)
        assert await asyncio.gather(*asking) == [ANSWER] * 30
        assert here.peer.sizes[-2:] == [1, 29]


async def test_all_follow_the_one_that_connects() -> None:
    """After a restart of the scheduler all VMs of a node send requests at once; a connection for each would delay
    it.
    """
    async with node(Peer()) as here:
        for _ in range(2):
            asking = here.begins(*range(110))
            await asking[0]
            await here.clock.advance(BATCH_DELAY)
            assert await asyncio.gather(*asking) == [ANSWER] * 110
            here.peer.hang_up()
            while here.line.most:
                await settle()
        assert here.peer.sizes == [1, 109] * 2
        assert here.peer.offered == 2


async def test_slow_offer_holds_up_others_for_a_second() -> None:
    async with node(Peer(silent=True)) as here:
        slow, other = here.begins(0, 1)
        await here.peer.heard.wait()
        here.peer.silent = False
        await here.clock.advance(OFFER_WAIT)
        assert await other == ANSWER
        assert (slow.done(), here.peer.asked) == (False, [("/", ["vm-1"])])
        here.peer.hang_up()
        await asyncio.wait([slow])
        assert isinstance(slow.exception(), PortError)


async def test_growth_does_not_wait_for_an_offer() -> None:
    async with node(Peer(silent=True)) as here:
        slow = here.begins(0)
        await here.peer.heard.wait()
        here.peer.silent = False
        (grows,) = here.begins(1, wants=Resources.parse(4, "8Gi"))
        assert (await grows).permit == Resources.parse(4, "8Gi")
        here.peer.hang_up()
        await asyncio.wait(slow)
        assert isinstance(slow[0].exception(), PortError)


async def test_vm_that_leaves_does_not_affect_batch() -> None:
    async with node(Peer()) as here:
        await here.asks(0)
        gone, stays = here.begins(1, 2)
        await asyncio.sleep(0)
        gone.cancel()
        await here.clock.advance(BATCH_DELAY)
        assert await stays == ANSWER


def test_batch_fits_longest_requests() -> None:
    longest = Resources(MilliCpu(2**60 + 1), SLOT * 65535)
    request = AgentRequest(
        ObjectName("n" * 63, "p" * 253), longest, longest, None, Metrics(1 / 3, 1 / 3, Bytes(2**60 + 1)), 2**63 - 1
    )
    assert (len(encode_request(AGENT_SPEAKS, request, SLOT)) + 1) * MAX_REQUESTS < LONGEST_BATCH
