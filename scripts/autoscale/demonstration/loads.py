"""Loads of a demonstration, on one VM or the replicas of a group: pgbench, or a demand on simulated guests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import httpx2 as httpx

from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds
from scripts.autoscale.demonstration.pgbench import DatabaseServer, Outcome, press
from scripts.autoscale.site import SiteError

_CLIENTS: Final = 6
_WAVE: Final = 5
"""Seconds; short, because only the connections of the next wave reach new replicas."""

_DEMAND: Final = 2.6
_MEMORY: Final = "200Mi"
_SHARE: Final = Seconds(0.5)
_GUEST: Final = "a simulated replica"

OnTps = Callable[[float], None]


Press = Callable[[int, OnTps], Awaitable[Outcome]]
"""Puts load on a database for some seconds."""

PressReplicas = Callable[[Callable[[], bool], OnTps], Awaitable[Outcome]]
"""Puts load on the replicas of a group, as long as a function says."""


async def simulated_load(
    control: Callable[[], Awaitable[str]], clock: Clock, demand: Mapping[str, object], seconds: int, _: OnTps
) -> Outcome:
    """Puts the demand on a simulated guest, and takes it off again: no transactions are run. Raises ``SiteError``."""
    # The guest's address changes when its VM moves, so it is looked up each time.
    await order_demand(await control(), demand)
    await clock.sleep(Seconds(float(seconds)))
    await order_demand(await control(), None)
    return Outcome(0, 0, "")


async def order_demand(control: str, demand: Mapping[str, object] | None, guest: str = "the simulated guest") -> None:
    """Puts a demand on the simulated guest at ``control``, or takes it off (None). Raises ``SiteError``."""
    try:
        # Requests to this machine must not go to a proxy that the environment names.
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as http:
            method = "DELETE" if demand is None else "PUT"
            (await http.request(method, f"{control}/demand", json=demand)).raise_for_status()
    except httpx.HTTPError as error:
        raise SiteError(f"cannot put load on {guest}: {error!r}") from error


async def read_in_waves(endpoint: DatabaseServer, goes_on: Callable[[], bool], on_tps: OnTps) -> Outcome:
    """Runs waves of ``pgbench --select-only``, one after the other. Raises ``PgbenchError``."""
    total = Outcome(0, 0, "")
    while goes_on() and not total.problem:
        total += await press(endpoint, _CLIENTS, _WAVE, on_tps, reads_only=True)
    return total


async def share_demand(
    controls: Callable[[], Awaitable[Sequence[str]]],
    clock: Clock,
    goes_on: Callable[[], bool],
    _: OnTps,
    order: Callable[[str, Mapping[str, object] | None, str], Awaitable[None]] = order_demand,
) -> Outcome:
    """Divides a demand among the simulated replicas that serve, and takes it off again. Raises ``SiteError``."""
    loaded: set[str] = set()
    began = clock.now()
    # Divided among those that serve now, and again as replicas come and go.
    while goes_on() or clock.now() < Instant(began + _SHARE):
        serving = await controls()
        for control in serving:
            await order(control, {"cpu": _DEMAND / len(serving), "mem": _MEMORY}, _GUEST)
        loaded.update(serving)
        await clock.sleep(_SHARE)
    # Takes the share from every replica that ever had one, or it would never shrink.
    for control in loaded:
        await order(control, None, _GUEST)
    return Outcome(0, 0, "")
