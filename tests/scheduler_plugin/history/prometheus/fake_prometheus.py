"""A Prometheus that evaluates the few forms of expression that we ask, over series of a test."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import httpx2 as httpx
import numpy as np
from numpy.typing import NDArray

from scheduler_plugin.history.core.samples import MINUTE

Labels = tuple[tuple[str, str], ...]
Times = NDArray[np.int64]
Values = NDArray[np.float64]
"""What a series is at each of some times; NaN where it is not there."""

_OVER: Mapping[str, Callable[[Values], float]] = {
    "sum": lambda seen: float(seen.sum()),
    "count": lambda seen: float(len(seen)),
    "min": lambda seen: float(seen.min()),
    "max": lambda seen: float(seen.max()),
    "avg": lambda seen: float(seen.mean()),
    "last": lambda seen: float(seen[-1]),
}
_BY: Mapping[str, Callable[[Values], Values]] = {
    "max": np.fmax.reduce,
    "sum": lambda rows: np.where(np.isnan(rows).all(0), np.nan, np.nansum(rows, 0)),
    "count": lambda rows: np.where(np.isnan(rows).all(0), np.nan, (~np.isnan(rows)).sum(0)),
}
_SUBQUERY = re.compile(r"(\w+)_over_time\((?:([\d.]+), )?\((.*)\)\[(\d+)ms:(\d+)ms\]\)")
_AGGREGATE = re.compile(r"(max|sum|count)(?: by \(([^)]*)\))? ?\((.*)\)")
_RANGE = re.compile(r"(last|count)_over_time\((\w+)\{(.*)\}\[(\d+)ms\]\)(?: >= 0 < [\de+]+)?")
_SELECTOR = re.compile(r"(\w+)\{(.*)\}")
_MATCHER = re.compile(r'(\w+)(=~?)("(?:[^"\\]|\\.)*")')


@dataclass
class FakePrometheus:
    """``series`` by labels, ``__name__`` among them: the times of samples (ms) and their values."""

    series: dict[Labels, tuple[Times, Values]] = field(default_factory=dict)
    asked: list[tuple[str, int]] = field(default_factory=list)
    """Expressions, with the moments that each of them looks at."""

    @property
    def client(self) -> httpx.AsyncClient:
        """A client of it."""
        return httpx.AsyncClient(transport=httpx.MockTransport(self._reply), base_url="http://prometheus")

    def _reply(self, request: httpx.Request) -> httpx.Response:
        asked = httpx.QueryParams(request.content.decode())
        if request.url.path.endswith("query_range"):
            times = [round(float(asked[each]) * 1000) for each in ("start", "end", "step")]
            result = self._over_time(asked["query"], range(times[0], times[1] + 1, times[2]))
        else:
            found = self._at(asked["query"], round(float(asked.get("time", 0)) * 1000))
            result = [{"metric": dict(labels), "value": [0, repr(value)]} for labels, value in found.items()]
        return httpx.Response(200, content=json.dumps({"status": "success", "data": {"result": result}}))

    def _over_time(self, query: str, times: range) -> list[dict[str, object]]:
        found = defaultdict[Labels, list[tuple[float, str]]](list)
        for at in times:
            for labels, value in self._at(query, at).items():
                found[labels].append((at / 1000, repr(value)))
        return [{"metric": dict(labels), "values": values} for labels, values in found.items()]

    def _at(self, query: str, at: int) -> dict[Labels, float]:
        if (parts := _SUBQUERY.fullmatch(query)) is None:
            found = {labels: float(values[0]) for labels, values in self._on(query, np.array([at])).items()}
            return {labels: value for labels, value in found.items() if not math.isnan(value)}
        function, argument, inner, length, step = parts.groups()
        begin = (at - int(length)) // int(step) * int(step) + int(step)
        seen = {
            labels: values[~np.isnan(values)]
            for labels, values in self._on(inner, np.arange(begin, at + 1, int(step))).items()
        }
        self.asked.append((query, sum(map(len, seen.values()))))
        of = _OVER.get(function) or (lambda values: float(np.quantile(values, float(argument))))
        return {labels: of(values) for labels, values in seen.items() if len(values)}

    def _on(self, query: str, grid: Times) -> dict[Labels, Values]:
        if query.startswith("timestamp(") and query.endswith(")"):
            inner = self._on(query[len("timestamp(") : -1], grid)
            return {labels: np.where(np.isnan(values), np.nan, grid / 1000) for labels, values in inner.items()}
        if " and " in query:
            one, other = (self._on(each, grid) for each in query.split(" and "))
            return {key: np.where(np.isnan(other[key]), np.nan, one[key]) for key in one.keys() & other.keys()}
        if (parts := _AGGREGATE.fullmatch(query)) is not None:
            function, by, inner_query = parts.groups()
            groups = defaultdict[Labels, list[Values]](list)
            for labels, values in self._on(inner_query, grid).items():
                groups[tuple(each for each in labels if each[0] in (by or "").split(", "))].append(values)
            return {labels: _BY[function](np.array(rows)) for labels, rows in groups.items()}
        if (parts := _RANGE.fullmatch(query)) is not None:
            function, metric, matchers, window = parts.groups()
            return self._within(metric, matchers, grid, int(window), is_count=function == "count")
        if (parts := _SELECTOR.fullmatch(query)) is not None:
            metric, matchers = parts.groups()
            return self._within(metric, matchers, grid, 5 * MINUTE)
        return {}

    def _within(
        self, metric: str, matchers: str, grid: Times, window: int, *, is_count: bool = False
    ) -> dict[Labels, Values]:
        found = {}
        for labels, (times, values) in self.series.items():
            if dict(labels)["__name__"] == metric and _matches(dict(labels), matchers):
                upto, since = np.searchsorted(times, grid, "right"), np.searchsorted(times, grid - window, "left")
                amounts = (upto - since).astype(float) if is_count else values[upto - 1]
                found[labels] = np.where(upto > since, amounts, np.nan)
        return found


def _matches(labels: Mapping[str, str], matchers: str) -> bool:
    found = _MATCHER.findall(matchers)
    assert ",".join("".join(each) for each in found) == matchers, matchers
    return all(
        re.fullmatch(json.loads(value) if how == "=~" else re.escape(json.loads(value)), labels.get(name, ""))
        for name, how, value in found
    )
