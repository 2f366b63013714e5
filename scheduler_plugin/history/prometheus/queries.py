"""The port ``History`` for a Prometheus server."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import httpx2 as httpx

from protocol.messages import ObjectName
from protocol.ranking.prices import price_keys
from scheduler_plugin.history.core.samples import (
    DAY,
    HOUR,
    IN_USE,
    MINUTE,
    NODE_COLUMNS,
    SECOND,
    VM_COLUMNS,
    DecisionRecord,
    Millis,
    MoveRecord,
    NodeRecord,
    Size,
    VmRecord,
)
from scheduler_plugin.history.core.spans import Span, clipped, joined, sample_span, stepped
from scheduler_plugin.history.ports import Extent, NodeUsage, Period, Usage
from scheduler_plugin.history.prometheus.expressions import (
    SCALES,
    SCRAPED,
    Expressions,
    batches,
    interval_of,
    max_vms,
    node_labels,
    over,
    query_periods,
    range_step,
    sample_counts,
    step_of,
)
from scheduler_plugin.history.prometheus.server import Labels, PrometheusServer

Key = tuple[tuple[str, str], ...]
"""Sorted labels of a series."""

PriceKeys = tuple[str, ...]
Stay = tuple[Millis, Millis]
"""Start and end of a state."""

Expression = Callable[[str], str]
"""Returns the PromQL expression of a column."""

_SCRAPES: Final = 15 * SECOND
_LONGEST: Final = 35 * DAY
_LONGEST_MOVE: Final = 5 * MINUTE
"""A VM that has no node for longer was restarted, not migrated."""
_NOTE: Final = "This history is from Prometheus: its decisions are changes of size, without the sentences of agents."


class PrometheusHistory:
    """See ``History``. ``http`` has the server's address and credentials.

    ``scrapes`` is the scrape interval of agents (ms); None to derive it from the server's samples.
    """

    def __init__(self, http: httpx.AsyncClient, scrapes: Millis | None = None) -> None:
        self._server, self._is_interval_known = PrometheusServer(http), scrapes is not None
        self._scrapes = scrapes or _SCRAPES
        self._expressions = Expressions(self._scrapes)
        self._skipped = 1
        """The largest query so far used one of this many scrapes."""

    async def extent(self) -> Extent:
        """See ``History``."""
        stamp, window = "timestamp(autoscale_agent_vms)", f"[{_LONGEST}ms:"
        # Coarse first, because a fine step over 35 days would be too much for one query.
        early = await self._server.vector(f"min(min_over_time({stamp}{window}1h]))")  # to the hour
        before = round(early[0][1] * SECOND) if early else None
        first = await self._server.vector(f"min(min_over_time({stamp}[{HOUR}ms:{self._scrapes}ms]))", before) or early
        # An instant query covers five minutes; the expensive one is needed only if there are no samples in them.
        last = await self._server.vector(f"max({stamp})") or await self._server.vector(
            f"max(max_over_time({stamp}{window}5m]))"
        )
        sampled = f"To limit the query, only one of {self._skipped} samples is used."
        notes = (_NOTE, sampled) if self._skipped > 1 else (_NOTE,)
        if not first or not last:
            return Extent(None, None, notes)
        return Extent(round(first[0][1] * SECOND), round(last[0][1] * SECOND), notes)

    async def vm_series(self, vm: ObjectName, period: Period, step: Millis) -> Sequence[Span]:
        """See ``History``."""
        await self._detect_interval(period)
        expressions = [self._expressions.vm(column, vm, "namespace, vm") for column in VM_COLUMNS]
        wide = range_step(period, max(step, self._scrapes))
        asked_period, ends = period, 0
        if wide > self._scrapes:
            expressions = [
                over("avg_over_time", expression, Period(0, wide), self._scrapes) for expression in expressions
            ]
            ends = wide - 1  # the mean of a step is queried at the end of the step
            asked_period = Period(period.since + ends, period.until + ends)
        answers = await asyncio.gather(
            *(self._server.ranges(expression, asked_period, wide) for expression in expressions)
        )
        rows: dict[Millis, list[int | None]] = defaultdict(lambda: [None] * len(VM_COLUMNS))
        for place, series in enumerate(answers):
            for _, values in series:
                for at, value in values:
                    rows[at - ends][place] = _scaled(value, _resource(VM_COLUMNS[place]))
        # Several series may share a row, for example of a migrated VM.
        return stepped([sample_span(at, at + wide, tuple(rows[at])) for at in sorted(rows)], period.since, wide)

    async def decisions(self, vm: ObjectName | None, period: Period, most: int = 500) -> Sequence[DecisionRecord]:
        """See ``History``."""
        await self._detect_interval(period)
        step = range_step(period, self._scrapes)
        cpu, mem = [
            await self._server.ranges(self._expressions.vm(f"size_{resource}", vm, "namespace, vm"), period, step)
            for resource in SCALES
        ]
        sizes = {tuple(sorted(labels.items())): dict(values) for labels, values in mem}
        decisions = []
        for labels, values in cpu:
            mems = sizes.get(tuple(sorted(labels.items())), {})
            samples = [
                (at, Size(_scaled(cores, "cpu"), _scaled(mems[at], "mem"))) for at, cores in values if at in mems
            ]
            # Without sentences, each change of size counts as a decision.
            for (_, before), (at, size) in pairwise(samples):
                if size != before:
                    sentences = (f"Its size became {size.resources}.",)
                    decisions.append(DecisionRecord(at, _vm(labels), "agent", sentences, size))
        return sorted(decisions, key=lambda decision: -decision.at)[:most]

    async def moves(self, vm: ObjectName | None, period: Period, most: int = 500) -> Sequence[MoveRecord]:
        """See ``History``."""
        await self._detect_interval(period)
        step = range_step(period, self._scrapes)
        stays_by_vm: dict[ObjectName, list[tuple[Millis, Millis, str]]] = defaultdict(list)
        for labels, values in await self._server.ranges(
            self._expressions.vm("size_cpu", vm, "namespace, vm, node"), period, step
        ):
            if labels.get("node"):
                times = [at for at, _ in values]
                stays_by_vm[_vm(labels)] += [(arrived, left, labels["node"]) for arrived, left in _stays(times, step)]
        moves = [
            # The times on both nodes may overlap.
            MoveRecord(vm, vm, source, target, "Succeeded", min(left, arrived), max(left, arrived))
            for vm, stays in stays_by_vm.items()
            for (_, left, source), (arrived, _, target) in pairwise(sorted(stays))
            # On the same node it was restarted; after a long absence it was stopped and started.
            if source != target and arrived - left <= max(_LONGEST_MOVE, 2 * step)
        ]
        return sorted(moves, key=lambda move: -move.since)[:most]

    async def usage(self, period: Period) -> Sequence[Usage]:
        """See ``History``."""
        await self._detect_interval(period)
        # A VM is observed while its agent reports any part of the reservation.
        spans = await self._totals(self._expressions.vm, VM_COLUMNS, period, "reserved_cpu")
        least, most = [await self._sizes(kind, period) for kind in ("least", "most")]
        # Reservation and use can be compared only over the time in which both are known.
        in_use = [await self._while_known(*pair, period) for pair in IN_USE]
        usages = []
        for labels, span in spans.items():
            of, (cpu, mem) = dict(labels), (integrals.get(labels, 0) for integrals in in_use)
            facts = VmRecord(_vm(of), of.get("node", ""), of.get("group", ""), least.get(labels), most.get(labels))
            usages.append(Usage(facts, span, (cpu, mem)))
        return usages

    async def node_usage(self, period: Period) -> Sequence[NodeUsage]:
        """See ``History``."""
        await self._detect_interval(period)
        labelled = await self._price_keys(period)
        spans = await self._totals(self._expressions.node, NODE_COLUMNS, period, "total_cpu")
        nodes = {dict(labels).get("node", ""): span for labels, span in spans.items()}
        return [
            usage for node, span in sorted(nodes.items()) for usage in _machines(node, span, labelled.get(node, {}))
        ]

    async def high_needs(self, period: Period, share: float) -> Mapping[ObjectName, Size]:
        """See ``History``."""
        await self._detect_interval(period)
        step, _ = await self._grid(period)
        points = {
            _vm(labels): samples * self._scrapes / step
            for labels, samples in await self._server.vector(sample_counts(period), period.until - 1)
        }
        needs = defaultdict[ObjectName, dict[str, int]](dict)
        for batch in batches(points):
            for resource in SCALES:
                # Quantiles of parts of the time cannot be combined, so split the query by VM.
                expression = self._expressions.of_each(f"need_{resource}", batch)
                query = over("quantile_over_time", expression, period, step, f"{share}, ")
                for labels, value in await self._server.vector(query, period.until - 1):
                    needs[_vm(labels)][resource] = _scaled(value, resource)
        return {vm: Size(need.get("cpu", 0), need.get("mem", 0)) for vm, need in needs.items()}

    async def _detect_interval(self, period: Period) -> None:
        # Without samples the default applies.
        if not self._is_interval_known and (answer := await self._server.vector(SCRAPED, period.until - 1)):
            self._scrapes, self._is_interval_known = interval_of(answer[0][1]), True
            self._expressions = Expressions(self._scrapes)

    async def _price_keys(self, period: Period) -> Mapping[str, Mapping[PriceKeys, Stay]]:
        """The price keys of each node, and when it had them, if kube-state-metrics exports the labels."""
        step, parts = await self._query_periods(period)
        by_node = defaultdict[str, dict[PriceKeys, Stay]](dict)
        for end, place in (("min", 0), ("max", 1)):
            for labels, at in await self._values(f"{end}_over_time", "timestamp(kube_node_labels)", parts, step):
                stays, keys = by_node[labels.get("node", "")], price_keys(node_labels(labels))
                # The last sample is valid for one step.
                moment = round(at * SECOND) + place * step
                since, until = stays.get(keys, (moment, moment))
                stays[keys] = min(since, moment), max(until, moment)
        return by_node

    async def _values(
        self, function: str, expression: str, parts: Sequence[Period], step: Millis
    ) -> list[tuple[Labels, float]]:
        """Values of a function over each part, in order."""
        answers = [await self._server.vector(over(function, expression, part, step), part.until - 1) for part in parts]
        return [value for answer in answers for value in answer]

    async def _sizes(self, kind: str, period: Period) -> dict[Key, Size]:
        step, parts = await self._query_periods(period)
        sizes = defaultdict[Key, dict[str, int]](dict)
        for resource in SCALES:
            bounds = self._expressions.vm(f"{kind}_{resource}")
            # The latest part takes precedence.
            for labels, value in await self._values("last_over_time", bounds, parts, step):
                sizes[_key(labels)][resource] = _scaled(value, resource)
        # Leave out sizes with only one resource.
        return {key: Size(**amounts) for key, amounts in sizes.items() if len(amounts) == len(SCALES)}

    async def _while_known(self, column: str, other: str, period: Period) -> dict[Key, int]:
        """Integral of a column of each VM over the time in which another one was known too."""
        step, parts = await self._query_periods(period)
        both = f"{self._expressions.vm(column)} and {self._expressions.vm(other)}"
        sums = defaultdict[Key, float](float)
        for labels, value in await self._values("sum_over_time", both, parts, step):
            sums[_key(labels)] += value * step
        return {key: _scaled(value, _resource(column)) for key, value in sums.items()}

    async def _grid(self, period: Period) -> tuple[Millis, float]:
        """The step of queries, and the maximum number of VMs at a time."""
        answer = await self._server.vector(max_vms(period), period.until - 1)
        vms = answer[0][1] if answer else 1.0
        step = step_of(period, self._scrapes, vms)
        # Reported by ``extent``.
        self._skipped = max(self._skipped, step // self._scrapes)
        return step, vms

    async def _query_periods(self, period: Period) -> tuple[Millis, list[Period]]:
        """The step of queries, and the parts of the period to query separately."""
        step, vms = await self._grid(period)
        return step, list(query_periods(period, step, vms))

    async def _totals(
        self, expression: Expression, columns: Sequence[str], period: Period, presence: str
    ) -> dict[Key, Span]:
        """Integrals, known times and peaks of each series, which is observed while ``presence`` (a column) is known."""
        step, parts = await self._query_periods(period)
        spans_by_key = defaultdict[Key, list[Span]](list)
        for part in parts:
            for key, span in (await self._totals_of(expression, columns, part, step, presence)).items():
                spans_by_key[key].append(span)
        return {key: joined(spans) for key, spans in spans_by_key.items()}

    async def _totals_of(
        self, expression: Expression, columns: Sequence[str], period: Period, step: Millis, presence: str
    ) -> dict[Key, Span]:
        """The same for a part of the period that fits into one query."""

        async def ask(function: str, asked: str) -> dict[Key, float]:
            series = await self._server.vector(over(f"{function}_over_time", asked, period, step), period.until - 1)
            return {_key(labels): value for labels, value in series}

        sums, counts, peaks = [
            await asyncio.gather(*(ask(function, expression(column)) for column in columns))
            for function in ("sum", "count", "max")
        ]
        first, last = [await ask(end, f"timestamp({expression(presence)})") for end in ("min", "max")]
        totals = {}
        for key, begin in first.items():
            known_times = tuple(round(by_key.get(key, 0.0) * step) for by_key in counts)
            totals[key] = Span(
                since=round(begin * SECOND),
                until=round(last.get(key, begin) * SECOND) + step,
                observed=known_times[columns.index(presence)],
                known_times=known_times,
                # A sample is valid for one step.
                sums=_scaled_all([by_key.get(key, 0.0) * step for by_key in sums], columns),
                peaks=_scaled_all([by_key.get(key, 0.0) for by_key in peaks], columns),
            )
        return totals


def _machines(node: str, span: Span, stays: Mapping[PriceKeys, Stay]) -> list[NodeUsage]:
    if len(stays) <= 1:
        return [NodeUsage(NodeRecord.of(node, next(iter(stays), ())), span)]
    # Several machines had this name; Prometheus answers in any order.
    in_order = sorted(stays.items(), key=lambda item: item[1])
    parts = ((keys, clipped(span, *stay)) for keys, stay in in_order)
    return [NodeUsage(NodeRecord.of(node, keys), part) for keys, part in parts if part is not None]


def _stays(times: Sequence[Millis], step: Millis) -> list[tuple[Millis, Millis]]:
    """First and last time of each run without a gap.

    >>> _stays([0, 15, 60, 75], 15)
    [(0, 15), (60, 75)]
    """
    breaks = [at for at in range(1, len(times)) if times[at] - times[at - 1] > step]
    return [(times[begin], times[end - 1]) for begin, end in pairwise((0, *breaks, len(times))) if end > begin]


def _key(labels: Labels) -> Key:
    return tuple(sorted((name, value) for name, value in labels.items() if name != "__name__"))


def _vm(labels: Labels) -> ObjectName:
    return ObjectName(labels.get("namespace", ""), labels.get("vm", ""))


def _resource(column: str) -> str:
    return column.rpartition("_")[2]


def _scaled(value: float, resource: str) -> int:
    return round(value * SCALES[resource])


def _scaled_all(values: Sequence[float], columns: Sequence[str]) -> tuple[int, ...]:
    return tuple(_scaled(value, _resource(column)) for value, column in zip(values, columns, strict=True))
