"""A container's control groups as a guest's sample: one for both versions, and every fault is the guest's."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.cgroups import metrics
from agent.cgroups.metrics import CgroupMetrics
from agent.core.events import Fault
from agent.core.guest import CpuSeconds, GuestSample, ObservedSample, rates
from agent.ports import PortError
from protocol.units import Bytes, Instant
from tests.agent.cgroups.trees import CONTAINER, LAYOUTS, MIB, UID, UNLIMITED, Layout, Tree

V1, V2 = Layout(is_v2=False, is_systemd=False), Layout(is_v2=True, is_systemd=True)
BOTH = pytest.mark.parametrize("layout", [V1, V2], ids=str)

OF_V1 = GuestSample(
    cpus={"all": CpuSeconds(busy=12.5, kernel=2.5, cpus=os.cpu_count() or 1)},
    mem_total=Bytes(512 * MIB),
    mem_available=Bytes(312 * MIB),
    mem_free=Bytes(112 * MIB),
    cpu_stall=3.0,
    refaulted=1000.0 * 4096,
    oom_kills=2.0,
)
OF_V2 = replace(OF_V1, cpu_stall=1.5, mem_stall=0.25, io_stall=0.75, read=4096000.0, written=8192000.0)


@pytest.fixture(autouse=True)
def _kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's tick length, in which version 1 counts; it differs between machines."""
    monkeypatch.setattr(metrics, "_TICK", 0.01)


def metrics_of(tree: Tree) -> CgroupMetrics:
    return CgroupMetrics(tree.root, UID, CONTAINER)


async def outcome_of(source: CgroupMetrics) -> GuestSample | PortError:
    try:
        return await source.scrape()
    except PortError as error:
        return error


async def failure(source: CgroupMetrics) -> str:
    with pytest.raises(PortError) as error:
        await source.scrape()
    assert error.value.fault is Fault.GUEST
    return error.value.reason


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
async def test_sample(layout: Layout, tmp_path: Path) -> None:
    """Of 400 MiB used, 200 MiB are file cache; the shared memory among the rest counts as used."""
    source = metrics_of(Tree(tmp_path, layout).make())
    assert await source.scrape() == (OF_V2 if layout.is_v2 else OF_V1)
    source.close()
    assert (await source.scrape()).mem_used == Bytes(200 * MIB)


@BOTH
async def test_rates_of_all_cpus_together(layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One counter covers eight CPUs: five busy cores are five, and nothing is unknown."""
    monkeypatch.setattr(metrics, "_CPUS", 8)
    tree = Tree(tmp_path, layout).make()
    source = metrics_of(tree)
    before = ObservedSample(await source.scrape(), Instant(0.0))
    if layout.is_v2:
        tree.write("cpu.stat", "usage_usec 17500000\nuser_usec 14000000\nsystem_usec 3500000\n")
    else:
        tree.write("cpuacct.usage", "17500000000\n")
        tree.write("cpuacct.stat", "user 1400\nsystem 350\n")
    over = rates(before, ObservedSample(await source.scrape(), Instant(1.0)), 1)
    assert (over.busy, over.kernel, over.unknown, over.is_partial) == (5.0, 1.0, 0.0, False)


@BOTH
async def test_limit_in_force(layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The container's, otherwise its pod's, otherwise the memory of the node."""
    monkeypatch.setattr(metrics, "_NODE", 2048 * MIB)
    tree = Tree(tmp_path, layout).make()
    name, none = ("memory.max", "max\n") if layout.is_v2 else ("memory.limit_in_bytes", UNLIMITED)
    tree.write(name, f"{768 * MIB}\n", of_pod=True)
    assert (await metrics_of(tree).scrape()).mem_total == Bytes(512 * MIB)
    tree.write(name, none)
    assert (await metrics_of(tree).scrape()).mem_total == Bytes(768 * MIB)
    tree.write(name, none, of_pod=True)
    sample = await metrics_of(tree).scrape()
    assert (sample.mem_total, sample.mem_used) == (Bytes(2048 * MIB), Bytes(200 * MIB))


@BOTH
async def test_limit_below_use(layout: Layout, tmp_path: Path) -> None:
    """For a moment the kernel may show more used than the limit, and more cache than is used."""
    tree = Tree(tmp_path, layout).make()
    tree.write("memory.current" if layout.is_v2 else "memory.usage_in_bytes", f"{600 * MIB}\n")
    sample = await metrics_of(tree).scrape()
    assert (sample.mem_free, sample.mem_available) == (Bytes(0), Bytes(200 * MIB))


async def test_kill_outlives_its_container(tmp_path: Path) -> None:
    """Version 2 kills the whole container and removes its group; the pod still counts the kill for the next
    container.
    """
    tree = Tree(tmp_path, V2).make()
    source = metrics_of(tree)
    await source.scrape()
    shutil.rmtree(tree.file("cpu.stat").parent)
    assert "No such file or directory" in await failure(source)
    assert "no cgroup found for container" in await failure(source)
    tree.make()
    tree.write("memory.events", "low 0\nhigh 0\nmax 99\noom 3\noom_kill 3\n", of_pod=True)
    tree.write("cpu.stat", "usage_usec 1000\nuser_usec 1000\nsystem_usec 0\nnr_throttled 0\n")
    sample = await source.scrape()
    assert (sample.oom_kills, sample.cpus["all"].busy, sample.boot_time) == (3.0, 0.001, None)


async def test_kills_of_another_container_do_not_count(tmp_path: Path) -> None:
    """A sidecar that exceeds its own limit again and again must not make postgres grow."""
    tree, seen = Tree(tmp_path, V2).make(), []
    source = metrics_of(tree)
    for of_pod, own in ((7, 2), (9, 2), (10, 3), (14, 3)):
        tree.write("memory.events", f"oom_kill {of_pod}\n", of_pod=True)
        tree.write("memory.events", f"oom_kill {own}\n")
        seen.append((await source.scrape()).oom_kills)
    assert seen == [7.0, 7.0, 8.0, 8.0]


OPTIONAL = {
    "cpu.pressure": {"cpu_stall": 3.0},  # by the quota, as in version 1
    "memory.pressure": {"mem_stall": None},
    "io.pressure": {"io_stall": None},
    "io.stat": {"read": None, "written": None},
}


@pytest.mark.parametrize("name", OPTIONAL)
async def test_kernel_without_pressure(name: str, tmp_path: Path) -> None:
    tree = Tree(tmp_path, V2).make()
    expected = replace(OF_V2, **OPTIONAL[name])  # type: ignore[arg-type]
    tree.file(name).unlink()
    assert await metrics_of(tree).scrape() == expected


@pytest.mark.parametrize("stat", ["workingset_refault 1000\n", ""])
async def test_older_kernels_count_other_refaults(stat: str, tmp_path: Path) -> None:
    tree = Tree(tmp_path, V2).make()
    tree.write("memory.stat", f"inactive_file 0\nactive_file 0\n{stat}")
    assert (await metrics_of(tree).scrape()).refaulted == (1000.0 * 4096 if stat else None)


FILES = [
    *((V1, name) for name in ("cpuacct.usage", "cpuacct.stat", "cpu.stat", "memory.oom_control")),
    *((V1, name) for name in ("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.stat")),
    *((V2, name) for name in ("cpu.stat", "memory.current", "memory.max", "memory.stat")),
]


@pytest.mark.parametrize(("layout", "name"), FILES, ids=str)
async def test_file_that_is_gone(layout: Layout, name: str, tmp_path: Path) -> None:
    """The next scrape locates the group again."""
    tree = Tree(tmp_path, layout).make()
    source = metrics_of(tree)
    await source.scrape()
    text = tree.file(name).read_text()
    tree.file(name).unlink()
    assert f"{name}'" in await failure(source)
    tree.write(name, text)
    assert await source.scrape() == (OF_V2 if layout.is_v2 else OF_V1)


MALFORMED = [*FILES, *((V2, name) for name in OPTIONAL)]


@pytest.mark.parametrize("text", ["", "nonsense\n", "some", "usage_usec -1", "1:0 rbytes=x", "9" * 100_000])
@pytest.mark.parametrize(("layout", "name"), MALFORMED, ids=str)
async def test_file_that_is_malformed(layout: Layout, name: str, text: str, tmp_path: Path) -> None:
    """For any file content, the scrape either reads a number or fails and blames the guest."""
    tree = Tree(tmp_path, layout).make()
    tree.write(name, text)
    outcome = await outcome_of(metrics_of(tree))
    assert isinstance(outcome, GuestSample) or (outcome.fault, name in outcome.reason) == (Fault.GUEST, True)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (errno.EOPNOTSUPP, replace(OF_V2, cpu_stall=3.0, mem_stall=None, io_stall=None)),
        (errno.EACCES, None),
    ],
)
async def test_refused_pressure(
    code: int, outcome: GuestSample | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels with pressure switched off have its files, and refuse them; any other refusal is a fault."""
    tree, opened = Tree(tmp_path, V2).make(), os.open

    def refusing(path: Path, flags: int) -> int:
        if path.name.endswith(".pressure"):
            raise OSError(code, os.strerror(code), str(path))
        return opened(path, flags)

    monkeypatch.setattr(os, "open", refusing)
    source = metrics_of(tree)
    if outcome is not None:
        assert await source.scrape() == outcome
    else:
        assert "Permission denied" in await failure(source)


@pytest.mark.parametrize(("uid", "container"), [("../..", CONTAINER), (UID, "../.."), (UID, "")])
async def test_names_are_checked(uid: str, container: str, tmp_path: Path) -> None:
    tree = Tree(tmp_path, V2).make()
    assert "expected" in await failure(CgroupMetrics(tree.root, uid, container))
