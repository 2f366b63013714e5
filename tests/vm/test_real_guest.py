"""A real guest in QEMU: it follows orders while its database serves, on every kind of network (S4.1, S4.2, S4.11)."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from deploy.neonvm.network import netns
from deploy.neonvm.network.chooser import NetworkKind
from deploy.neonvm.ports import GuestPhase, GuestState
from protocol.units import Bytes, MilliCpu
from tests.vm.guests import (
    MIB,
    SETTLE_SECONDS,
    Booted,
    booted,
    cluster_of,
    has_memory,
    machines,
    until,
    until_running,
)

pytestmark = pytest.mark.vm


async def shows_memory(vm: Booted, mem: int) -> bool:
    """Return True if the kernel counts this many MiB; it counts new memory a moment after QEMU."""
    total = (await vm.scrape("meminfo"))["node_memory_MemTotal_bytes"]
    return (mem - 64) * MIB < total <= mem * MIB


@pytest.mark.parametrize("kind", [NetworkKind.AUTO, NetworkKind.HUB])
async def test_resizes_under_pgbench_fail_no_transaction(kind: NetworkKind, tmp_path: Path) -> None:
    async with booted(kind, tmp_path) as vm:
        await vm.pgbench("--initialize", "--quiet", "--scale=1")
        load = asyncio.create_task(vm.pgbench("--client=4", "--time=20"))
        for cpu in (4000, 2500, 250, 1000):
            await vm.guest.set_cpu(MilliCpu(cpu))
            assert (await vm.guest.state()).cpu == MilliCpu(cpu)
            online = {name for name in await vm.scrape("cpu") if 'mode="idle"' in name}
            assert len(online) == MilliCpu(cpu).whole_cpus
        for mem in (1024, 384, 512):
            await has_memory(vm.guest, Bytes(mem * MIB))
            await until(partial(shows_memory, vm, mem), SETTLE_SECONDS, vm.guest)
        said = await load
        assert "number of failed transactions: 0 (0.000%)" in said
        assert vm.place.guest_host in vm.place.metrics_url


@pytest.mark.parametrize("ratio", [48, 512])
async def test_growth_far_beyond_boot_memory(ratio: int, tmp_path: Path) -> None:
    """A guest of 256 MiB is given 48 times as much at once, and the 512 times to which a VirtualMachine may go.

    The kernel needs 1/64 of new memory to describe it, of the memory that it may use itself. If only the boot memory
    were that, the database would be killed at some forty times.
    """
    async with booted(NetworkKind.AUTO, tmp_path, mem_max=256 * ratio, mem_use=256) as vm:
        await vm.pgbench("--initialize", "--quiet", "--scale=1")
        load = asyncio.create_task(vm.pgbench("--client=4", "--time=20"))
        await has_memory(vm.guest, Bytes(256 * ratio * MIB))
        assert "number of failed transactions: 0 (0.000%)" in await load
        assert (await vm.scrape("vmstat"))["node_vmstat_oom_kill"] == 0
        await has_memory(vm.guest, Bytes((256 * ratio - 1024) * MIB))


async def test_guest_exports_all_needed_metrics(tmp_path: Path) -> None:
    async with booted(NetworkKind.AUTO, tmp_path) as vm:
        samples = await vm.scrape("cpu", "loadavg", "meminfo", "pressure", "vmstat")
        wanted = {
            "node_load1",
            "node_load5",
            "node_load15",
            "node_memory_MemAvailable_bytes",
            "node_memory_MemFree_bytes",
            "node_vmstat_pgpgin",
            "node_vmstat_pgpgout",
            "node_vmstat_workingset_refault_anon",
            "node_vmstat_workingset_refault_file",
            "node_pressure_cpu_waiting_seconds_total",
            "node_pressure_memory_waiting_seconds_total",
            "node_pressure_io_waiting_seconds_total",
            'node_cpu_seconds_total{cpu="0",mode="user"}',
        }
        assert wanted <= set(samples)


async def test_stopped_guest_restarts_on_its_disk(tmp_path: Path) -> None:
    async with booted(NetworkKind.AUTO, tmp_path) as vm:
        await vm.pgbench("--initialize", "--quiet", "--scale=1")
        await vm.guest.stop()
        assert await vm.guest.state() == GuestState(GuestPhase.STOPPED, MilliCpu(0), Bytes(0))
        assert machines(tmp_path) == []
        await vm.guest.start()
        await until_running(vm.guest)
        assert "number of failed transactions: 0" in await vm.pgbench("--client=1", "--transactions=5")
    assert machines(tmp_path) == []
    assert list(netns.RUN.glob(f"autoscale.{cluster_of(tmp_path)}.*")) == []
