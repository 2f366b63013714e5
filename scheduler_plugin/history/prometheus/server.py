"""Client of Prometheus' HTTP API: values of an expression at a time or over a range."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import httpx2 as httpx
import msgspec

from scheduler_plugin.history.core.samples import SECOND, Millis
from scheduler_plugin.history.ports import HistoryError, Period
from scheduler_plugin.history.prometheus.expressions import GREATEST

Labels = Mapping[str, str]

# Few, because Prometheus by default allows 20 concurrent queries of all its users.
_CONCURRENT: Final = 4


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str] = {}
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct, frozen=True):
    result: list[_Series] = []


class _QueryResponse(msgspec.Struct, frozen=True):
    status: str = ""
    error: str = ""
    data: _Data = _Data()


_ANSWER: Final = msgspec.json.Decoder(_QueryResponse)


class PrometheusServer:
    """Queries a server over ``http``, which has its base address and credentials."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http, self._limit = http, asyncio.Semaphore(_CONCURRENT)

    async def ranges(
        self, expression: str, period: Period, step: Millis
    ) -> list[tuple[Labels, list[tuple[Millis, float]]]]:
        """Values of an expression over a period, by series. Raises ``HistoryError``."""
        times = {"start": period.since / SECOND, "end": (period.until - 1) / SECOND, "step": step / SECOND}
        answered = await self._ask("/api/v1/query_range", {"query": expression, **times})
        ranges = [
            (series.metric, [(_moment(at), _number(value)) for at, value in series.values]) for series in answered
        ]
        return [(labels, [point for point in values if _is_amount(point[1])]) for labels, values in ranges]

    async def vector(self, expression: str, at: Millis | None = None) -> list[tuple[Labels, float]]:
        """Values of an expression at a time, now if None, by series. Raises ``HistoryError``."""
        parameters: dict[str, str | float] = {"query": expression} | ({} if at is None else {"time": at / SECOND})
        answered = await self._ask("/api/v1/query", parameters)
        values = [(series.metric, _number(series.value[1])) for series in answered if series.value is not None]
        return [(labels, value) for labels, value in values if _is_amount(value)]

    async def _ask(self, path: str, parameters: Mapping[str, str | float]) -> list[_Series]:
        try:
            async with self._limit:
                # POST, because many names would exceed the length of a URL.
                response = await self._http.post(path, data=dict(parameters))
            # For every status code, because the body contains the error.
            answer = _ANSWER.decode(response.content)
        except (httpx.HTTPError, ValueError, RecursionError) as error:
            # The host and port only: a URL may contain a password.
            address = self._http.base_url.netloc.decode()
            raise HistoryError(f"no usable response from Prometheus at {address}: {error}") from error
        if answer.status != "success":
            raise HistoryError(f"Prometheus refused the query ({response.status_code}): {answer.error or 'no reason'}")
        return answer.data.result


def _number(text: str) -> float:
    try:
        # Values are strings, because JSON has no NaN and infinity.
        return float(text)
    except ValueError:
        raise HistoryError(f"no usable response from Prometheus: a value is {text[:40]!r}") from None


def _moment(at: float) -> Millis:
    """Convert a time from seconds. Raises ``HistoryError``."""
    if not 0 <= at < GREATEST:
        raise HistoryError(f"no usable response from Prometheus: a time is {at}")
    return round(at * SECOND)


def _is_amount(value: float) -> bool:
    """Return True if it can be an amount; with relabelling a metric may have any value."""
    return 0 <= value < GREATEST
