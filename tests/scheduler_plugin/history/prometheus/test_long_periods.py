"""A week from a Prometheus is as exact as an hour, in questions of a bounded size."""

from __future__ import annotations

from collections.abc import Iterable
from unittest.mock import patch

import numpy as np
import pytest

from protocol.messages import ObjectName
from scheduler_plugin.history.core.samples import COLUMN_INDEX, DAY, HOUR, MINUTE, SECOND, Size
from scheduler_plugin.history.ports import Period
from scheduler_plugin.history.prometheus import expressions
from scheduler_plugin.history.prometheus.queries import PrometheusHistory
from tests.scheduler_plugin.history.prometheus.fake_prometheus import FakePrometheus, Times, Values

EVERY = 15 * SECOND
BEGIN = 20_000 * DAY
WEEK = Period(BEGIN, BEGIN + 7 * DAY)
DB, WEB = ObjectName("default", "db"), ObjectName("shop", "w.b")
RESERVED = COLUMN_INDEX["reserved_cpu"]
GIB = 1024**3


def of_cron(times: Times) -> Values:
    """4 vCPUs for 75 s of every five minutes, from the second scrape on, and a half of one else."""
    phase = times % (5 * MINUTE)
    return np.where((phase > 0) & (phase <= 75 * SECOND), 4.0, 0.5)


def fleet(vms: Iterable[ObjectName], period: Period) -> FakePrometheus:
    times = np.arange(period.since, period.until, EVERY)
    found = FakePrometheus()
    for vm in vms:
        for metric, scale in (("cpu_cores", 1.0), ("memory_bytes", GIB)):
            amounts = of_cron(times) * scale
            for kind in ("ordered", "permit", "goal", "used"):
                labels = {"__name__": f"autoscale_agent_{metric}", "kind": kind, "namespace": vm.namespace}
                found.series[tuple(sorted({**labels, "vm": vm.name, "node": "n1"}.items()))] = (times, amounts)
    return found


async def test_hourly_load_is_costed_exactly() -> None:
    server = fleet([DB], WEEK)
    history = PrometheusHistory(server.client, EVERY)
    (usage,) = await history.usage(WEEK)
    assert usage.span.known_times[RESERVED] == usage.span.observed == 7 * DAY
    assert usage.span.sums[RESERVED] == 7 * DAY * (4000 * 75 + 500 * 225) // 300
    assert usage.span.peaks[RESERVED] == 4000
    assert usage.in_use == (usage.span.sums[RESERVED], usage.span.sums[RESERVED + 1])
    assert (usage.span.since, usage.span.until) == (WEEK.since, WEEK.until)
    assert await history.high_needs(WEEK, 0.995) == {DB: Size(4000, 4 * GIB // 1024)}
    assert len((await history.extent()).notes) == 1


async def test_reservation_compares_with_known_use() -> None:
    period = Period(BEGIN, BEGIN + HOUR)
    server = fleet([DB], period)
    for labels, (times, amounts) in server.series.items():
        if ("kind", "used") in labels:
            server.series[labels] = (times[120:], amounts[120:])
    (usage,) = await PrometheusHistory(server.client, EVERY).usage(period)
    assert (usage.span.known_times[COLUMN_INDEX["used_cpu"]], usage.span.known_times[RESERVED]) == (HOUR // 2, HOUR)
    assert usage.in_use == (1375 * HOUR // 2, 1375 * HOUR // 2 * GIB // 1024 // 1000)


@pytest.mark.parametrize("shift", [0, 7 * SECOND])
async def test_large_query_is_split(shift: int) -> None:
    period = Period(BEGIN + shift, BEGIN + shift + 2 * HOUR)
    server = fleet([DB, WEB], Period(BEGIN, BEGIN + 3 * HOUR))
    whole = PrometheusHistory(server.client, EVERY)
    answers = await whole.usage(period), await whole.high_needs(period, 0.9)
    assert max(points for _, points in server.asked) == 2 * 480
    server.asked.clear()
    with patch.object(expressions, "AT_ONCE", 500):
        parts = PrometheusHistory(server.client, EVERY)
        assert (await parts.usage(period), await parts.high_needs(period, 0.9)) == answers
    assert max(points for _, points in server.asked) <= 500


async def test_sampling_covers_every_clock_phase() -> None:
    server = fleet([DB, WEB], WEEK)
    history = PrometheusHistory(server.client, EVERY)
    with patch.object(expressions, "MOST_POINTS", 12_000):
        usages = await history.usage(WEEK)
    for usage in usages:
        assert usage.span.sums[RESERVED] == pytest.approx(7 * DAY * (4000 * 75 + 500 * 225) / 300, rel=0.001)
        assert usage.span.peaks[RESERVED] == 4000
    assert max(points for _, points in server.asked) <= 12_100
    assert (await history.extent()).notes[1:] == ("To limit the query, only one of 7 samples is used.",)


async def test_chart_shows_step_means() -> None:
    period = Period(BEGIN, BEGIN + 2 * HOUR)
    spans = await PrometheusHistory(fleet([DB], period).client, EVERY).vm_series(DB, period, 5 * MINUTE)
    assert [(each.since, each.until) for each in spans] == [
        (at, at + 5 * MINUTE) for at in range(period.since, period.until, 5 * MINUTE)
    ]
    assert {each.mean("size_cpu") for each in spans} == {1375.0}
