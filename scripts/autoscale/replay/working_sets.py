"""``autoscale replay --working-set``: working sets of known size, and how the agent sizes a VM for each.

The agent's core is the real one: ``plan`` makes all decisions, and ``advance`` handles all events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import structs

from agent.core.actions import PatchVm, RequestPermit
from agent.core.advance import advance
from agent.core.events import Patched, SchedulerAnswered, Scraped, Started, VmSeen
from agent.core.explain import explain
from agent.core.plan import plan
from agent.core.policy import Policy
from agent.core.state import State, begin
from agent.core.vm import Vm
from protocol.messages import ObjectName, PluginResponse
from protocol.units import Bytes, ComputeUnit, Instant, MilliCpu, Resources
from protocol.virtual_machine import Bounds
from scripts.autoscale.replay.cache_guest import CPU_PER_PAGE, IDLE, CacheGuest, ClientLoad

POD: Final = ObjectName("replay", "working-set")


@dataclass(frozen=True, slots=True)
class ReplayedResize:
    """A resize from ``before`` to ``after`` bytes, ``at`` this many seconds."""

    at: float
    before: int
    after: int


@dataclass(slots=True)
class Player:
    """A VM and its agent; the scheduler permits up to ``permitted`` bytes of memory, None for any amount."""

    guest: CacheGuest
    minimum: int
    maximum: int
    unit: int
    slot: int
    policy: Policy = field(default_factory=Policy)
    permitted: int | None = None
    scrape_interval: float = 5.0
    """Seconds between scrapes of the guest."""
    now: float = 0.0
    resizes: list[ReplayedResize] = field(default_factory=list)
    state: State = field(init=False)
    _vm: Vm = field(init=False)

    def __post_init__(self) -> None:
        cpu = MilliCpu(1000)
        bounds = Bounds(Resources(cpu, Bytes(self.minimum)), Resources(MilliCpu(4000), Bytes(self.maximum)))
        use = Resources(cpu, Bytes(int(self.guest.size)))
        self._vm = Vm(bounds, use, use, Bytes(self.slot), 1)
        self.restart()

    def restart(self) -> None:
        """Restarts the agent, which then knows only the VM's object."""
        self.state = begin(POD, self.policy, Instant(self.now), 0.0, 1)
        advance(self.state, VmSeen(self._vm), Instant(self.now), 0.0)

    def play(self, load: ClientLoad, seconds: float, used: Callable[[float], float] | None = None) -> Player:
        """Plays ``load`` for ``seconds``; ``used`` returns the memory that programs use at a time."""
        for _ in range(round(seconds / self.scrape_interval)):
            self.now += self.scrape_interval
            if used is not None:
                self.guest.used = used(self.now)
            self.guest.run(load, self.scrape_interval)
            self.take(Scraped(self.guest.sample()))
            self._act()
        return self

    @property
    def size(self) -> int:
        """The VM's memory in bytes."""
        return int(self.guest.size)

    def resizes_since(self, at: float) -> Sequence[ReplayedResize]:
        """The resizes after a time."""
        return [resize for resize in self.resizes if resize.at > at]

    def _act(self) -> None:
        # A decision may take several steps (request, patch, report); the limit prevents an endless loop.
        for _ in range(8):
            actions = plan(self.state, Instant(self.now)).actions
            if not actions:
                return
            for action in actions:
                self.take(Started(action))
                if isinstance(action, RequestPermit):
                    self._answer(action)
                elif isinstance(action, PatchVm):
                    self._patch(action)

    def _answer(self, ask: RequestPermit) -> None:
        requested = ask.request.resources
        # The scheduler never revokes what a VM uses.
        mem = (
            requested.mem
            if self.permitted is None
            else min(requested.mem, max(Bytes(self.permitted), self._vm.use.mem))
        )
        unit = ComputeUnit(MilliCpu(1000), Bytes(self.unit))
        self.take(SchedulerAnswered(PluginResponse(Resources(requested.cpu, mem), unit, False)))

    def _patch(self, patch: PatchVm) -> None:
        before, after = self._vm.use.mem.value, patch.target.mem.value
        self._vm = structs.replace(self._vm, use=patch.target, actual=patch.target, version=self._vm.version + 1)
        self.guest.size = float(after)
        self.take(Patched(self._vm))
        if before != after:
            self.resizes.append(ReplayedResize(self.now, before, after))

    def take(self, event: Scraped | Started | SchedulerAnswered | Patched) -> None:
        """Passes an event to the agent."""
        advance(self.state, event, Instant(self.now), 0.0)


GIB: Final = 1024**3
HOUR: Final = 3600.0
_USED: Final = 1.5 * GIB
_STEP: Final = GIB // 4
_MINIMUM: Final = GIB
_MAXIMUM: Final = 16 * GIB

Phase = tuple[float, ClientLoad]
"""Duration in hours, and the load."""

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
"""All scenarios by name: the initial size, and the phases."""


class ScenarioOutcome(msgspec.Struct, frozen=True):
    """Outcome of the last phase of a scenario. Memory is in GiB; ``served`` is the share of the requested accesses."""

    name: str
    needed: float
    settled_at: float = msgspec.field(name="came_to_rest_at")
    resizes: int
    busiest_settled_hour: int
    served: float
    explanation: tuple[str, ...] = msgspec.field(name="says")


def played_scenarios(name: str) -> list[ScenarioOutcome]:
    """Plays one of ``SCENARIOS``, or ``all``. Raises ``ValueError``."""
    if name != "all" and name not in SCENARIOS:
        raise ValueError(f"--working-set: expected all or one of {', '.join(SCENARIOS)}, got {name!r}")
    return [_play(scenario) for scenario in (SCENARIOS if name == "all" else (name,))]


def _play(name: str) -> ScenarioOutcome:
    """Plays a scenario; the guest counts as settled after two hours of the last phase."""
    size, phases = SCENARIOS[name]
    player = Player(CacheGuest(size, _USED), _MINIMUM, _MAXIMUM, _STEP, _STEP)
    began, done = 0.0, 0.0
    for hours, load in phases:
        # At the end, these are of the last phase.
        began, done = player.now, player.guest.done
        player.play(load, hours * HOUR)
    load = phases[-1][1]
    # The number of accesses if clients never waited for the disk.
    requested = min(load.rate, load.clients / CPU_PER_PAGE) * (player.now - began)
    settled = [resize.at for resize in player.resizes_since(began + 2 * HOUR)]
    return ScenarioOutcome(
        name=name,
        # Programs and 100 MiB must also fit into three quarters of the memory.
        needed=max(player.guest.needed_size(load), (_USED + 100 * 2**20) / 0.75) / GIB,
        settled_at=Bytes(player.size).as_gib,
        resizes=len(player.resizes),
        # The busiest hour starts at one of the resizes.
        busiest_settled_hour=max((sum(first <= at < first + HOUR for at in settled) for first in settled), default=0),
        served=(player.guest.done - done) / requested if requested else 1.0,
        explanation=explain(player.state, name, Instant(player.now)).working_set,
    )
