"""The memory policy with a real guest, on a small scale: the agent finds the working set and gives the rest back
(B.16).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent.config import read_policy
from agent.core.policy import Policy
from protocol.units import Bytes
from tests.vm.memory_database import Database
from tests.vm.memory_follower import GuestFollower
from tests.vm.memory_guest import MIB, GuestSizes, memory_guest

pytestmark = pytest.mark.vm

SIZES = GuestSizes(Bytes(384 * MIB), Bytes(1024 * MIB), Bytes(32 * MIB))
SCALE = 2
ENOUGH = Bytes(704 * MIB)
GIVEN_BACK = Bytes(96 * MIB)
"""More than a step that is tried under load."""
LOAD, LOADS, IDLE = 60, 4, 360.0
QUICK = """
smoothing: {memory: [hold: {window: 10s}]}
memory: {cache: {watch: 18s, retry: 10m, longest: 1h, step: 0.2, idleAfter: 20s, remember: 4h, idleShare: 0.4}}
timing: {stale: 20s}
"""
"""Short times and wide steps, for an emulated guest that reading its metrics keeps busy."""


async def _loaded(follower: GuestFollower, database: Database, seconds: int) -> None:
    """Follow the guest while its database is read."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(database.load(seconds))
        await follower.follow(seconds)


async def test_working_set_is_found_and_given_back(tmp_path: Path) -> None:
    async with memory_guest(tmp_path, SIZES) as guest:
        database = Database(guest, SCALE, tmp_path)
        await database.make()
        await database.warm()
        await guest.throttle(400)
        follower = GuestFollower(guest, read_policy(QUICK, Policy()), print)
        for _ in range(LOADS):
            await _loaded(follower, database, LOAD)
            # A busy machine leaves time for fewer looks and steps.
            if follower.size <= ENOUGH:
                break
        rest = follower.size
        assert database.size < rest <= ENOUGH
        assert await database.missed(10) < 0.2
        async with asyncio.timeout(IDLE):
            while (await guest.guest.state()).mem > rest - GIVEN_BACK:
                await follower.follow(1)
