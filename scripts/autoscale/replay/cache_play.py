"""An agent plays against the model of a guest with a page cache: every size that it chooses, and what clients got done.

The agent is the real one: ``plan`` makes all of its decisions, and every event goes through ``advance``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from agent.core.actions import AskScheduler, PatchVm
from agent.core.advance import advance
from agent.core.events import Answered, Patched, Scraped, Started, VmSeen
from agent.core.plan import plan
from agent.core.policy import Policy
from agent.core.state import State, begin
from agent.core.vm import Vm
from protocol.messages import ObjectName, PluginResponse
from protocol.units import Bytes, ComputeUnit, Instant, MilliCpu, Resources
from protocol.virtual_machine import Bounds
from scripts.autoscale.replay.cache_guest import CacheGuest, ClientLoad

POD: Final = ObjectName("replay", "working-set")


@dataclass(frozen=True, slots=True)
class PlayedResize:
    """The VM got ``after`` bytes instead of ``before`` at this many seconds."""

    at: float
    before: int
    after: int


@dataclass(slots=True)
class Player:
    """One VM and its agent; the scheduler permits up to ``permitted`` bytes of memory."""

    guest: CacheGuest
    least: int
    most: int
    unit: int
    slot: int
    policy: Policy = field(default_factory=Policy)
    permitted: int | None = None
    shows_vmstat: bool = True
    look: float = 5.0
    """Seconds from one look at the guest to the next."""
    now: float = 0.0
    resizes: list[PlayedResize] = field(default_factory=list)
    state: State = field(init=False)
    _vm: Vm = field(init=False)

    def __post_init__(self) -> None:
        cpu = MilliCpu(1000)
        bounds = Bounds(Resources(cpu, Bytes(self.least)), Resources(MilliCpu(4000), Bytes(self.most)))
        use = Resources(cpu, Bytes(int(self.guest.size)))
        self._vm = Vm(bounds, use, use, Bytes(self.slot), 1)
        self.restart()

    def restart(self) -> None:
        """The agent begins again: it knows nothing but the VM's object."""
        self.state = begin(POD, self.policy, Instant(self.now), 0.0, 1)
        advance(self.state, VmSeen(self._vm), Instant(self.now), 0.0)

    def plays(self, load: ClientLoad, seconds: float, used: Callable[[float], float] | None = None) -> Player:
        """This many seconds under ``load``; ``used`` says what programs use at a time."""
        for _ in range(round(seconds / self.look)):
            self.now += self.look
            if used is not None:
                self.guest.used = used(self.now)
            self.guest.runs(load, self.look)
            self.take(Scraped(self.guest.page(is_full=self.shows_vmstat)))
            self._act()
        return self

    @property
    def size(self) -> int:
        """The memory that the VM has, in bytes."""
        return int(self.guest.size)

    def resizes_since(self, at: float) -> Sequence[PlayedResize]:
        """The resizes after ``at``."""
        return [resize for resize in self.resizes if resize.at > at]

    def _act(self) -> None:
        # A decision may take several steps (ask, patch, report); the bound stops a loop without end.
        for _ in range(8):
            actions = plan(self.state, Instant(self.now)).actions
            if not actions:
                return
            for action in actions:
                self.take(Started(action))
                if isinstance(action, AskScheduler):
                    self._answer(action)
                else:
                    self._patch(action)

    def _answer(self, ask: AskScheduler) -> None:
        requested = ask.request.resources
        # The scheduler never takes back what a VM has in use.
        mem = (
            requested.mem
            if self.permitted is None
            else min(requested.mem, max(Bytes(self.permitted), self._vm.use.mem))
        )
        unit = ComputeUnit(MilliCpu(1000), Bytes(self.unit))
        self.take(Answered(PluginResponse(Resources(requested.cpu, mem), unit, False)))

    def _patch(self, patch: PatchVm) -> None:
        before, after = self._vm.use.mem.value, patch.target.mem.value
        self._vm = replace(self._vm, use=patch.target, actual=patch.target, version=self._vm.version + 1)
        self.guest.size = float(after)
        self.take(Patched(self._vm))
        if before != after:
            self.resizes.append(PlayedResize(self.now, before, after))

    def take(self, event: Scraped | Started | Answered | Patched) -> None:
        """The agent hears of something."""
        advance(self.state, event, Instant(self.now), 0.0)
