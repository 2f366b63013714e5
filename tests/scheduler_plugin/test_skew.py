"""Agents and schedulers of neighbouring releases: every published wire version grows, through an upgrade too (B.1)."""

from __future__ import annotations

from itertools import count

import pytest

from protocol.codec import decode_response, encode_request
from protocol.messages import AgentRequest, Metrics, ObjectName
from protocol.units import Bytes, ComputeUnit, MilliCpu, Resources
from protocol.versions import ProtocolVersion
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.granted import POD, granted, settled
from tests.scheduler_plugin.objects import token_of, token_text
from tests.scheduler_plugin.running import Running, running

SLOT = Bytes.parse("1Gi")
UNIT = ComputeUnit(MilliCpu(250), SLOT)
NUMBERS = count(1)
"""Of requests, over all agents: a request that is not newer than the last one counts as late."""

NAME = ObjectName("default", POD["metadata"]["name"])


class Agent:
    """An agent of some release: all that it knows is its wire version, and its last permit."""

    def __init__(self, version: ProtocolVersion) -> None:
        self.version = version
        self.permit: Resources | None = None

    async def asks(self, scheduler: Running, cpu: int, mem: str) -> Resources:
        """The permit."""
        scheduler.cluster.tokens.setdefault("token-db", token_of(POD))
        wanted = Resources.parse(cpu, mem)
        request = AgentRequest(NAME, wanted, self.permit, UNIT, Metrics(0.5, 0.4, Bytes(1)), next(NUMBERS))
        answer = await scheduler.client.post(
            "http://agents/",
            content=encode_request(self.version, request, SLOT),
            headers={"Authorization": f"Bearer {token_text('token-db')}"},
        )
        assert answer.status_code == 200, answer.text
        scheduler.check()
        self.permit = decode_response(self.version, answer.content, SLOT).permit
        return self.permit


@pytest.mark.parametrize("version", ProtocolVersion, ids=lambda version: version.name)
async def test_old_agents_keep_permits_through_upgrade(version: ProtocolVersion) -> None:
    cluster, clock, agent = granted(), FakeClock(), Agent(version)
    async with settled(cluster, clock) as before:
        assert await agent.asks(before, 2, "8Gi") == Resources.parse(2, "8Gi")
        assert await agent.asks(before, 4, "8Gi") == Resources.parse(4, "8Gi")
    async with running(cluster, clock) as after:
        assert after.reserved("n1") == "4 cpu, 8Gi", "the successor knows the permit before the agent says it"
        assert await agent.asks(after, 4, "8Gi") == Resources.parse(4, "8Gi")
        assert await agent.asks(after, 5, "9Gi") == Resources.parse(5, "9Gi")


async def test_repeated_upgrades_lose_no_permit() -> None:
    cluster, clock = granted(), FakeClock()
    agents = [Agent(version) for version in ProtocolVersion]
    size = 1
    for upgrade in range(8):
        async with running(cluster, clock) as scheduler:
            await clock.advance(60)
            size = 2 + upgrade % 4
            granted_now = [await agent.asks(scheduler, size, f"{2 * size}Gi") for agent in agents]
            assert set(granted_now) == {Resources.parse(size, f"{2 * size}Gi")}
        async with running(cluster, clock) as successor:
            assert successor.reserved("n1") == f"{size} cpu, {2 * size}Gi"
