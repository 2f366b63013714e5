"""PromQL expressions of columns, from metrics of agents and the scheduler, and the sizes of queries.

Queries of many VMs over a long time are split to stay within Prometheus' limits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from math import ceil, gcd
from types import MappingProxyType
from typing import Final

import msgspec

from protocol.messages import ObjectName
from protocol.ranking.prices import PRICE_LABELS
from scheduler_plugin.history.core.samples import HOUR, MINUTE, SECOND, Millis
from scheduler_plugin.history.ports import Period

_METRICS: Final = MappingProxyType({"cpu": "autoscale_agent_cpu_cores", "mem": "autoscale_agent_memory_bytes"})
_ORDERED: Final = "ordered"
_KINDS: Final = MappingProxyType(
    {
        "size": _ORDERED,
        "need": "goal",
        "permit": "permit",
        # Agents do not know reservations, so take the maximum of these three.
        "reserved": "permit|ordered|actual",
        "used": "used",
        "least": "least",
        "most": "most",
    }
)
_NODE_METRICS: Final = MappingProxyType({"total": "reservable", "reserved": "reserved", "watermark": "watermark"})
_NODE_RESOURCES: Final = MappingProxyType({"cpu": "cpu", "mem": "memory"})
SCALES: Final[Mapping[str, float]] = MappingProxyType({"cpu": 1000.0, "mem": 1 / 1024})
"""Factors from Prometheus' units (vCPUs, bytes) to milli-vCPUs and KiB."""

GREATEST: Final = 1e30
"""More than any sum of bytes. Larger values, infinities and NaN count as missing."""

# Series have ``node`` and ``group`` only if the scrape configuration adds them.
BY_VM: Final = "namespace, vm, node, group"
SCRAPED: Final = "max(count_over_time(autoscale_agent_vms[10m]) and (autoscale_agent_vms offset 10m))"
"""Number of samples in ten minutes of an agent that was scraped before, too."""

_INTERVALS: Final = tuple(seconds * SECOND for seconds in (5, 10, 15, 20, 30, 60, 120, 300))
_MOST_POINTS: Final = 10_000


class Expressions(msgspec.Struct, frozen=True):
    """Expressions over samples scraped every ``scrapes`` (ms).

    A sample is valid until the next one is due. Prometheus' default of five minutes would fill gaps and show a migrated
    VM on both nodes.
    """

    scrapes: Millis

    def vm(self, column: str, vm: ObjectName | None = None, by: str = BY_VM) -> str:
        """Expression of a column of ``VM_COLUMNS``, or of ``least_…`` or ``most_…``, of one VM or all.

        >>> Expressions(10).vm("used_cpu", ObjectName("d", "db"), "vm")
        'max by (vm) (last_over_time(autoscale_agent_cpu_cores{kind=~"used",namespace="d",vm="db"}[9ms]) >= 0 < 1e+30)'
        """
        return self._of_vms(column, "" if vm is None else f",namespace={quoted(vm.namespace)},vm={quoted(vm.name)}", by)

    def of_each(self, column: str, vms: Sequence[ObjectName]) -> str:
        """Expression of a column of ``VM_COLUMNS`` of these VMs, on any node.

        It also matches other VMs whose name and namespace both occur among these.

        >>> Expressions(10).of_each("used_cpu", [ObjectName("d", "a.b"), ObjectName("d", "c")])[:78]
        'max by (namespace, vm) (last_over_time(autoscale_agent_cpu_cores{kind=~"used",'
        """
        # One query for many VMs: the two alternations match every pair of a name and a namespace.
        names = "|".join(sorted({re.escape(vm.name) for vm in vms}))
        namespaces = "|".join(sorted({re.escape(vm.namespace) for vm in vms}))
        return self._of_vms(column, f",namespace=~{quoted(namespaces)},vm=~{quoted(names)}", "namespace, vm")

    def _of_vms(self, column: str, matchers: str, by: str) -> str:
        kind, _, resource = column.partition("_")
        return f"max by ({by}) ({self._last(_METRICS[resource], f'kind=~{quoted(_KINDS[kind])}{matchers}')})"

    def node(self, column: str) -> str:
        """Expression of a column of ``NODE_COLUMNS`` of all nodes; ``used`` is the sum of sizes that agents report.

        >>> Expressions(10).node("total_cpu")
        'max by (node) (last_over_time(autoscale_scheduler_node_reservable{resource="cpu"}[9ms]) >= 0 < 1e+30)'
        """
        kind, _, resource = column.partition("_")
        if kind == "used":
            ordered = self._last(_METRICS[resource], f"kind={quoted(_ORDERED)}")
            return f"sum by (node) (max by (namespace, vm, node) ({ordered}))"  # a VM may be scraped twice
        metric = f"autoscale_scheduler_node_{_NODE_METRICS[kind]}"
        return f"max by (node) ({self._last(metric, f'resource={quoted(_NODE_RESOURCES[resource])}')})"

    def _last(self, metric: str, matchers: str) -> str:
        # 1 ms less than the interval, so that the range never contains two samples. The comparison drops NaN, infinite
        # and negative samples, which would spoil sums.
        return f"last_over_time({metric}{{{matchers}}}[{self.scrapes - 1}ms]) >= 0 < {GREATEST}"


def sample_counts(period: Period) -> str:
    """Number of samples of each VM's CPU need in a period that ends at the time of the query."""
    samples = f"{_METRICS['cpu']}{{kind=~{quoted(_KINDS['need'])}}}[{period.until - period.since}ms]"
    return f"sum by (namespace, vm) (count_over_time({samples}))"


def max_vms(period: Period) -> str:
    """Maximum number of VMs at full hours of a period that ends at the time of the query."""
    return over("max_over_time", f'count({_METRICS["cpu"]}{{kind="{_ORDERED}"}})', period, HOUR)


def interval_of(samples: float) -> Millis:
    """The common scrape interval that is nearest to this number of samples in ten minutes.

    >>> interval_of(40), interval_of(41), interval_of(9), interval_of(600), interval_of(0)
    (15000, 15000, 60000, 5000, 300000)
    """
    spacing = 10 * MINUTE / max(1.0, samples)
    # Compare ratios: 5 s are as far from 10 s as 150 s from 300 s.
    return min(_INTERVALS, key=lambda interval: max(interval / spacing, spacing / interval))


def quoted(text: str) -> str:
    r"""A string literal of PromQL. Its escapes are Go's, which include JSON's except surrogate pairs.

    >>> quoted('a"b\\c')
    '"a\\"b\\\\c"'
    """
    # ensure_ascii would write characters above U+FFFF as surrogate pairs.
    return json.dumps(text, ensure_ascii=False)


def range_step(period: Period, step: Millis) -> Millis:
    """``step``, or a longer one if the range would exceed Prometheus' limit of points.

    >>> range_step(Period(0, HOUR), 1000), range_step(Period(0, 2400 * HOUR), 1000)
    (1000, 864000)
    """
    # Prometheus' limit is 11000 points.
    return max(step, -(-(period.until - period.since) // _MOST_POINTS), SECOND)


def over(function: str, expression: str, period: Period, step: Millis, first: str = "") -> str:
    """Apply ``function`` to an expression over a period that ends at the time of the query.

    ``first`` is an argument before the expression, with its comma.

    >>> over("sum_over_time", "x", Period(0, 60_000), 15_000)
    'sum_over_time((x)[60000ms:15000ms])'
    """
    return f"{function}({first}({expression})[{period.until - period.since}ms:{step}ms])"


def node_labels(series: Mapping[str, str]) -> dict[str, str]:
    """The labels of a node that determine its price, from their spelling by kube-state-metrics.

    >>> node_labels({"label_eks_amazonaws_com_capacity_type": "SPOT", "label_team": "a"})
    {'eks.amazonaws.com/capacityType': 'SPOT'}
    """
    return {label: series[spelled] for label, spelled in _EXPORTED.items() if spelled in series}


def _as_exported(label: str) -> str:
    # kube-state-metrics converts to snake case after replacing other characters.
    return "label_" + re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", re.sub(r"\W", "_", label)).lower()


_EXPORTED: Final = MappingProxyType({label: _as_exported(label) for label in PRICE_LABELS})


MOST_POINTS: Final = 40_000_000
"""Maximum of VMs times samples per column: a thousand VMs for a week, every 15 s."""

AT_ONCE: Final = 3_000_000
"""The same per query. It loads about six samples for each; Prometheus allows 50 million (query.max-samples)."""

MOST_NAMES: Final = 500
"""Maximum number of VMs named in one query."""

_CLOCK: Final = 2 * 3 * 5
"""Factors of minutes, hours and days."""


def step_of(period: Period, scrapes: Millis, vms: float) -> Millis:
    """The step with which amounts of ``vms`` VMs are queried over a period.

    >>> week = Period(0, 7 * 24 * 3_600_000)
    >>> step_of(week, 15_000, 900), step_of(week, 15_000, 2000), step_of(week, 15_000, 10_000)
    (15000, 105000, 165000)
    """
    least = vms * (period.until - period.since) / scrapes / MOST_POINTS
    # A stride without common factors with minutes and hours, to sample all phases of periodic loads.
    return scrapes * next(stride for stride in count(max(1, ceil(least))) if gcd(stride, _CLOCK) == 1)


def query_periods(period: Period, step: Millis, vms: float) -> Iterator[Period]:
    """Split the period into parts for one query each; every multiple of ``step`` is in exactly one of them.

    >>> [each.until - each.since for each in query_periods(Period(5, 25), 10, 1)]
    [20]
    >>> list(query_periods(Period(5, 25), 10, AT_ONCE))
    [Period(since=5, until=10), Period(since=10, until=20), Period(since=20, until=25)]
    """
    length = max(1, int(AT_ONCE // max(1.0, vms))) * step
    begin = period.since
    while begin < period.until:
        # Cut at multiples of the step; otherwise subqueries would evaluate a time twice.
        end = min(period.until, (begin // step) * step + length)
        yield Period(begin, end)
        begin = end


def batches(points: Mapping[ObjectName, float]) -> Iterator[tuple[ObjectName, ...]]:
    """Split VMs into batches for one query each, by their number of samples.

    >>> a, b, c = (ObjectName("d", each) for each in "abc")
    >>> [len(each) for each in batches({a: 1, b: AT_ONCE, c: 2})]
    [1, 1, 1]
    >>> [len(each) for each in batches({a: 1, b: 2})]
    [2]
    """
    batch: list[ObjectName] = []
    weight = 0.0
    # Sorted, so that equal input gives equal queries.
    for vm in sorted(points):
        # A VM that is too large for any batch gets its own.
        if batch and (weight + points[vm] > AT_ONCE or len(batch) == MOST_NAMES):
            yield tuple(batch)
            batch, weight = [], 0.0
        batch.append(vm)
        weight += points[vm]
    if batch:
        yield tuple(batch)
