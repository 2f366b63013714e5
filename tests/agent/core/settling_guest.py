"""A guest that is busy after a shrink, and its agent, whose requests are granted and applied at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from agent.core.actions import PatchVm, RequestPermit
from agent.core.events import Patched, SchedulerAnswered, Scraped
from agent.core.guest import CpuSeconds, GuestSample
from agent.core.policy import Policy
from protocol.messages import PluginResponse
from protocol.units import Bytes, Resources
from tests.agent.core.story import GIB, UNIT, Story, vm

CPUS = 8
LOOK = 1.02
"""Seconds from one look at the guest to the next."""
IDLE = 0.05
"""Cores that an idle guest's programs want."""
USED = Bytes(GIB // 5)
"""The memory that is always in use."""


@dataclass(frozen=True)
class Second:
    """Metrics of one sample: cores kept busy by programs and by the kernel, tasks, and stalls."""

    programs: float
    kernel: float
    runnable: float
    cpu_stall: float
    mem_stall: float


@dataclass
class Guest:
    """For ``noise`` seconds after each shrink the kernel keeps all CPUs busy and everything waits for it.

    A fifth of what programs do is work that the kernel does for them.
    """

    policy: Policy
    size: Resources
    noise: float = 0.0
    sizes: list[Resources] = field(default_factory=list)
    _until: float = 0.0
    _sample: GuestSample = field(default_factory=lambda: GuestSample(cpu_stall=0.0, mem_stall=0.0))

    def __post_init__(self) -> None:
        self.story = Story(self.policy).sees(vm(self.size, high=16))
        self.sizes.append(self.size)
        self.look()

    def looks(self, seconds: float, programs: float = IDLE) -> Guest:
        """Sample the guest for this many seconds."""
        for _ in range(round(seconds / LOOK)):
            self.look(programs)
        return self

    def look(self, programs: float = IDLE) -> Guest:
        """The next sample of a guest whose programs want this many cores, and what its agent does."""
        noisy = max(0.0, min(LOOK, self._until - self.story.now)) / LOOK
        cores = self.size.cpu.as_cores
        ran = min(programs, cores)
        wanted = programs + noisy * CPUS
        return self.shows(
            Second(
                programs=0.8 * ran,
                kernel=0.2 * ran + noisy * (cores - ran),
                runnable=1.0 + wanted,
                cpu_stall=max(noisy, 1.0 - cores / max(wanted, cores)),
                mem_stall=noisy,
            )
        )

    def shows(self, second: Second) -> Guest:
        """The next sample is ``second``. Returns what the agent does."""
        story, before = self.story.at(self.story.now + LOOK), self._sample
        cpu = before.cpus.get("0", CpuSeconds(0.0))
        busy, kernel = LOOK * (second.programs + second.kernel) / CPUS, LOOK * second.kernel / CPUS
        now = CpuSeconds(cpu.busy + busy, kernel=cpu.kernel + kernel)
        self._sample = GuestSample(
            cpus={str(number): now for number in range(CPUS)},
            runnable=second.runnable,
            load1=second.runnable,
            mem_total=self.size.mem,
            mem_available=self.size.mem - USED,
            cpu_stall=(before.cpu_stall or 0.0) + LOOK * second.cpu_stall,
            mem_stall=(before.mem_stall or 0.0) + LOOK * second.mem_stall,
        )
        story.happens(Scraped(self._sample))
        while actions := story.acts():
            for action in actions:
                if isinstance(action, RequestPermit):
                    story.happens(SchedulerAnswered(PluginResponse(action.request.resources, UNIT)))
                elif isinstance(action, PatchVm):
                    self._obeys(action)
        return self

    def _obeys(self, patch: PatchVm) -> None:
        seen = self.story.state.vm.observed
        assert seen is not None
        if not self.size.within(patch.target):
            self._until = self.story.now + self.noise
        self.size = patch.target
        self.sizes.append(self.size)
        self.story.happens(Patched(replace(seen, use=self.size, actual=self.size, version=seen.version + 1)))
