"""PromQL expressions by column, from metrics of agents and the scheduler, and query sizes.

Queries of many VMs over a long time are split, to stay within Prometheus' limits.
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
        # Agents do not know reservations: use the maximum of these three.
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
"""Above any sum of bytes. Larger values, infinities and NaN count as missing."""

# Series have ``node`` and ``group`` only if scraping adds them.
BY_VM: Final = "namespace, vm, node, group"
SCRAPED: Final = "max(count_over_time(autoscale_agent_vms[10m]) and (autoscale_agent_vms offset 10m))"
"""Number of samples in ten minutes, of an agent that was scraped before them."""

_INTERVALS: Final = tuple(seconds * SECOND for seconds in (5, 10, 15, 20, 30, 60, 120, 300))
_MOST_POINTS: Final = 10_000


class Expressions(msgspec.Struct, frozen=True):
    """Expressions over samples scraped every ``scrapes`` (ms).

    A sample counts until the next one is due: by default Prometheus keeps it for five minutes, which fills gaps and
    shows a moved VM on both nodes.
    """

    scrapes: Millis

    def vm(self, column: str, vm: ObjectName | None = None, by: str = BY_VM) -> str:
        """A column of ``VM_COLUMNS``, or ``least_…`` and ``most_…``, of one VM or all.

        >>> Expressions(10).vm("used_cpu", ObjectName("d", "db"), "vm")
        'max by (vm) (last_over_time(autoscale_agent_cpu_cores{kind=~"used",namespace="d",vm="db"}[9ms]) >= 0 < 1e+30)'
        """
        return self._of_vms(column, "" if vm is None else f",namespace={quoted(vm.namespace)},vm={quoted(vm.name)}", by)

    def of_each(self, column: str, vms: Sequence[ObjectName]) -> str:
        """A column of ``VM_COLUMNS`` of these VMs on any node, and of others whose name and namespace both occur among
        theirs.

        >>> Expressions(10).of_each("used_cpu", [ObjectName("d", "a.b"), ObjectName("d", "c")])[:78]
        'max by (namespace, vm) (last_over_time(autoscale_agent_cpu_cores{kind=~"used",'
        """
        # One query for many VMs. The two alternations match every pair, hence other VMs too.
        names = "|".join(sorted({re.escape(vm.name) for vm in vms}))
        namespaces = "|".join(sorted({re.escape(vm.namespace) for vm in vms}))
        return self._of_vms(column, f",namespace=~{quoted(namespaces)},vm=~{quoted(names)}", "namespace, vm")

    def _of_vms(self, column: str, matchers: str, by: str) -> str:
        kind, _, resource = column.partition("_")
        return f"max by ({by}) ({self._last(_METRICS[resource], f'kind=~{quoted(_KINDS[kind])}{matchers}')})"

    def node(self, column: str) -> str:
        """A column of ``NODE_COLUMNS`` of all nodes; ``used`` is the sum of sizes reported by agents.

        >>> Expressions(10).node("total_cpu")
        'max by (node) (last_over_time(autoscale_scheduler_node_reservable{resource="cpu"}[9ms]) >= 0 < 1e+30)'
        """
        kind, _, resource = column.partition("_")
        if kind == "used":
            ordered = self._last(_METRICS[resource], f"kind={quoted(_ORDERED)}")
            return f"sum by (node) (max by (namespace, vm, node) ({ordered}))"  # count a VM scraped twice once
        metric = f"autoscale_scheduler_node_{_NODE_METRICS[kind]}"
        return f"max by (node) ({self._last(metric, f'resource={quoted(_NODE_RESOURCES[resource])}')})"

    def _last(self, metric: str, matchers: str) -> str:
        # 1 ms less than the interval, so that the range never has two samples. The comparison drops NaN, infinite and
        # negative samples, which would spoil sums.
        return f"last_over_time({metric}{{{matchers}}}[{self.scrapes - 1}ms]) >= 0 < {GREATEST}"


def census(period: Period) -> str:
    """Number of samples of each VM's need of CPU, in a period ending at the query."""
    samples = f"{_METRICS['cpu']}{{kind=~{quoted(_KINDS['need'])}}}[{period.until - period.since}ms]"
    return f"sum by (namespace, vm) (count_over_time({samples}))"


def crowd(period: Period) -> str:
    """Maximum number of VMs at full hours of a period ending at the query."""
    return over("max_over_time", f'count({_METRICS["cpu"]}{{kind="{_ORDERED}"}})', period, HOUR)


def interval_of(samples: float) -> Millis:
    """The usual sampling interval nearest to this number of samples in ten minutes.

    >>> interval_of(40), interval_of(41), interval_of(9), interval_of(600), interval_of(0)
    (15000, 15000, 60000, 5000, 300000)
    """
    # At least one sample.
    apart = 10 * MINUTE / max(1.0, samples)
    # By ratio: 5 s are as far from 10 s as 150 s from 300 s.
    return min(_INTERVALS, key=lambda interval: max(interval / apart, apart / interval))


def quoted(text: str) -> str:
    r"""A string of PromQL. Its escapes are Go's, which include JSON's, except for surrogate pairs.

    >>> quoted('a"b\\c')
    '"a\\"b\\\\c"'
    """
    # ensure_ascii would write characters above U+FFFF as surrogate pairs.
    return json.dumps(text, ensure_ascii=False)


def range_step(period: Period, step: Millis) -> Millis:
    """Step of a range: as given, within Prometheus' limit of points.

    >>> range_step(Period(0, HOUR), 1000), range_step(Period(0, 2400 * HOUR), 1000)
    (1000, 864000)
    """
    # Prometheus' limit is 11000 points.
    return max(step, -(-(period.until - period.since) // _MOST_POINTS), SECOND)


def over(function: str, expression: str, period: Period, step: Millis, first: str = "") -> str:
    """A function over all samples of an expression in a period ending at the query; ``first`` is an argument before the
    expression, with its comma.

    >>> over("sum_over_time", "x", Period(0, 60_000), 15_000)
    'sum_over_time((x)[60000ms:15000ms])'
    """
    return f"{function}({first}({expression})[{period.until - period.since}ms:{step}ms])"


def node_labels(series: Mapping[str, str]) -> dict[str, str]:
    """Labels of a node that determine its price, from kube-state-metrics' spelling.

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
"""The same per query, which loads about six samples for each; Prometheus allows 50 million (query.max-samples)."""

MOST_NAMES: Final = 500
"""Maximum number of VMs named in one query."""

_CLOCK: Final = 2 * 3 * 5
"""Factors of minutes, hours and days."""


def step_of(period: Period, scrapes: Millis, crowd: float) -> Millis:
    """Step for amounts of at most ``crowd`` VMs at a time.

    >>> week = Period(0, 7 * 24 * 3_600_000)
    >>> step_of(week, 15_000, 900), step_of(week, 15_000, 2000), step_of(week, 15_000, 10_000)
    (15000, 105000, 165000)
    """
    least = crowd * (period.until - period.since) / scrapes / MOST_POINTS
    # No common factor with minutes and hours, to sample periodic loads at all phases.
    return scrapes * next(stride for stride in count(max(1, ceil(least))) if gcd(stride, _CLOCK) == 1)


def stretches(period: Period, step: Millis, crowd: float) -> Iterator[Period]:
    """The period in parts for one query each; every multiple of ``step`` is in one of them.

    >>> [each.until - each.since for each in stretches(Period(5, 25), 10, 1)]
    [20]
    >>> list(stretches(Period(5, 25), 10, AT_ONCE))
    [Period(since=5, until=10), Period(since=10, until=20), Period(since=20, until=25)]
    """
    length = max(1, int(AT_ONCE // max(1.0, crowd))) * step
    begin = period.since
    while begin < period.until:
        # Cut at multiples of the step, or a subquery would evaluate a time in two parts.
        end = min(period.until, (begin // step) * step + length)
        yield Period(begin, end)
        begin = end


def batches(points: Mapping[ObjectName, float]) -> Iterator[tuple[ObjectName, ...]]:
    """VMs per query, by their number of samples.

    >>> a, b, c = (ObjectName("d", each) for each in "abc")
    >>> [len(each) for each in batches({a: 1, b: AT_ONCE, c: 2})]
    [1, 1, 1]
    >>> [len(each) for each in batches({a: 1, b: 2})]
    [2]
    """
    batch: list[ObjectName] = []
    weight = 0.0
    # Sorted: equal input makes equal queries.
    for vm in sorted(points):
        # A VM that is too large alone is a batch too.
        if batch and (weight + points[vm] > AT_ONCE or len(batch) == MOST_NAMES):
            yield tuple(batch)
            batch, weight = [], 0.0
        batch.append(vm)
        weight += points[vm]
    if batch:
        yield tuple(batch)
