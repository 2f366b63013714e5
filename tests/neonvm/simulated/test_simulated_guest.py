"""Simulated guests on the wire: node_exporter's page, load from outside, and the guest port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import httpx2 as httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from deploy.neonvm.network.loopback import LoopbackNetwork
from deploy.neonvm.ports import Guest, GuestError, GuestPhase, GuestState
from deploy.neonvm.simulated.simulated_guest import SimulatedGuests
from deploy.neonvm.simulated.simulated_load import Load
from deploy.neonvm.simulated.simulated_model import SimulatedDatabase
from protocol.units import Bytes, MilliCpu
from tests.neonvm.qemu.fakes import MIB, FakeGuestDaemon, SteppedClock, spec_in
from tests.plain_http import plain_client


class SimulatedGuestFixture:
    """One simulated guest on loopback, and a client in its pod."""

    def __init__(self, guest: Guest, clock: SteppedClock, client: httpx.AsyncClient) -> None:
        self.guest, self.clock, self.client = guest, clock, client

    async def samples(self, *collectors: str) -> dict[str, float]:
        """The page by sample; labels follow the name."""
        page = (await self.client.get("/metrics", params={"collect[]": list(collectors)})).text
        return {
            "".join([sample.name, *(f" {value}" for _, value in sorted(sample.labels.items()))]): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }


@pytest.fixture
async def simulated(tmp_path: Path) -> AsyncIterator[SimulatedGuestFixture]:
    network, clock = LoopbackNetwork("test-simulated", "a test"), SteppedClock()
    await network.up()
    await network.add_node("a")
    spec = spec_in(tmp_path, mem_min=Bytes(512 * MIB))
    place = await network.add_pod("a", spec.pod)
    guests = SimulatedGuests(network, clock, lambda _: Load.constant(0.5, Bytes(128 * MIB)))
    guest = guests.create(spec_in(tmp_path, mem_min=Bytes(512 * MIB), network=place))
    try:
        await guest.start()
        await guest.start()
        async with plain_client(base_url=place.metrics_url.removesuffix("/metrics")) as client:
            yield SimulatedGuestFixture(guest, clock, client)
    finally:
        await guest.stop()
        await network.down()


async def test_a_light_guest_says_what_node_exporter_says(simulated: SimulatedGuestFixture) -> None:
    simulated.clock.instant = 60.0
    samples = await simulated.samples("cpu", "loadavg", "meminfo", "pressure")
    assert {name: value for name, value in samples.items() if "load" in name or "memory_Mem" in name} == {
        "node_load1": pytest.approx(0.316, abs=1e-3),
        "node_load5": pytest.approx(0.0906, abs=1e-3),
        "node_load15": pytest.approx(0.0322, abs=1e-3),
        "node_memory_MemTotal_bytes": 512 * MIB,
        "node_memory_MemFree_bytes": 384 * MIB,
        "node_memory_MemAvailable_bytes": 384 * MIB,
    }
    seconds = {
        name.split()[-1]: value for name, value in samples.items() if name.startswith("node_cpu_seconds_total 0 ")
    }
    assert {mode: value for mode, value in seconds.items() if value} == {
        "idle": 30.0,
        "system": pytest.approx(6.0),
        "user": pytest.approx(24.0),
    }
    assert {name for name in samples if "pressure" in name} == {
        f"node_pressure_{what}_seconds_total"
        for what in ("cpu_waiting", "io_waiting", "io_stalled", "memory_waiting", "memory_stalled")
    }


async def test_default_page_has_all_collectors(simulated: SimulatedGuestFixture) -> None:
    simulated.clock.instant = 5.0
    samples = await simulated.samples()
    assert samples["node_time_seconds"] - samples["node_boot_time_seconds"] == pytest.approx(5.0)
    assert samples["node_procs_running"] == 0.5
    assert "node_load1" in samples


async def test_unknown_collector_is_refused(simulated: SimulatedGuestFixture) -> None:
    answer = await simulated.client.get("/metrics?collect[]=weather")
    assert (answer.status_code, answer.text) == (400, "missing collector: weather\n")


async def test_guest_reports_configured_database(simulated: SimulatedGuestFixture) -> None:
    answers = [(await simulated.client.get("/database")).json()]
    answers.append((await simulated.client.put("/database", json={"standby": True, "sessions": 2})).json())
    assert [(each["standby"], each["streaming"], each["sessions"]) for each in answers] == [
        (False, False, 0),
        (True, False, 2),
    ]
    refused = await simulated.client.put("/database", json={"sessions": 2})
    assert (refused.status_code, refused.text[:8]) == (400, "expected")


def test_guest_with_primary_is_standby() -> None:
    told = SimulatedDatabase.from_kernel_arguments("quiet autoscale.primary=10.100.128.0")
    assert (told.standby, told.streaming, told.lag_seconds) == (True, True, 0.0)


async def test_imposed_load_shows_and_can_end(simulated: SimulatedGuestFixture) -> None:
    answer = await simulated.client.put("/demand", json={"cpu": 3, "mem": "1Gi"})
    assert (answer.status_code, answer.json()) == (200, {"cpu": 3.0, "mem": "1Gi"})
    simulated.clock.instant = 10.0
    samples = await simulated.samples("pressure")
    assert samples["node_pressure_cpu_waiting_seconds_total"] == 10.0
    assert samples["node_pressure_memory_waiting_seconds_total"] == 10.0
    assert (await simulated.client.delete("/demand")).json() == {"cpu": 0.5, "mem": "128Mi"}
    assert (await simulated.client.get("/demand")).json() == {"cpu": 0.5, "mem": "128Mi"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"cpu": "three", "mem": "1Gi"}', "Expected `float`, got `str`"),
        ('{"cpu": 1, "mem": "much"}', "expected a quantity"),
        ('{"cpu": 1}', "missing required field `mem`"),
        ('{"cpu": -1, "mem": "1Gi"}', "cpu must be zero or more"),
        ("", "Input data was truncated"),
    ],
)
async def test_a_demand_that_makes_no_sense_changes_nothing(
    simulated: SimulatedGuestFixture, body: str, message: str
) -> None:
    answer = await simulated.client.put("/demand", content=body)
    assert answer.status_code == 400
    assert message in answer.text
    assert (await simulated.client.get("/demand")).json() == {"cpu": 0.5, "mem": "128Mi"}


async def test_simulated_daemon_matches_real_one(simulated: SimulatedGuestFixture) -> None:
    answers = [(await simulated.client.get(path)) for path in ("/cpu", "/ready", "/shell")]
    assert [(answer.status_code, answer.text.strip()) for answer in answers[:2]] == [(200, "1000"), (200, "ready")]
    assert answers[2].status_code == 404


@pytest.mark.parametrize("noise", [b"\r\n\r\n", b"GET /cpu HTTP/1.1\r\nContent-Length: 9999\r\n\r\n", b"x" * 70_000])
async def test_malformed_request_closes_connection_only(simulated: SimulatedGuestFixture, noise: bytes) -> None:
    reader, writer = await asyncio.open_connection(simulated.client.base_url.host, simulated.client.base_url.port)
    writer.write(noise)
    with suppress(ConnectionResetError):  # the guest may hang up before it has read all of the noise
        assert await reader.read() == b""
    writer.close()
    assert (await simulated.client.get("/ready")).status_code == 200


async def test_guest_returns_memory_as_possible(simulated: SimulatedGuestFixture) -> None:
    await simulated.guest.set_cpu(MilliCpu(2500))
    await simulated.guest.set_memory(Bytes(2048 * MIB))
    assert await simulated.guest.state() == GuestState(GuestPhase.RUNNING, MilliCpu(2500), Bytes(2048 * MIB))
    await simulated.client.put("/demand", json={"cpu": 0, "mem": "1Gi"})
    await simulated.guest.set_memory(Bytes(512 * MIB))
    assert (await simulated.guest.state()).mem == Bytes(1024 * MIB)
    await simulated.client.delete("/demand")
    assert (await simulated.guest.state()).mem == Bytes(512 * MIB)


async def test_sizes_out_of_bounds_are_refused(simulated: SimulatedGuestFixture) -> None:
    for cpu in (MilliCpu(0), MilliCpu(4001)):
        with pytest.raises(GuestError, match="above zero and at most 4"):
            await simulated.guest.set_cpu(cpu)
    for mem in (Bytes(511 * MIB), Bytes(2049 * MIB)):
        with pytest.raises(GuestError, match="between 512Mi and 2Gi"):
            await simulated.guest.set_memory(mem)


async def test_injected_failure_ends_guest_with_reason(simulated: SimulatedGuestFixture) -> None:
    ended = asyncio.ensure_future(simulated.guest.ended())
    answer = await simulated.client.post("/fail", content="internal-error: a test")
    assert (answer.status_code, await ended) == (200, "internal-error: a test")
    assert await simulated.guest.state() == GuestState(GuestPhase.STOPPED, MilliCpu(0), Bytes(0))
    with pytest.raises(httpx.TransportError):
        await simulated.client.get("/ready")
    await simulated.guest.start()
    assert (await simulated.client.get("/ready")).status_code == 200
    ended = asyncio.ensure_future(simulated.guest.ended())
    await simulated.client.post("/fail")
    assert await ended == "failed by request"


async def test_stopped_guest_has_ended_new_one_not(simulated: SimulatedGuestFixture, tmp_path: Path) -> None:
    ended = asyncio.ensure_future(simulated.guest.ended())
    await simulated.guest.stop()
    assert await ended == "it was stopped"
    never = SimulatedGuests(FakeGuestDaemon(), SteppedClock(), lambda _: Load.constant(0, Bytes(0)))
    with pytest.raises(GuestError, match="default/db: the guest was not started"):
        await never.create(spec_in(tmp_path)).ended()


async def test_stopped_guest_does_not_answer(simulated: SimulatedGuestFixture) -> None:
    await simulated.guest.stop()
    await simulated.guest.stop()
    assert await simulated.guest.state() == GuestState(GuestPhase.STOPPED, MilliCpu(0), Bytes(0))
    with pytest.raises(GuestError, match="default/db: the guest has stopped"):
        await simulated.guest.set_cpu(MilliCpu(1000))
    with pytest.raises(httpx.TransportError):
        await simulated.client.get("/ready")


async def test_a_guest_that_cannot_listen_does_not_run(tmp_path: Path) -> None:
    guests = SimulatedGuests(FakeGuestDaemon(), SteppedClock(), lambda _: Load.constant(0, Bytes(0)))
    guest = guests.create(spec_in(tmp_path))
    with pytest.raises(GuestError, match=r"cannot listen at 10\.100\.1\.0: nothing listens"):
        await guest.start()
    assert (await guest.state()).phase is GuestPhase.STOPPED
    assert guests.description == "simulated guests (a simulated load, with node_exporter's metrics)"
