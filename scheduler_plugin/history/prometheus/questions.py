"""Answers the port ``History`` from a Prometheus.

Rules that hold here:

- A sample holds for one step. Integrals are sums of samples times the step: what was not scraped is not counted.
- Prometheus keeps no sentences: decisions are changes of size, and migrations are changes of the node.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import httpx
import msgspec

from protocol.messages import ObjectName
from scheduler_plugin.history.core.samples import (
    DAY,
    MINUTE,
    NODE_COLUMNS,
    SECOND,
    VM_COLUMNS,
    Decision,
    Millis,
    MoveRecord,
    NodeFacts,
    Size,
    VmFacts,
)
from scheduler_plugin.history.core.spans import Span, held, stepped
from scheduler_plugin.history.ports import Extent, HistoryError, NodeUsage, Period, Usage
from scheduler_plugin.history.prometheus.expressions import (
    GREATEST,
    SCALES,
    SCRAPED,
    Expressions,
    interval_of,
    over,
    range_step,
    resolution,
)

Labels = Mapping[str, str]
Key = tuple[tuple[str, str], ...]
"""The labels of a series, sorted."""

Expression = Callable[[str], str]
"""What is asked for a column."""

_TOGETHER: Final = 4
_SCRAPES: Final = 15 * SECOND
_LONGEST: Final = 35 * DAY
_LONGEST_MOVE: Final = 5 * MINUTE
"""A VM that was on no node for longer was stopped and started, not migrated."""
_NOTE: Final = "This history is Prometheus's: decisions are changes of size, without the sentences of agents."


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str] = {}
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct, frozen=True):
    result: list[_Series] = []


class _Answer(msgspec.Struct, frozen=True):
    status: str = ""
    error: str = ""
    data: _Data = _Data()


_ANSWER: Final = msgspec.json.Decoder(_Answer)


class PrometheusHistory:
    """See ``History``. ``http`` has the server's address as its base, and what signs in; agents are scraped every
    ``scrapes`` (ms), or as the server's samples say.
    """

    def __init__(self, http: httpx.AsyncClient, scrapes: Millis | None = None) -> None:
        self._http, self._is_learnt = http, scrapes is not None
        self._scrapes = scrapes or _SCRAPES
        self._say = Expressions(self._scrapes)
        self._limit = asyncio.Semaphore(_TOGETHER)

    async def extent(self) -> Extent:
        """See ``History``."""
        seen, ever = "timestamp(autoscale_agent_vms)", f"[{_LONGEST}ms:"
        first = await self._vector(f"min(min_over_time({seen}{ever}1h]))")
        last = await self._vector(f"max({seen})") or await self._vector(f"max(max_over_time({seen}{ever}5m]))")
        if not first or not last:
            return Extent(None, None, (_NOTE,))
        return Extent(round(first[0][1] * SECOND), round(last[0][1] * SECOND), (_NOTE,))

    async def vm_series(self, vm: ObjectName, period: Period, step: Millis) -> Sequence[Span]:
        """See ``History``."""
        await self._learn(period)
        return await self._spans(
            [self._say.vm(each, vm, "namespace, vm") for each in VM_COLUMNS], VM_COLUMNS, period, step
        )

    async def node_series(self, node: str, period: Period, step: Millis) -> Sequence[Span]:
        """See ``History``."""
        await self._learn(period)
        return await self._spans([self._say.node(each, node) for each in NODE_COLUMNS], NODE_COLUMNS, period, step)

    async def decisions(self, vm: ObjectName | None, period: Period, most: int = 500) -> Sequence[Decision]:
        """See ``History``."""
        await self._learn(period)
        step = range_step(period, self._scrapes)
        cpu, mem = [
            await self._ranges(self._say.vm(f"size_{each}", vm, "namespace, vm"), period, step) for each in SCALES
        ]
        sizes = {tuple(sorted(labels.items())): dict(values) for labels, values in mem}
        found = []
        for labels, values in cpu:
            mems = sizes.get(tuple(sorted(labels.items())), {})
            seen = [(at, Size(_scaled(cores, "cpu"), _scaled(mems[at], "mem"))) for at, cores in values if at in mems]
            for (_, before), (at, size) in pairwise(seen):
                if size != before:
                    said = (f"Its size became {size.resources}.",)
                    found.append(Decision(at, _vm(labels), "agent", said, size))
        return sorted(found, key=lambda each: -each.at)[:most]

    async def moves(self, vm: ObjectName | None, period: Period, most: int = 500) -> Sequence[MoveRecord]:
        """See ``History``."""
        await self._learn(period)
        step = range_step(period, self._scrapes)
        seen: dict[ObjectName, list[tuple[Millis, Millis, str]]] = defaultdict(list)
        for labels, values in await self._ranges(self._say.vm("size_cpu", vm, "namespace, vm, node"), period, step):
            if labels.get("node"):
                times = [at for at, _ in values]
                seen[_vm(labels)] += [(came, left, labels["node"]) for came, left in _stays(times, step)]
        found = [
            MoveRecord(vm, vm, source, target, "Succeeded", min(left, came), max(left, came))
            for vm, stays in seen.items()
            for (_, left, source), (came, _, target) in pairwise(sorted(stays))
            if source != target and came - left <= max(_LONGEST_MOVE, 2 * step)
        ]
        return sorted(found, key=lambda each: -each.since)[:most]

    async def usage(self, period: Period) -> Sequence[Usage]:
        """See ``History``."""
        await self._learn(period)
        spans = await self._totals(self._say.vm, VM_COLUMNS, period, "reserved_cpu")  # has all that an agent knows
        least, most = [await self._sizes(kind, period) for kind in ("least", "most")]
        found = []
        for labels, span in spans.items():
            of = dict(labels)
            facts = VmFacts(_vm(of), of.get("node", ""), of.get("group", ""), least.get(labels), most.get(labels))
            found.append(Usage(facts, span))
        return found

    async def node_usage(self, period: Period) -> Sequence[NodeUsage]:
        """See ``History``."""
        await self._learn(period)
        machines = await self._machines(period)
        spans = await self._totals(self._say.node, NODE_COLUMNS, period, "total_cpu")
        nodes = {dict(labels).get("node", ""): span for labels, span in spans.items()}
        return [NodeUsage(NodeFacts(node, machines.get(node, "")), span) for node, span in sorted(nodes.items())]

    async def high_needs(self, period: Period, share: float) -> Mapping[ObjectName, Size]:
        """See ``History``."""
        await self._learn(period)
        step, found = resolution(period, self._scrapes), dict[ObjectName, dict[str, int]]()
        for resource in SCALES:
            expression = self._say.vm(f"need_{resource}", by="namespace, vm")
            asked = over("quantile_over_time", expression, period, step, f"{share}, ")
            for labels, value in await self._vector(asked, period.until - 1):
                found.setdefault(_vm(labels), {})[resource] = _scaled(value, resource)
        return {vm: Size(each.get("cpu", 0), each.get("mem", 0)) for vm, each in found.items()}

    async def _learn(self, period: Period) -> None:
        """How often agents are scraped, once it can be told."""
        if not self._is_learnt and (found := await self._vector(SCRAPED, period.until - 1)):
            self._scrapes, self._is_learnt = interval_of(found[0][1]), True
            self._say = Expressions(self._scrapes)

    async def _machines(self, period: Period) -> dict[str, str]:
        """The instance types of nodes, where kube-state-metrics tells them."""
        found = await self._vector("kube_node_labels", period.until - 1)
        return {labels.get("node", ""): labels.get("label_node_kubernetes_io_instance_type", "") for labels, _ in found}

    async def _sizes(self, kind: str, period: Period) -> dict[Key, Size]:
        """The bounds of VMs as they were last."""
        step, found = resolution(period, self._scrapes), defaultdict[Key, dict[str, int]](dict)
        for resource in SCALES:
            asked = over("last_over_time", self._say.vm(f"{kind}_{resource}"), period, step)
            for labels, value in await self._vector(asked, period.until - 1):
                found[_key(labels)][resource] = _scaled(value, resource)
        return {key: Size(**each) for key, each in found.items() if len(each) == len(SCALES)}

    async def _totals(
        self, expression: Expression, columns: Sequence[str], period: Period, seen: str
    ) -> dict[Key, Span]:
        """One span for each set of labels: sums and counts of samples times the step, for as long as ``seen`` was."""
        step = resolution(period, self._scrapes)

        async def ask(function: str, asked: str) -> dict[Key, float]:
            found = await self._vector(over(f"{function}_over_time", asked, period, step), period.until - 1)
            return {_key(labels): value for labels, value in found}

        sums, counts, peaks = [
            await asyncio.gather(*(ask(function, expression(column)) for column in columns))
            for function in ("sum", "count", "max")
        ]
        first, last = [await ask(end, f"timestamp({expression(seen)})") for end in ("min", "max")]
        found = {}
        for key, begin in first.items():
            known = tuple(round(each.get(key, 0.0) * step) for each in counts)
            found[key] = Span(
                since=round(begin * SECOND),
                until=round(last.get(key, begin) * SECOND) + step,
                seen=known[columns.index(seen)],
                known=known,
                sums=_scaled_all([each.get(key, 0.0) * step for each in sums], columns),
                peaks=_scaled_all([each.get(key, 0.0) for each in peaks], columns),
            )
        return found

    async def _spans(
        self, expressions: Sequence[str], columns: Sequence[str], period: Period, step: Millis
    ) -> list[Span]:
        """Rows of the samples at each step, as spans of one step."""
        wide = range_step(period, max(step, self._scrapes))
        answers = await asyncio.gather(*(self._ranges(each, period, wide) for each in expressions))
        rows: dict[Millis, list[int | None]] = defaultdict(lambda: [None] * len(columns))
        for place, series in enumerate(answers):
            for _, values in series:
                for at, value in values:
                    rows[at][place] = _scaled(value, _resource(columns[place]))
        return stepped([held(at, at + wide, tuple(rows[at])) for at in sorted(rows)], period.since, wide)

    async def _ranges(
        self, expression: str, period: Period, step: Millis
    ) -> list[tuple[Labels, list[tuple[Millis, float]]]]:
        """Series over time. Raises ``HistoryError``."""
        asked = {"start": period.since / SECOND, "end": (period.until - 1) / SECOND, "step": step / SECOND}
        found = await self._ask("/api/v1/query_range", {"query": expression, **asked})
        ranges = [(each.metric, [(_moment(at), _number(value)) for at, value in each.values]) for each in found]
        return [(labels, [point for point in values if _is_amount(point[1])]) for labels, values in ranges]

    async def _vector(self, expression: str, at: Millis | None = None) -> list[tuple[Labels, float]]:
        """What an expression was at a moment. Raises ``HistoryError``."""
        asked: dict[str, str | float] = {"query": expression} | ({} if at is None else {"time": at / SECOND})
        found = await self._ask("/api/v1/query", asked)
        values = [(each.metric, _number(each.value[1])) for each in found if each.value is not None]
        return [(labels, value) for labels, value in values if _is_amount(value)]

    async def _ask(self, path: str, asked: Mapping[str, str | float]) -> list[_Series]:
        try:
            async with self._limit:
                response = await self._http.post(path, data=dict(asked))
            answer = _ANSWER.decode(response.content)
        except (httpx.HTTPError, ValueError, RecursionError) as error:
            raise HistoryError(f"Prometheus gives no usable answer: {error}") from error
        if answer.status != "success":
            raise HistoryError(f"Prometheus refuses ({response.status_code}): {answer.error or 'no reason'}")
        return answer.data.result


def _stays(times: Sequence[Millis], step: Millis) -> list[tuple[Millis, Millis]]:
    """The first and last of the times of each stretch without a gap.

    >>> _stays([0, 15, 60, 75], 15)
    [(0, 15), (60, 75)]
    """
    breaks = [at for at in range(1, len(times)) if times[at] - times[at - 1] > step]
    return [(times[begin], times[end - 1]) for begin, end in pairwise((0, *breaks, len(times))) if end > begin]


def _number(text: str) -> float:
    """Raises ``HistoryError``."""
    try:
        return float(text)
    except ValueError:
        raise HistoryError(f"Prometheus gives no usable answer: a value is {text[:40]!r}") from None


def _moment(at: float) -> Millis:
    """Raises ``HistoryError``."""
    if not 0 <= at < GREATEST:
        raise HistoryError(f"Prometheus gives no usable answer: a time is {at}")
    return round(at * SECOND)


def _is_amount(value: float) -> bool:
    """Whether it can be one; a rule or a relabelling may make anything of a metric."""
    return 0 <= value < GREATEST


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
