"""From samples through a recorder's spans, a file, its maintenance and its queries to a bill: sums stay the same.

The other side knows nothing of spans: it adds up raw samples, second by second.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.messages import ObjectName
from scheduler_plugin.history.core.accumulation import Accumulation, SpanPace
from scheduler_plugin.history.core.history_log import Batch
from scheduler_plugin.history.core.samples import DAY, HOUR, MINUTE, SECOND, VmRecord
from scheduler_plugin.history.core.spans import sample_span
from scheduler_plugin.history.costs.bills import bill, key_of
from scheduler_plugin.history.costs.prices import Price, PriceList
from scheduler_plugin.history.ports import Period
from scheduler_plugin.history.sqlite.queries import SqliteHistory
from scheduler_plugin.history.sqlite.store import SqliteStore

BEGAN = 1_767_225_600_000
EVER = Period(0, BEGAN + DAY)
PACE = SpanPace(30 * SECOND, 60 * SECOND, 40 * SECOND)
PRICES = PriceList(Price(Fraction(1), Fraction(1, 10)), {"n2": Price(Fraction(3), Fraction(1, 5))})
GIB = 1024**2

Look = tuple[int, str, str, int, int]
"""Seconds since the look before, the VM, its node, milli-vCPUs and MiB reserved."""

looks = st.lists(
    st.tuples(
        st.integers(1, 90),
        st.sampled_from(("db", "web")),
        st.sampled_from(("n1", "n2")),
        st.integers(0, 8000),
        st.integers(0, 16_000),
    ),
    min_size=2,
    max_size=25,
)


def summed(seen: list[Look]) -> dict[str, tuple[float, float, float]]:
    """vCPU-hours, GiB-hours and money by VM: each second at what was seen before it, unless that is too long ago."""
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    last: dict[str, tuple[int, str, int, int]] = {}
    now = 0
    for later, vm, node, cpu, mem in seen:
        now += later
        if vm in last and now - last[vm][0] <= PACE.gap / SECOND:
            begun, where, vcpus, mib = last[vm]
            for _ in range(begun, now):
                hours = vcpus / 1000 / 3600, mib / 1024 / 3600
                price = (3.0, 0.2) if where == "n2" else (1.0, 0.1)
                for place, amount in enumerate((*hours, hours[0] * price[0] + hours[1] * price[1])):
                    found[vm][place] += amount
        last[vm] = now, node, cpu, mem
    return {vm: (sums[0], sums[1], sums[2]) for vm, sums in found.items()}


def recorded(seen: list[Look]) -> Batch:
    """The history that a recorder writes."""
    spans, now, batch = Accumulation[VmRecord](), BEGAN, Batch()
    for later, vm, node, cpu, mem in seen:
        now += later * SECOND
        row = (*[cpu, mem * 1024] * 4, None, None)
        closed = spans.take(vm, now, VmRecord(ObjectName("default", vm), node), row, PACE)
        batch.vms += [] if closed is None else [closed]
    batch.vms += spans.end()
    return batch


@settings(max_examples=10, deadline=None)
@given(looks, st.sampled_from((0, HOUR, 4 * HOUR, 5 * DAY)))
def test_costs_survive_coarsening(seen: list[Look], later: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.sqlite"
        store = SqliteStore(path, lambda: BEGAN / 1000)
        store.write(recorded(seen))
        store.maintain(BEGAN + later)
        store.close()
        usages = asyncio.run(SqliteHistory(path).usage(EVER))
    found, expected = bill(usages, {}, PRICES, key_of("vm"), EVER), summed(seen)
    assert {name for name, line in found.lines.items() if line.known_hours} == {f"default/{vm}" for vm in expected}
    for vm, sums in expected.items():
        cost = found.lines[f"default/{vm}"].reserved
        assert (float(cost.cpu_hours), float(cost.gib_hours), float(cost.money)) == pytest.approx(sums, rel=1e-3)
    by_node = bill(usages, {}, PRICES, key_of("node"), EVER)
    assert sum((line.reserved.money for line in by_node.lines.values()), Fraction(0)) == found.total.reserved.money


async def test_maintenance_keeps_reserved_with_use(tmp_path: Path) -> None:
    """Of each of ten hours the use is known for the last quarter; the VM is larger in the second half of them."""
    path, spans = tmp_path / "history.sqlite", []
    for at in range(10):
        since, size = BEGAN + at * HOUR, 1000 if at < 5 else 4000
        row = (size, size * 1024) * 4
        spans += [
            sample_span(since, since + 45 * MINUTE, (*row, None, None)),
            sample_span(since + 45 * MINUTE, since + HOUR, (*row, 800, 1024)),
        ]
    store = SqliteStore(path, lambda: 0.0)
    store.write(Batch(vms=[(VmRecord(ObjectName("d", "db")), span) for span in spans]))
    for later in (0, 4 * HOUR, 4 * DAY):
        store.maintain(BEGAN + 10 * HOUR + later)
        (usage,) = await SqliteHistory(path).usage(EVER)
        assert usage.in_use == (25_000 * 15 * MINUTE, 25_000 * 1024 * 15 * MINUTE)
    store.close()
    (part,) = await SqliteHistory(path).usage(Period(BEGAN + 2 * HOUR, BEGAN + 6 * HOUR + 30 * MINUTE))
    assert part.in_use == ((3 * 1000 + 4000 + 2000) * 15 * MINUTE, 9000 * 1024 * 15 * MINUTE)
