"""``autoscale replay --working-set``: working sets of known size, and what the agent makes of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from agent.core.explain import explain
from protocol.units import Bytes, Instant
from scripts.autoscale.replay.cache_guest import CPU_PER_PAGE, IDLE, CacheGuest, ClientLoad
from scripts.autoscale.replay.cache_play import Player

GIB: Final = 1024**3
HOUR: Final = 3600.0
_USED: Final = 1.5 * GIB
_STEP: Final = GIB // 4
_LEAST: Final = GIB
_MOST: Final = 16 * GIB

Phase = tuple[float, ClientLoad]
"""Hours, and what clients do in them."""

_HOT: Final = ClientLoad(hot=4 * GIB, rate=4000)

SCENARIOS: Final[Mapping[str, tuple[int, tuple[Phase, ...]]]] = {
    "hot-set": (4 * GIB, ((6.0, _HOT),)),
    "too-large": (16 * GIB, ((6.0, _HOT),)),
    "popular-part": (4 * GIB, ((6.0, ClientLoad(hot=8 * GIB, rate=4000, skew=0.3)),)),
    "growing": (4 * GIB, ((2.0, _HOT), (4.0, ClientLoad(hot=8 * GIB, rate=6000)))),
    "shrinking": (4 * GIB, ((2.0, ClientLoad(hot=8 * GIB, rate=6000)), (4.0, ClientLoad(hot=2 * GIB, rate=4000)))),
    "idle-night": (4 * GIB, ((3.0, _HOT), (8.0, IDLE), (3.0, _HOT))),
    "idle-hour": (4 * GIB, ((3.0, _HOT), (1.0, IDLE))),
    "scan": (4 * GIB, ((8.0, ClientLoad(scan=100 * GIB)),)),
}
"""Every scenario by name: the size with which it starts, and its phases."""


class ScenarioOutcome(msgspec.Struct, frozen=True):
    """Outcome of a scenario. Memory in GiB, of the last phase; ``served`` is the share of what clients wanted."""

    name: str
    needed: float
    came_to_rest_at: float
    resizes: int
    busiest_settled_hour: int
    served: float
    says: tuple[str, ...]


def played_scenarios(name: str) -> list[ScenarioOutcome]:
    """The outcome of one of ``SCENARIOS``, or of ``all``. Raises ``ValueError``."""
    if name != "all" and name not in SCENARIOS:
        raise ValueError(f"--working-set: expected all or one of {', '.join(SCENARIOS)}, got {name!r}")
    return [_play(scenario) for scenario in (SCENARIOS if name == "all" else (name,))]


def _play(name: str) -> ScenarioOutcome:
    """A guest counts as settled after the first two hours of the last phase."""
    size, phases = SCENARIOS[name]
    player = Player(CacheGuest(size, _USED), _LEAST, _MOST, _STEP, _STEP)
    began, done = 0.0, 0.0
    for hours, load in phases:
        # The outcome is that of the last phase, so only its beginning counts.
        began, done = player.now, player.guest.done
        player.plays(load, hours * HOUR)
    load = phases[-1][1]
    # What clients would get done if they never waited for the disk.
    wanted = min(load.rate, load.clients / CPU_PER_PAGE) * (player.now - began)
    return ScenarioOutcome(
        name=name,
        # Whatever the cache needs, programs and 100 MiB have to fit into three quarters of the memory.
        needed=max(player.guest.needs(load), (_USED + 100 * 2**20) / 0.75) / GIB,
        came_to_rest_at=Bytes(player.size).as_gib,
        resizes=len(player.resizes),
        # The first two hours are the search for a size; after that it should rest.
        busiest_settled_hour=_busiest([resize.at for resize in player.resizes_since(began + 2 * HOUR)]),
        served=(player.guest.done - done) / wanted if wanted else 1.0,
        says=explain(player.state, name, Instant(player.now)).working_set,
    )


def _busiest(times: Sequence[float]) -> int:
    # The busiest hour begins at one of the resizes.
    return max((sum(first <= at < first + HOUR for at in times) for first in times), default=0)
