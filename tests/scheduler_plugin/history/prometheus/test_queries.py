"""Queries to Prometheus, and the use of their results; ``test_history_of_prometheus`` queries a real one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest

from protocol.messages import ObjectName
from scheduler_plugin.history.core.samples import COLUMN_INDEX, HOUR, MINUTE, SECOND, VM_COLUMNS
from scheduler_plugin.history.ports import HistoryError, Period
from scheduler_plugin.history.prometheus.expressions import SCRAPED
from scheduler_plugin.history.prometheus.queries import PrometheusHistory

NOW = 1_767_225_600_000
PERIOD = Period(NOW - HOUR, NOW)
DB = ObjectName("default", 'd"b')


def history(answer: Callable[[str], httpx.Response]) -> PrometheusHistory:
    def reply(request: httpx.Request) -> httpx.Response:
        return answer(httpx.QueryParams(request.content.decode())["query"])

    http = httpx.AsyncClient(transport=httpx.MockTransport(reply), base_url="http://prometheus")
    return PrometheusHistory(http, scrapes=15 * SECOND)


def result(*series: Any) -> httpx.Response:
    return httpx.Response(200, content=json.dumps({"status": "success", "data": {"result": list(series)}}))


async def test_a_name_cannot_leave_its_string() -> None:
    asked: list[str] = []

    def answer(query: str) -> httpx.Response:
        asked.append(query)
        return result()

    assert await history(answer).vm_series(DB, PERIOD, MINUTE) == []
    assert all('namespace="default",vm="d\\"b"}[' in query for query in asked)
    assert len(asked) == 10


async def test_pod_is_asked_for_by_its_name() -> None:
    asked: list[str] = []

    def answer(query: str) -> httpx.Response:
        asked.append(query)
        labels = {"namespace": "default", "vm": "pod/pg-1"}
        return result({"metric": labels, "values": [[PERIOD.since // SECOND, "1"]]})

    pod = ObjectName("default", "pod/pg-1")
    assert await history(answer).vm_series(pod, PERIOD, MINUTE) != []
    assert all('namespace="default",vm="pod/pg-1"}[' in query for query in asked)


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (
            httpx.Response(400, content=b'{"status":"error","error":"bad query"}'),
            r"refused the query \(400\): bad query",
        ),
        (httpx.Response(502, content=b"<html>"), "no usable response"),
        (httpx.Response(200, content=b'{"status":"\xff"}'), "no usable response"),
        (httpx.Response(200, content=b'{"status":"success","data":{"result":[{"value":[1,"much"]}]}}'), "no usable"),
    ],
)
async def test_an_answer_that_is_none_is_an_error(response: httpx.Response, said: str) -> None:
    with pytest.raises(HistoryError, match=said):
        await history(lambda _: response).extent()


async def test_a_server_that_is_away_is_an_error() -> None:
    def answer(query: str) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(HistoryError, match="refused"):
        await history(answer).usage(PERIOD)


async def test_an_empty_server_has_an_empty_history() -> None:
    empty = history(lambda _: result())
    assert (await empty.extent()).since is None
    assert await empty.usage(PERIOD) == []
    assert await empty.node_usage(PERIOD) == []
    assert await empty.high_needs(PERIOD, 0.995) == {}
    assert await empty.decisions(None, PERIOD) == []
    assert await empty.moves(None, PERIOD) == []


async def test_numbers_that_are_none_are_left_out() -> None:
    odd = {"metric": {"namespace": "d", "vm": "x"}, "value": [1, "NaN"]}
    assert await history(lambda _: result(odd)).high_needs(PERIOD, 0.9) == {}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1", "1e308"])
async def test_bad_amount_counts_as_missing(value: str) -> None:
    at = PERIOD.since / SECOND
    labels = {"namespace": "default", "vm": "db", "node": "n1"}
    answer = result({"metric": labels, "value": [at, value], "values": [[at, value], [at + 15, "2"]]})
    found = history(lambda _: answer)
    (span,) = await found.vm_series(DB, PERIOD, 15 * SECOND)
    assert (span.since, span.peaks[COLUMN_INDEX["size_cpu"]]) == (PERIOD.since + 15 * SECOND, 2000)
    assert (await found.decisions(DB, PERIOD), await found.usage(PERIOD)) == ([], [])


async def test_long_stopped_vm_did_not_migrate() -> None:
    at = PERIOD.since / SECOND
    pauses = {}
    for pause in (60, 600):
        stays = [(0, "n1"), (30 + pause, "n2")]
        series = [
            {
                "metric": {"namespace": "d", "vm": "x", "node": node},
                "values": [[at + begin + each, "1"] for each in (0, 15, 30)],
            }
            for begin, node in stays
        ]
        pauses[pause] = len(await history(lambda _, said=series: result(*said)).moves(None, PERIOD))  # type: ignore[misc]
    assert pauses == {60: 1, 600: 0}


@pytest.mark.parametrize("is_live", [True, False])
async def test_history_ends_at_last_sample(is_live: bool) -> None:
    asked: list[str] = []

    def answer(query: str) -> httpx.Response:
        asked.append(query)
        return result({"value": [1, "5"]}) if is_live or "over_time" in query else result()

    found = await history(answer).extent()
    assert (found.since, found.until, len(asked)) == (5000, 5000, 3 if is_live else 4)


@pytest.mark.parametrize("age", [10 * MINUTE, 90 * MINUTE])
async def test_history_starts_at_first_sample(age: int) -> None:
    """As a server would answer, at ten minutes to the hour."""
    now = NOW - 10 * MINUTE

    def reply(request: httpx.Request) -> httpx.Response:
        asked = httpx.QueryParams(request.content.decode())
        at = round(float(asked.get("time", now / SECOND)) * SECOND)
        if "over_time" not in asked["query"]:
            return result({"value": [1, str(at / SECOND)]})
        length, step = (each for each in re.findall(r"(\d+)(ms|h)", asked["query"]))
        width = int(step[0]) * (HOUR if step[1] == "h" else 1)
        grid = range((at - int(length[0])) // width * width + width, at + 1, width)
        seen = [each for each in grid if each >= now - age]
        return result({"value": [1, str(min(seen) / SECOND)]}) if seen else result()

    http = httpx.AsyncClient(transport=httpx.MockTransport(reply), base_url="http://prometheus")
    found = await PrometheusHistory(http, scrapes=15 * SECOND).extent()
    assert (found.since, found.until) == (now - age, now)


@pytest.mark.parametrize("at", ["1e999", "-1", "1e300"])
async def test_a_time_that_is_none_is_an_error(at: str) -> None:
    body = f'{{"status":"success","data":{{"result":[{{"metric":{{}},"values":[[{at},"1"]]}}]}}}}'
    with pytest.raises(HistoryError, match="no usable response"):
        await history(lambda _: httpx.Response(200, content=body)).vm_series(DB, PERIOD, MINUTE)


async def test_missing_series_uses_other_answers() -> None:
    series = {"metric": {"namespace": "d", "vm": "x"}, "value": [1, "60"]}
    (usage,) = await history(lambda query: result() if "max_over_time((timestamp" in query else result(series)).usage(
        PERIOD
    )
    assert (usage.span.since, usage.span.until) == (60_000, 75_000)


async def test_permit_only_agent_costs_permit() -> None:
    series = {"metric": {"namespace": "d", "vm": "x"}, "value": [1, "60"]}
    (usage,) = await history(lambda query: result(series) if "permit" in query else result()).usage(PERIOD)
    known = dict(zip(VM_COLUMNS, usage.span.known_times, strict=True))
    assert (usage.span.observed, known["size_cpu"], known["reserved_cpu"]) == (60 * 15_000, 0, 60 * 15_000)


@pytest.mark.parametrize(("samples", "window"), [("20", "29999ms"), ("40", "14999ms"), (None, "14999ms")])
async def test_scrape_interval_is_queried_until_known(samples: str | None, window: str) -> None:
    asked: list[str] = []

    def reply(request: httpx.Request) -> httpx.Response:
        query = httpx.QueryParams(request.content.decode())["query"]
        asked.append(query)
        is_known = samples is not None and query == SCRAPED
        return result({"metric": {}, "value": [1, samples]}) if is_known else result()

    found = PrometheusHistory(httpx.AsyncClient(transport=httpx.MockTransport(reply), base_url="http://prometheus"))
    for _ in range(2):
        await found.decisions(DB, PERIOD)
    assert asked.count(SCRAPED) == (1 if samples else 2)
    assert all(f"[{window}]" in query for query in asked if query != SCRAPED)


@pytest.mark.parametrize("order", [1, -1])
async def test_nodes_have_price_keys_by_time(order: int) -> None:
    """``n1`` is replaced half way by a spot node of another type; Prometheus answers in any order."""
    half, at = PERIOD.since + HOUR // 2, "label_node_kubernetes_io_instance_type"
    spot = {at: "m6", "label_karpenter_sh_capacity_type": "spot", "label_karpenter_sh_nodepool": "cheap"}

    def answer(query: str) -> httpx.Response:
        first, last = PERIOD.since / SECOND, PERIOD.until / SECOND - 15
        if "kube_node_labels" in query:
            ends = [half / SECOND - 15, last] if query.startswith("max") else [first, half / SECOND]
            both: list[dict[str, str]] = [{at: "m5", "label_team": "a"}, spot]
            series = list(zip(both, ends, strict=True))[::order]
            return result(*({"metric": {"node": "n1"} | labels, "value": [0, str(end)]} for labels, end in series))
        if "node_reservable" not in query:
            return result()
        value = str(first if query.startswith("min") else last) if "timestamp" in query else "4"
        return result({"metric": {"node": "n1"}, "value": [0, value]})

    one, other = await history(answer).node_usage(PERIOD)
    assert (one.facts.price_keys, other.facts.price_keys) == (("n1", "m5"), ("n1", "cheap", "m6/spot", "m6"))
    assert (one.span.since, one.span.until, other.span.since) == (PERIOD.since, half, half)
