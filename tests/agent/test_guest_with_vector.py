"""A VM of an image whose exporter is vector: no boot time, no run queue, no pressure, and it scales all the same."""

from __future__ import annotations

from agent.adapters.exposition import read_sample
from agent.core.guest import GuestSample
from tests.agent.core.story import GIB, cu
from tests.agent.fake_ports import RunnerFixture


class VectorGuest:
    """A guest of four CPUs of which ``cores`` are busy, as vector tells it."""

    def __init__(self, fixture: RunnerFixture) -> None:
        self.cores = 0.0
        self._fixture = fixture
        self._busy, self._at = 0.0, 0.0

    async def scrape(self) -> GuestSample:
        now = self._fixture.clock.now()
        self._busy, self._at = self._busy + self.cores * (now - self._at), now
        cpus = "".join(
            f'host_cpu_seconds_total{{collector="cpu",cpu="{cpu}",host="pg",mode="user"}} {self._busy / 4}\n'
            for cpu in range(4)
        )
        rest = (
            f'host_load1{{collector="load",host="pg"}} {self.cores} 1700000000000\n'
            f'host_memory_total_bytes{{collector="memory",host="pg"}} {64 * GIB} 1700000000000\n'
            f'host_memory_available_bytes{{collector="memory",host="pg"}} {64 * GIB} 1700000000000\n'
        )
        return read_sample((cpus + rest).encode())


async def test_a_vm_whose_image_has_vector_grows_with_its_load_and_shrinks_again() -> None:
    fixture = RunnerFixture()
    guest = VectorGuest(fixture)
    fixture.guest.scrape = guest.scrape  # type: ignore[method-assign]
    async with fixture:
        await fixture.clock.advance(1.0)
        guest.cores = 0.25
        await fixture.clock.advance(1.0)
        assert fixture.vm_api.found.use == cu(2)
        guest.cores = 0.0
        await fixture.clock.advance(10.0)
        assert fixture.vm_api.found.use == cu(1)
