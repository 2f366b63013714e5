"""Loads of a demonstration, on one VM or the replicas of a group: pgbench, or a demand on simulated guests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import httpx2 as httpx

from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds
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


_CLIENTS: Final = 6
_SCALE: Final = 1
_WAVE: Final = 5
"""Seconds; short, because only the connections of the next wave reach new replicas."""

_DEMAND: Final = 2.6
_MEMORY: Final = "200Mi"
_SHARE: Final = Seconds(0.5)
_GUEST: Final = "a simulated replica"


class ReadLoad(Protocol):
    """A load on the replicas of a group."""

    async def prepare(self) -> None:
        """Makes what the load needs, on the primary."""

    async def press(self, goes_on: Callable[[], bool], on_tps: Callable[[float], None]) -> Outcome:
        """Loads the replicas as long as ``goes_on``."""


@dataclass(frozen=True, slots=True)
class PgbenchReads:
    """``pgbench --select-only`` at the ``endpoint``, with tables made on the ``primary``."""

    primary: DatabaseServer
    endpoint: DatabaseServer

    async def prepare(self) -> None:
        """Makes pgbench's tables. Raises ``PgbenchError``."""
        await prepare(self.primary, _SCALE)

    async def press(self, goes_on: Callable[[], bool], on_tps: Callable[[float], None]) -> Outcome:
        """Runs waves of clients, one after the other. Raises ``PgbenchError``."""
        total = Outcome(0, 0, "")
        while goes_on() and not total.problem:
            total += await press(self.endpoint, _CLIENTS, _WAVE, on_tps, reads_only=True)
        return total


@dataclass(frozen=True, slots=True)
class SimulatedReads:
    """A demand that is divided among the simulated replicas that serve; ``controls`` finds them."""

    controls: Callable[[], Awaitable[Sequence[str]]]
    clock: Clock
    order: Callable[[str, Mapping[str, object] | None, str], Awaitable[None]] = order_demand

    async def prepare(self) -> None:
        """Nothing is needed."""

    async def press(self, goes_on: Callable[[], bool], on_tps: Callable[[float], None]) -> Outcome:  # noqa: ARG002 - none are run
        """Puts the demand on the guests, and takes it off again. Raises ``SiteError``."""
        loaded: set[str] = set()
        began = self.clock.now()
        # Divided among those that serve now, and again as replicas come and go.
        while goes_on() or self.clock.now() < Instant(began + _SHARE):
            serving = await self.controls()
            for control in serving:
                await self.order(control, {"cpu": _DEMAND / len(serving), "mem": _MEMORY}, _GUEST)
            loaded.update(serving)
            await self.clock.sleep(_SHARE)
        # Takes the share from every replica that ever had one, or it would never shrink.
        for control in loaded:
            await self.order(control, None, _GUEST)
        return Outcome(0, 0, "")
