"""The schedulers of a story: one that acts alone, or two replicas of which one holds the Lease."""

from __future__ import annotations

import asyncio
from functools import cache
from random import Random
from typing import Final

from protocol.runtime.kubernetes.lease import Leadership
from protocol.runtime.kubernetes.token_reviews import TokenReviews
from scheduler_plugin.app import SchedulerPorts, assemble
from scheduler_plugin.leader_endpoints import LeaderEndpoints, ReplicaAddress
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.replica import Replica
from scheduler_plugin.service.service import Service, StandbyError
from scheduler_plugin.telemetry import Telemetry
from tests.fake_clock import FakeClock, settle
from tests.oracle.late_api import LateApi
from tests.scheduler_plugin.fake_cluster import SLICES
from tests.scheduler_plugin.replicas.pair import SLICE, TERMS
from tests.scheduler_plugin.running import usual_settings

REPLICAS: Final = 2


class Schedulers:
    """The processes. ``service`` is the one that serves, None if none does."""

    def __init__(self, api: LateApi, clock: FakeClock, chance: Random, *, has_lease: bool) -> None:
        self.api = api
        self.clock = clock
        self.chance = chance
        self.has_lease = has_lease
        self.started = 0
        self._alone: Service | None = None
        self._replicas: list[Replica] = []
        self._tasks: list[asyncio.Task[None]] = []
        if has_lease:
            api.put(SLICES, {"metadata": {"namespace": SLICE.namespace, "name": SLICE.name, "uid": "slice"}})

    @property
    def service(self) -> Service | None:
        for replica in self._replicas:
            try:
                return replica.active()
            except StandbyError:
                continue
        return self._alone

    @property
    def ledger(self) -> Ledger | None:
        """The current ledger, if it has listed the cluster."""
        service = self.service
        return None if service is None or not service.context.ledger.is_ready else service.context.ledger

    @property
    def is_full(self) -> bool:
        """True if as many run as should."""
        return len(self._tasks) == (REPLICAS if self.has_lease else 1)

    async def start(self) -> str:
        """One more process. Returns its name."""
        self.started += 1
        name = f"process-{self.started}"
        ports = SchedulerPorts(self.api, TokenReviews(self.api), self.clock, telemetry(self.clock), name)
        if self.has_lease:
            place = ReplicaAddress(f"10.0.0.{self.started}", SLICE, "n1")
            endpoints = LeaderEndpoints(self.api, self.clock, [SLICE], place)
            replica = Replica(ports, Leadership(self.api, self.clock, TERMS, name), endpoints, usual_settings())
            self._replicas.append(replica)
            self._tasks.append(asyncio.create_task(replica.run()))
        else:
            parts = assemble(ports, usual_settings())
            self._alone = parts.service
            self._tasks.append(asyncio.create_task(parts.run(self.api)))
        await settle()
        return name

    async def kill(self) -> bool:
        """The serving process dies, or any other. Returns True if there was one."""
        if not self._tasks:
            return False
        leading = [number for number, each in enumerate(self._replicas) if each.leadership().leads]
        number = leading[0] if leading else self.chance.randrange(len(self._tasks))
        task = self._tasks.pop(number)
        self._alone = None
        if self._replicas:
            self._replicas.pop(number)
        self.api.dying.add(task)
        task.cancel()
        await asyncio.wait([task])
        return True


@cache
def _registry() -> dict[int, Telemetry]:
    return {}


def telemetry(clock: FakeClock) -> Telemetry:
    """One for all processes of a story: to make one costs as much as a hundred steps."""
    known = _registry()
    if id(clock) not in known:
        known.clear()
        known[id(clock)] = Telemetry(clock.now)
    return known[id(clock)]
