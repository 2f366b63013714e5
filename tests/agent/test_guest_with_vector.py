"""A VM of an image whose exporter is vector: no boot time, no run queue, no pressure, and it scales all the same.

Vector counts by a clock of its own, never quite in time, and shows what it counted last to whoever looks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from agent.adapters.exposition import read_sample
from agent.core.guest import GuestSample
from agent.core.plan import plan
from protocol.units import Resources
from tests.agent.core.story import GIB, cu
from tests.agent.fake_ports import RunnerFixture

CPUS = 4
BOOTED = 1_700_000_000.0
"""The guest's clock when ours is zero."""

JITTER = 0.05


@dataclass
class VectorGuest:
    """A guest whose vector counts every this many seconds until it ``ends``, with time stamps or without."""

    every: float
    is_stamped: bool
    ends: float = math.inf
    loads: list[tuple[float, float]] = field(default_factory=lambda: [(-100.0, 0.0)])

    def load(self, cores: float, at: float) -> None:
        """So many cores are busy from then on."""
        self.loads.append((at, cores))

    def busy(self, at: float) -> float:
        """Seconds of work so far."""
        ends = [*(begin for begin, _ in self.loads[1:]), math.inf]
        return sum(cores * max(0.0, min(end, at) - begin) for (begin, cores), end in zip(self.loads, ends, strict=True))

    def counted_at(self, now: float) -> float:
        """Time of vector's last sample: early every second time, and late in between."""
        now = min(now, self.ends)
        last = math.floor(now / self.every)
        times = (each * self.every + (JITTER if each % 2 else -JITTER) for each in range(last - 1, last + 2))
        return max(each for each in times if each <= now)

    def page(self, now: float) -> bytes:
        """The page at ``now``."""
        at = self.counted_at(now)
        stamp = f" {int((BOOTED + at) * 1000)}" if self.is_stamped else ""
        busy = self.busy(at) / CPUS
        lines = [
            f'host_cpu_seconds_total{{collector="cpu",cpu="{cpu}",host="pg",mode="{mode}"}} {seconds}{stamp}'
            for cpu in range(CPUS)
            for mode, seconds in (("user", busy), ("idle", 1000.0 + at - busy))
        ]
        lines += [
            f'host_load1{{collector="load",host="pg"}} 0.1{stamp}',
            f'host_memory_total_bytes{{collector="memory",host="pg"}} {64 * GIB}{stamp}',
            f'host_memory_available_bytes{{collector="memory",host="pg"}} {64 * GIB}{stamp}',
        ]
        return "\n".join(lines).encode()


KINDS = pytest.mark.parametrize(
    ("every", "is_stamped"),
    [(1.0, True), (1.0, False), (15.0, True), (15.0, False)],
    ids=["every second", "every second, unstamped", "every 15 s", "every 15 s, unstamped"],
)


def scraped(fixture: RunnerFixture, guest: VectorGuest) -> None:
    """``guest`` is the fixture's."""

    async def scrape() -> GuestSample:
        return read_sample(guest.page(fixture.clock.now()))

    fixture.guest.scrape = scrape  # type: ignore[method-assign]


async def sizes(fixture: RunnerFixture, seconds: int) -> list[Resources]:
    """The VM's size after each of these seconds."""
    found = []
    for _ in range(seconds):
        await fixture.clock.advance(1.0)
        found.append(fixture.vm_api.found.use)
    return found


@KINDS
async def test_vector_guest_grows_and_shrinks(every: float, is_stamped: bool) -> None:
    fixture, guest = RunnerFixture(), VectorGuest(every, is_stamped)
    scraped(fixture, guest)
    within = 2 * int(every) + 2
    async with fixture:
        assert set(await sizes(fixture, within)) == {cu(1)}
        guest.load(0.2, fixture.clock.now())
        assert (await sizes(fixture, within))[-1] == cu(2)
        guest.load(0.0, fixture.clock.now())
        assert (await sizes(fixture, within + 8))[-1] == cu(1)


@KINDS
async def test_vector_sampling_keeps_steady_size(every: float, is_stamped: bool) -> None:
    fixture, guest = RunnerFixture(), VectorGuest(every, is_stamped)
    guest.load(0.2, -90.0)
    scraped(fixture, guest)
    async with fixture:
        found = await sizes(fixture, 90)
    assert found == sorted(found, key=lambda size: size.cpu), "it grows once"
    assert set(found) <= {cu(1), cu(2)}
    assert found[-1] == cu(2)


async def test_stalled_vector_counters_expire() -> None:
    fixture, guest = RunnerFixture(), VectorGuest(1.0, is_stamped=True)
    guest.load(0.25, -90.0)
    scraped(fixture, guest)

    def because() -> str:
        return plan(fixture.runner.state, fixture.clock.now()).because

    async with fixture:
        await sizes(fixture, 5)
        guest.ends = fixture.clock.now()
        await sizes(fixture, 28)
        assert because() == "sized for cpu busy"
        await sizes(fixture, 10)
        assert because() == "no metrics: not below its current size"
