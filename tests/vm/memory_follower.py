"""An agent's core that follows a real guest, and says what it does.

The agent's core, its reading of metrics, and the guest are the real ones. The scheduler grants everything at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from msgspec import structs

from agent.adapters.exposition import read_sample
from agent.core.actions import PatchVm, RequestPermit
from agent.core.advance import advance
from agent.core.events import Event, Fault, Patched, SchedulerAnswered, Scraped, ScrapeFailed, Started, VmSeen
from agent.core.explain import explain
from agent.core.plan import plan
from agent.core.policy import Policy
from agent.core.state import State, begin
from agent.core.vm import Vm
from deploy.neonvm.ports import GuestError
from protocol.messages import ObjectName, PluginResponse
from protocol.units import Bytes, ComputeUnit, Instant, Resources, Seconds
from protocol.virtual_machine import Bounds
from tests.vm.memory_guest import CPU, MIB, MemoryGuest

_POD: Final = ObjectName("default", "memory-pod")
_LOOK: Final = Seconds(2.0)


@dataclass(slots=True)
class GuestFollower:
    """The agent's core with a real guest that has all its memory. ``say`` is called with every resize and its
    reason.
    """

    guest: MemoryGuest
    policy: Policy
    say: Callable[[str], None]
    sizes: list[Bytes] = field(default_factory=list)
    """All sizes that it ordered, in their order."""
    state: State = field(init=False)
    _began: Instant = field(init=False)
    _vm: Vm = field(init=False)

    def __post_init__(self) -> None:
        sizes = self.guest.sizes
        size = Resources(CPU, sizes.most)
        self._began = self._now
        self._vm = Vm(Bounds(Resources(CPU, sizes.least), size), size, size, sizes.step, 1)
        self.state = begin(_POD, self.policy, self._now, 0.0, 1)
        self._take(VmSeen(self._vm))

    @property
    def size(self) -> Bytes:
        """The last ordered size; the guest's first if there was none."""
        return self._vm.use.mem

    async def follow(self, seconds: float) -> None:
        """Sample and act for this many seconds."""
        end = self._now + seconds
        while self._now < end:
            await self._look()
            await self._act()
            await self.guest.clock.sleep(_LOOK)

    @property
    def _now(self) -> Instant:
        return self.guest.clock.now()

    async def _look(self) -> None:
        try:
            mem = (await self.guest.guest.state()).mem
        except GuestError:
            return  # a busy guest may not answer in time; it is asked again
        if mem != self._vm.actual.mem:
            self._vm = structs.replace(self._vm, actual=Resources(CPU, mem), version=self._vm.version + 1)
            self._take(VmSeen(self._vm))
        # A busy guest gives memory back bit by bit, so the order is repeated.
        if self._vm.unfinished_shrink or mem < self._vm.use.mem:
            await self.guest.guest.set_memory(self._vm.use.mem)
        page = await self.guest.page()
        self._take(Scraped(read_sample(page)) if page else ScrapeFailed(Fault.GUEST, "no page"))

    async def _act(self) -> None:
        # Each action may lead to the next: a permit to a patch.
        while actions := plan(self.state, self._now).actions:
            for action in actions:
                self._take(Started(action))
                if isinstance(action, RequestPermit):
                    unit = ComputeUnit(CPU, self.guest.sizes.step)
                    self._take(SchedulerAnswered(PluginResponse(action.request.resources, unit, False)))
                elif isinstance(action, PatchVm):
                    await self._patch(action)

    async def _patch(self, patch: PatchVm) -> None:
        before, after = self._vm.use.mem, patch.target.mem
        self._vm = structs.replace(self._vm, use=patch.target, version=self._vm.version + 1)
        self.sizes.append(after)
        self._take(Patched(self._vm))
        change = f"{self._now - self._began:5.0f} s: {before.value // MIB} to {after.value // MIB} MiB"
        self.say("; it ".join((change, *explain(self.state, "default/memory", self._now).working_set)))
        await self.guest.guest.set_memory(after)

    def _take(self, event: Event) -> None:
        advance(self.state, event, self._now, 0.0)
