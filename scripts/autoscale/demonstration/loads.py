"""Loads for the demonstration's VM: pgbench on a real one, a demand on a simulated one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import httpx2 as httpx

from protocol.runtime.clock import Clock
from protocol.units import Seconds
from scripts.autoscale.demonstration.pgbench import DatabaseServer, Outcome, prepare, press
from scripts.autoscale.site import SiteError


class LoadMaker(Protocol):
    """A load that can be put on a VM for some time."""

    async def prepare(self) -> None:
        """Makes what the load needs."""

    async def press(self, seconds: int, on_tps: Callable[[float], None]) -> Outcome:
        """Loads the VM for ``seconds``, then releases it."""


@dataclass(frozen=True, slots=True)
class PgbenchLoad:
    """Transactions, as many as the VM can do."""

    server: DatabaseServer
    clients: int
    scale: int

    async def prepare(self) -> None:
        """Makes pgbench's tables."""
        await prepare(self.server, self.scale)

    async def press(self, seconds: int, on_tps: Callable[[float], None]) -> Outcome:
        """Runs pgbench."""
        return await press(self.server, self.clients, seconds, on_tps)


@dataclass(frozen=True, slots=True)
class SimulatedLoad:
    """A demand that a simulated guest plays; ``control`` finds it wherever it runs. No transactions are run."""

    control: Callable[[], Awaitable[str]]
    clock: Clock
    cpu: float
    mem: str

    async def prepare(self) -> None:
        """Nothing is needed."""

    async def press(self, seconds: int, on_tps: Callable[[float], None]) -> Outcome:  # noqa: ARG002 - none are run
        """Puts the demand on the guest, and takes it off again. Raises ``SiteError``."""
        # The guest's address changes when its VM moves, so it is looked up each time.
        await order_demand(await self.control(), {"cpu": self.cpu, "mem": self.mem})
        await self.clock.sleep(Seconds(float(seconds)))
        await order_demand(await self.control(), None)
        return Outcome(0, 0, "")


async def order_demand(control: str, demand: Mapping[str, object] | None, guest: str = "the simulated guest") -> None:
    """Puts a demand on the simulated guest at ``control``, or takes it off (None). Raises ``SiteError``."""
    try:
        # Requests to this machine must not go to a proxy that the environment names.
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as http:
            method = "DELETE" if demand is None else "PUT"
            (await http.request(method, f"{control}/demand", json=demand)).raise_for_status()
    except httpx.HTTPError as error:
        raise SiteError(f"{guest} cannot be loaded: {error!r}") from error
