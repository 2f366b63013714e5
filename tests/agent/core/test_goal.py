"""From two pages of metrics to a need, in named parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from agent.core.goal import NO_GOAL, Goal, Part, goal, is_calm
from agent.core.guest import NO_RATES, CpuSeconds, GuestSample, ObservedSample, Rates, rates
from agent.core.policy import CpuPolicy, MemoryPolicy, Policy
from protocol.units import Bytes, Instant, MilliCpu, Resources

GIB = 1024**3
MIB = 1024**2
POLICY = Policy(cpu=CpuPolicy(target=0.5, pressure_deadband=0.1, reach=3.0), memory=MemoryPolicy(target=0.75))
ONE = Resources(MilliCpu(1000), Bytes(4 * GIB))
QUIET = GuestSample(mem_total=Bytes(4 * GIB), mem_available=Bytes(3 * GIB))


def seen(at: float, **fields: object) -> ObservedSample:
    return ObservedSample(structs.replace(GuestSample(boot_time=100.0), **fields), Instant(at))


def parts_of(sample: GuestSample, over: Rates) -> dict[str, MilliCpu | Bytes]:
    return {part.name: part.need for part in goal(sample, over, ONE, POLICY, settling=False).parts}


def test_rates_are_means_over_the_interval() -> None:
    before = seen(10.0, cpus={"0": CpuSeconds(1.0, 0.5, 0.5, 0.5), "1": CpuSeconds(5.0)}, cpu_stall=1.0, mem_stall=2.0)
    after = seen(12.0, cpus={"0": CpuSeconds(2.0, 1.0, 1.0, 1.0), "1": CpuSeconds(6.0)}, cpu_stall=2.0, mem_stall=2.5)
    expected = Rates(busy=1.25, steal=0.25, iowait=0.25, kernel=0.25, cpu_stall=0.5, mem_stall=0.25, span=2.0)
    assert rates(before, after) == expected


def test_cpu_busy_is_capped_at_interval() -> None:
    assert rates(seen(0.0, cpus={"0": CpuSeconds(0.0)}), seen(1.0, cpus={"0": CpuSeconds(9.0)})).busy == 1.0


def test_stall_is_never_more_than_the_whole_interval() -> None:
    assert rates(seen(0.0, cpu_stall=0.0), seen(1.0, cpu_stall=1.2)).cpu_stall == 1.0


@pytest.mark.parametrize(
    "before",
    [
        None,
        seen(-40.0, cpus={"0": CpuSeconds(0.0)}),
        seen(0.0, cpus={"0": CpuSeconds(0.0)}),
        seen(-1.0, boot_time=50.0, cpus={"0": CpuSeconds(0.0)}),
    ],
    ids=["the first sample", "too long ago", "at the same moment", "another boot"],
)
def test_samples_that_cannot_be_compared_give_no_rates(before: ObservedSample | None) -> None:
    assert rates(before, seen(0.0, cpus={"0": CpuSeconds(1.0)})) == NO_RATES


def test_clock_change_is_no_reboot() -> None:
    cpus = {"0": CpuSeconds(0.0)}
    assert rates(seen(0.0, cpus=cpus), seen(1.0, boot_time=104.0, cpus=cpus)).busy == 0.0
    assert rates(seen(0.0, boot_time=None, cpus=cpus), seen(1.0, cpus=cpus)).busy == 0.0


def test_trusts_exporter_timestamps_unless_clock_set() -> None:
    before = seen(10.0, cpus={"0": CpuSeconds(0.0)}, stamp=500.0)
    after = {"0": CpuSeconds(1.0)}
    assert rates(before, seen(11.0, cpus=after, stamp=502.0)).span == 2.0
    assert rates(before, seen(11.0, cpus=after, stamp=503.5)).span == 1.0
    assert rates(before, seen(11.0, cpus=after, stamp=497.0)).span == 1.0
    held = replace(before, again=Instant(24.0))
    assert rates(held, seen(25.0, cpus=after, stamp=513.5)).span == 13.5
    assert rates(held, seen(25.0, cpus=after, stamp=503.5)).span == 15.0
    assert rates(before, seen(25.0, cpus=after)).span == 15.0


def test_counters_that_fell_give_no_share() -> None:
    found = rates(seen(0.0, cpu_stall=5.0), seen(1.0, cpu_stall=1.0))
    assert found.cpu_stall is None
    assert found.lost == {"cpu_stall"}


def test_without_rates_and_memory_nothing_is_known() -> None:
    assert goal(GuestSample(), NO_RATES, ONE, POLICY, settling=False) == NO_GOAL
    assert NO_GOAL.need is None
    assert NO_GOAL.at_least == Resources(MilliCpu(0), Bytes(0))


def test_busy_cpu_meets_target_share() -> None:
    found = goal(QUIET, Rates(busy=0.6, steal=0.1), ONE, POLICY, settling=False)
    assert found.parts[0] == Part("cpu busy", MilliCpu(1200), "0.60 cores busy, 0.10 of it steal, target 50%")
    assert found.need == Resources(MilliCpu(1200), Bytes(found.mem.value if found.mem else 0))


@pytest.mark.parametrize(("busy", "need"), [(0.2, None), (0.3, None), (0.5, 2000), (0.7, 3400)])
def test_waiting_counts_by_busy_share(busy: float, need: int | None) -> None:
    found = parts_of(QUIET, Rates(busy=busy, cpu_stall=1.0)).get("cpu waiting")
    assert found == (None if need is None else MilliCpu(need))


def test_waiting_within_the_deadband_is_no_evidence() -> None:
    assert "cpu waiting" not in parts_of(QUIET, Rates(busy=0.6, cpu_stall=0.1))


@pytest.mark.parametrize(
    ("runnable", "need"),
    [(None, 4000), (2.0, 4000), (3.0, 6000), (50.0, 8000)],
    ids=["queue unknown: once again as much", "a short queue", "the queue's length", "no further than the reach"],
)
def test_waiting_reaches_beyond_what_is_busy(runnable: float | None, need: int) -> None:
    sample = structs.replace(QUIET, runnable=runnable)
    assert parts_of(sample, Rates(busy=1.0, cpu_stall=1.0))["cpu waiting"] == MilliCpu(need)


def test_load_step_takes_two_decisions() -> None:
    """Four tasks that never sleep, on a quarter of a CPU."""
    sample, has, sizes = structs.replace(QUIET, runnable=5.0), 250, []
    for _ in range(2):
        over = Rates(busy=has / 1000, cpu_stall=1.0 - has / 8000)
        need = goal(sample, over, Resources(MilliCpu(has), Bytes(GIB)), Policy(), settling=False).cpu
        assert need is not None
        has = need.value
        sizes.append(has)
    assert sizes[0] >= 1000
    assert sizes[1] >= 4000


def test_load_average_needs_missing_psi_and_saturation() -> None:
    loaded = structs.replace(QUIET, load1=3.0)
    assert parts_of(loaded, Rates(busy=0.95))["cpu waiting"] == MilliCpu(3900)
    assert parts_of(structs.replace(QUIET, load1=1.25), Rates(busy=1.0))["cpu waiting"] == MilliCpu(2500)
    for sample, busy in (
        (loaded, 0.5),
        (structs.replace(QUIET, load1=None), 1.0),
        (structs.replace(QUIET, load1=0.5), 1.0),
    ):
        assert "cpu waiting" not in parts_of(sample, Rates(busy=busy))


@pytest.mark.parametrize(
    ("usage", "units"),
    [(751619276, 1), (806354944, 2), (3328599654, 5)],
    ids=["0.70 GiB used at 0.75 target", "one MiB more", "3.1 GiB used"],
)
def test_used_memory_meets_target_share(usage: int, units: int) -> None:
    """The worked cases count the kernel's allowance as usage already."""
    used = usage - 100 * MIB
    sample = GuestSample(mem_total=Bytes(8 * GIB), mem_available=Bytes(8 * GIB - used))
    need = goal(sample, NO_RATES, ONE, POLICY, settling=False).mem
    assert need is not None
    assert need.units_up(Bytes(GIB)) == units


def test_more_available_than_total_is_nothing_in_use() -> None:
    assert GuestSample(mem_total=Bytes(1), mem_available=Bytes(2)).mem_used == Bytes(0)


def test_memory_stall_grows_one_step() -> None:
    found = parts_of(QUIET, Rates(mem_stall=0.2))
    assert found["memory waiting"] == Bytes(5 * GIB)
    assert "memory waiting" not in parts_of(QUIET, Rates(mem_stall=0.05))


def test_goal_is_greatest_part_per_resource() -> None:
    over = Rates(busy=1.0, cpu_stall=1.0, mem_stall=0.5)
    found = goal(structs.replace(QUIET, runnable=9.0), over, ONE, POLICY, settling=False)
    assert isinstance(found, Goal)
    assert (found.cpu, found.mem) == (MilliCpu(8000), Bytes(5 * GIB))


@pytest.mark.parametrize(
    ("has", "runnable", "counts"),
    [
        (1000, None, False),
        (1000, 1.0, False),
        (1000, 2.0, False),
        (1000, 3.0, True),
        (250, 2.0, False),
        (250, 3.0, True),
    ],
)
def test_after_shrink_waiting_needs_runnable_tasks(has: int, runnable: float | None, counts: bool) -> None:
    size, over = Resources(MilliCpu(has), Bytes(4 * GIB)), Rates(busy=0.9 * has / 1000, cpu_stall=1.0)
    found = goal(structs.replace(QUIET, runnable=runnable), over, size, POLICY, settling=True)
    assert any(part.name == "cpu waiting" and part.need for part in found.parts) == counts


def test_after_shrink_load_average_still_counts() -> None:
    found = goal(structs.replace(QUIET, load1=2.0), Rates(busy=0.95), ONE, POLICY, settling=True)
    assert found.cpu == MilliCpu(3900)


@pytest.mark.parametrize(("free_mib", "counts"), [(3 * 1024, False), (1200, False), (1024, True), (100, True)])
def test_after_shrink_memory_stall_needs_full_memory(free_mib: int, counts: bool) -> None:
    sample = structs.replace(QUIET, mem_available=Bytes(free_mib * MIB))
    found = goal(sample, Rates(busy=0.0, mem_stall=0.5), ONE, POLICY, settling=True)
    assert any(part.name == "memory waiting" and part.need for part in found.parts) == counts


@pytest.mark.parametrize(
    ("over", "counts"),
    [
        (Rates(busy=0.8, kernel=0.8), 0.0),
        (Rates(busy=0.8, kernel=0.7), 0.2),
        (Rates(busy=0.8, kernel=0.4), 0.8),
        (Rates(busy=0.8, kernel=0.1), 0.8),
        (Rates(busy=0.8, kernel=0.0), 0.8),
        (Rates(busy=0.8), 0.8),
        (Rates(busy=0.8, steal=0.8, kernel=0.1), 0.0),
        (Rates(busy=0.8, steal=0.4, kernel=0.3), 0.4),
        (Rates(busy=0.8, steal=0.8), 0.8),
    ],
    ids=[
        "the kernel's alone",
        "hardly anything of programs",
        "half of it the programs'",
        "most of it the programs'",
        "all of it the programs'",
        "whose is not known",
        "programs never came to run",
        "stolen from both alike",
        "all of it stolen",
    ],
)
def test_after_shrink_kernel_time_counts_with_programs(over: Rates, counts: float) -> None:
    found = goal(QUIET, over, ONE, POLICY, settling=True)
    assert found.cpu == MilliCpu.cores(counts / 0.5)
    assert found.possible.cpu == MilliCpu(1600)
    assert goal(QUIET, over, ONE, POLICY, settling=False).cpu == MilliCpu(1600)


def test_after_shrink_waiting_counts_by_program_time() -> None:
    sample, waiting = structs.replace(QUIET, runnable=5.0), Rates(busy=1.0, kernel=0.9, cpu_stall=1.0)
    found = {part.name: part for part in goal(sample, waiting, ONE, POLICY, settling=True).parts}
    assert found["cpu busy"] == Part(
        "cpu busy",
        MilliCpu(400),
        "1.00 cores busy, target 50%; not 2, because noise after a shrink is ignored",
    )
    assert found["cpu waiting"] == Part(
        "cpu waiting",
        MilliCpu(0),
        "tasks waited 100% of the time, 5 runnable; not 8, because noise after a shrink is ignored",
    )


@pytest.mark.parametrize(
    ("over", "calm"),
    [
        (Rates(busy=0.1, kernel=0.1), True),
        (Rates(busy=0.3, kernel=0.25), False),
        (Rates(busy=0.9, kernel=0.45), True),
        (Rates(busy=0.9), True),
        (Rates(busy=0.1, cpu_stall=0.1, mem_stall=0.05), True),
        (Rates(busy=0.1, cpu_stall=0.2), False),
        (Rates(busy=0.1, mem_stall=0.1), False),
        (NO_RATES, False),
    ],
)
def test_calm_needs_no_kernel_work_or_waits(over: Rates, calm: bool) -> None:
    assert is_calm(over, ONE, POLICY) == calm


CORES = st.floats(0.0, 4.0)
SHARE = st.floats(0.0, 1.0)
SAMPLES = st.builds(
    lambda runnable, free: structs.replace(QUIET, runnable=runnable, mem_available=Bytes(free * MIB)),
    st.none() | st.floats(0.0, 9.0),
    st.integers(0, 4 * 1024),
)
INTERVALS = st.builds(Rates, busy=CORES, steal=CORES, kernel=CORES, cpu_stall=SHARE, mem_stall=SHARE)


@given(SAMPLES, INTERVALS)
def test_after_shrink_ignored_need_is_kept(sample: GuestSample, over: Rates) -> None:
    later, soon = (goal(sample, over, ONE, POLICY, settling=settling) for settling in (False, True))
    assert later.need is not None
    assert soon.need is not None
    assert soon.need.within(later.need)
    assert soon.possible == later.need
    assert soon.need == Resources(
        max(part.need for part in soon.parts if isinstance(part.need, MilliCpu)),
        max(part.need for part in soon.parts if isinstance(part.need, Bytes)),
    )
