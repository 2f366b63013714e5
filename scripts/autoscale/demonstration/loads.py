"""Loads for a VM or for a group's replicas: pgbench, or a demand of simulated guests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import httpx2 as httpx

from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds
from scripts.autoscale.demonstration.pgbench import DatabaseServer, Outcome, run_load
from scripts.autoscale.site import SiteError

_CLIENTS: Final = 6
_WAVE: Final = 5
"""Seconds; short, because new replicas get only the connections of later waves."""

_DEMAND: Final = 2.6
_MEMORY: Final = "200Mi"
_SHARE: Final = Seconds(0.5)
_GUEST: Final = "a simulated replica"

OnTps = Callable[[float], None]


Load = Callable[[int, OnTps], Awaitable[Outcome]]
"""Loads a database for some seconds."""

ReplicaLoad = Callable[[Callable[[], bool], OnTps], Awaitable[Outcome]]
"""Loads the replicas of a group while a condition holds."""


async def simulated_load(
    control: Callable[[], Awaitable[str]], clock: Clock, demand: Mapping[str, object], seconds: int, _: OnTps
) -> Outcome:
    """Sets the demand of a simulated guest, and resets it; runs no transactions. Raises ``SiteError``."""
    # Look the guest's address up each time: it changes when the VM migrates.
    await set_demand(await control(), demand)
    await clock.sleep(Seconds(float(seconds)))
    await set_demand(await control(), None)
    return Outcome(0, 0, "")


async def set_demand(control: str, demand: Mapping[str, object] | None, guest: str = "the simulated guest") -> None:
    """Sets the demand of the simulated guest at ``control``; None resets it. Raises ``SiteError``."""
    try:
        # Requests to this machine must not use a proxy from the environment.
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as http:
            method = "DELETE" if demand is None else "PUT"
            (await http.request(method, f"{control}/demand", json=demand)).raise_for_status()
    except httpx.HTTPError as error:
        raise SiteError(f"cannot put load on {guest}: {error!r}") from error


async def read_in_waves(endpoint: DatabaseServer, is_needed: Callable[[], bool], on_tps: OnTps) -> Outcome:
    """Runs short waves of ``pgbench --select-only`` while ``is_needed``. Raises ``PgbenchError``."""
    total = Outcome(0, 0, "")
    while is_needed() and not total.problem:
        total += await run_load(endpoint, _CLIENTS, _WAVE, on_tps, reads_only=True)
    return total


async def share_demand(
    controls: Callable[[], Awaitable[Sequence[str]]],
    clock: Clock,
    is_needed: Callable[[], bool],
    _: OnTps,
    order: Callable[[str, Mapping[str, object] | None, str], Awaitable[None]] = set_demand,
) -> Outcome:
    """Divides a demand among the serving simulated replicas while ``is_needed``. Raises ``SiteError``."""
    loaded: set[str] = set()
    began = clock.now()
    # Repeatedly, because replicas may be added and removed.
    while is_needed() or clock.now() < Instant(began + _SHARE):
        serving = await controls()
        for control in serving:
            await order(control, {"cpu": _DEMAND / len(serving), "mem": _MEMORY}, _GUEST)
        loaded.update(serving)
        await clock.sleep(_SHARE)
    # Also for replicas that no longer serve, which would otherwise never shrink.
    for control in loaded:
        await order(control, None, _GUEST)
    return Outcome(0, 0, "")
