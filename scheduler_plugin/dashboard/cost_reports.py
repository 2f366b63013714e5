"""Costs from the history, computed once for all users and cached."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.kubernetes.objects import Json
from protocol.runtime.clock import Clock
from protocol.units import Instant, Seconds
from scheduler_plugin.dashboard.core.own_costs import HIGH, NOT_KEPT, SPANS, BillInputs, costs, prices_in
from scheduler_plugin.dashboard.core.visibility import VisibilityFilter
from scheduler_plugin.dashboard.sources.http_sources import Sources
from scheduler_plugin.history.core.samples import SECOND
from scheduler_plugin.history.costs.bills import KEYS, LABEL
from scheduler_plugin.history.ports import History, HistoryError, Period
from scheduler_plugin.history.priced_usage import priced_usage

MIN_CACHED: Final = Seconds(30.0)
_CACHED_TIMES: Final = 20
"""Responses are cached for this many times the duration of the query: one that took 4 s for 80 s."""
MOST_BILLS: Final = 64


@dataclass(slots=True)
class CostReports:
    """Costs from ``history`` (None if none is kept), by the values of ``labels`` among others."""

    history: History | None
    sources: Sources
    clock: Clock
    labels: Sequence[str] = ()
    _cached_inputs: dict[int, tuple[Instant, BillInputs]] = field(default_factory=dict)
    _bills: OrderedDict[tuple[int, Instant, VisibilityFilter, str, str], Json] = field(default_factory=OrderedDict)
    _asking: dict[int, asyncio.Lock] = field(default_factory=lambda: {span: asyncio.Lock() for span in SPANS})
    _billing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def of(self, visibility: VisibilityFilter, seconds: int, by: str, only: str) -> Json | None:
        """Costs of the last ``seconds`` grouped by ``by``, or only the line ``only``.

        None for an unknown period or grouping.
        """
        if seconds not in SPANS or by not in {*KEYS, *(f"{LABEL}{label}" for label in self.labels)}:
            return None
        if self.history is None:
            return NOT_KEPT
        try:
            # One lock per period, so that short periods do not wait for long ones.
            async with self._asking[seconds]:
                until, inputs = await self._inputs(self.history, seconds)
        except HistoryError:
            return NOT_KEPT
        # The key includes the user's permissions.
        key = seconds, until, visibility, by, only
        async with self._billing:
            if key not in self._bills:
                # In a thread, because 10,000 VMs take a second.
                document = await asyncio.to_thread(costs, inputs, visibility, by, only)
                self._bills[key] = {**document, "labels": list(self.labels)}
                # Keys are user input, so bound the cache.
                if len(self._bills) > MOST_BILLS:
                    self._bills.popitem(last=False)
            return self._bills[key]

    async def _inputs(self, history: History, seconds: int) -> tuple[Instant, BillInputs]:
        """Inputs of the bills, and until when they are cached. Raises ``HistoryError``."""
        began = self.clock.now()
        previous = self._cached_inputs.get(seconds)
        if previous is not None and began < previous[0]:
            return previous
        now = round(self.clock.wall() * SECOND)
        period = Period(now - seconds * SECOND, now)
        ranking, price_source = prices_in(await self.sources.of_scheduler("/settings"))
        prices, usages = await priced_usage(history, period, ranking)
        inputs = BillInputs(period, usages, await history.high_needs(period, HIGH), prices, price_source)
        # From the end of the query; otherwise a slow response would expire immediately.
        ended = self.clock.now()
        # A slow history is queried less often.
        valid_until = Instant(ended + max(MIN_CACHED, Seconds(_CACHED_TIMES * (ended - began))))
        self._cached_inputs[seconds] = valid_until, inputs
        return valid_until, inputs
