"""Denials of a primary in a pod, including every unusable response, and their effects."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import httpx2 as httpx
import pytest

from protocol.floors import decode_floor
from protocol.kubernetes.objects import annotations_of, child
from protocol.kubernetes.resources import CNPG_CLUSTERS, PODS
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_FLOOR
from protocol.units import Resources, Seconds
from scheduler_plugin.groups.controllers import denials as of_scheduler
from scheduler_plugin.groups.controllers.denials import HttpDenials
from scheduler_plugin.groups.core.tandem import DeniedRoom
from tests.fake_clock import FakeClock
from tests.scheduler_plugin.groups.program.cnpg_story import begun, resized
from tests.scheduler_plugin.groups.program.running import world

POD = ObjectName("default", "pg-1")
DENIED = b'{"vm": "default/pod/pg-1", "pods": [{"denied": {"cpu": "2", "mem": "4Gi"}, "deniedForSeconds": 60.2}]}'


def denials(body: bytes, status: int = 200) -> HttpDenials:
    def answer(request: httpx.Request) -> httpx.Response:
        assert str(request.url) == "http://scheduler:10297/explain/default/pod/pg-1"
        return httpx.Response(status, content=body)

    return HttpDenials(httpx.AsyncClient(transport=httpx.MockTransport(answer)), "http://scheduler:10297/", FakeClock())


async def test_denial_is_read_from_explanation() -> None:
    since = datetime.fromtimestamp(round(FakeClock().wall() - 60.2), UTC)
    assert await denials(DENIED).of(POD) == DeniedRoom(Resources.parse(2, "4Gi"), since)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"error": "no pod"}', 404),
        (DENIED, 503),
        (b"<html>", 200),
        (b'{"pods": []}', 200),
        (b'{"pods": [{"denied": {"cpu": "0", "mem": "0"}, "deniedForSeconds": null}]}', 200),
        (b'{"pods": [{"denied": {"cpu": "many", "mem": "0"}, "deniedForSeconds": 1}]}', 200),
        (b'{"pods": [{"denied": {"cpu": "1", "mem": "0"}, "deniedForSeconds": -1}]}', 200),
    ],
)
async def test_unusable_explanation_denies_nothing(body: bytes, status: int) -> None:
    assert await denials(body, status).of(POD) is None


async def test_explanation_that_never_ends_denies_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_scheduler, "_TIMEOUT", Seconds(0.1))

    async def hang(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        return httpx.Response(200)

    http = httpx.AsyncClient(transport=httpx.MockTransport(hang))
    async with asyncio.timeout(10):
        assert await HttpDenials(http, "http://scheduler:10297", FakeClock()).of(POD) is None
    assert len(caplog.records) == 1


async def test_scheduler_that_refuses_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Without an answer no standby is ever promoted, and nothing else would show why."""
    statuses = [403, 403, 200, 403]

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(statuses.pop(0), content=DENIED)

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    refused = HttpDenials(http, "http://scheduler:10297", FakeClock())
    denied = [await refused.of(POD) is not None for _ in range(4)]
    assert denied == [False, False, True, False]
    assert [each.getMessage() for each in caplog.records] == ["cannot read denials of primaries from the scheduler"] * 2


async def test_fault_of_one_pod_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler does not know each primary, such as one without the label; a fault of all is one line."""
    monkeypatch.setattr("scheduler_plugin.groups.controllers.denials._MOST_FAULTS", 2)
    down = False

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(503 if down else 404 if "pg-9" in request.url.path else 200, content=DENIED)

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    asked = HttpDenials(http, "http://scheduler:10297", FakeClock())
    names = [ObjectName("shop", f"pg-{number}") for number in (8, 9)]
    for pod in names * 3:
        await asked.of(pod)
    assert len(caplog.records) == 1
    down = True
    for number in range(6):
        await asked.of(ObjectName("shop", f"pg-{number}"))
    assert len(caplog.records) == 2


class FakeDenials:
    """The scheduler, which denies the same until it is changed."""

    def __init__(self, denial: DeniedRoom | None) -> None:
        self.denial = denial
        self.asked: set[ObjectName] = set()

    async def of(self, pod: ObjectName) -> DeniedRoom | None:
        self.asked.add(pod)
        return self.denial


async def test_denied_primary_changes_places_with_standby_that_grew() -> None:
    """The agent requests nothing from the kubelet that the scheduler denies, so the pod shows no sign of the denial."""
    async with world() as run:
        since = datetime.fromtimestamp(run.clock.wall(), UTC)
        run.denials = FakeDenials(DeniedRoom(Resources.parse(3, "7Gi"), since))
        await begun(run, switchover=True)
        standby = annotations_of(await run.cluster.get(PODS, "pg-2"))
        assert decode_floor(standby[ANNOTATION_FLOOR]).size == Resources.parse(4, "8Gi")
        await resized(run, "pg-2", "4", "8Gi")
        await run.passes(timedelta(minutes=5, seconds=15).total_seconds())
        status = child(await run.cluster.get(CNPG_CLUSTERS, "pg"), "status")
        assert (status["targetPrimary"], run.denials.asked) == ("pg-2", {POD})


async def test_primary_whose_need_dips_changes_places() -> None:
    """Its need dips every 80 s: it has been denied for five of the last ten minutes all the same."""
    async with world() as run:
        denials = FakeDenials(None)
        run.denials = denials
        await begun(run, switchover=True)
        await resized(run, "pg-2", "4", "8Gi")
        waited = 0
        while child(await run.cluster.get(CNPG_CLUSTERS, "pg"), "status")["targetPrimary"] == "pg-1":
            assert waited < 600
            since = datetime.fromtimestamp(run.clock.wall(), UTC)
            denials.denial = DeniedRoom(Resources.parse(3, "7Gi"), since)
            await run.passes(65)
            denials.denial = None
            await run.passes(15)
            waited += 80
        assert waited == 480


async def test_denials_of_an_hour_ago_promote_nobody() -> None:
    async with world() as run:
        denials = FakeDenials(None)
        run.denials = denials
        await begun(run, switchover=True)
        await resized(run, "pg-2", "4", "8Gi")
        for _ in range(4):
            since = datetime.fromtimestamp(run.clock.wall(), UTC)
            denials.denial = DeniedRoom(Resources.parse(3, "7Gi"), since)
            await run.passes(240)
            denials.denial = None
            await run.passes(600)
        assert child(await run.cluster.get(CNPG_CLUSTERS, "pg"), "status")["targetPrimary"] == "pg-1"


async def test_scheduler_is_asked_only_if_owner_allows_switchover() -> None:
    async with world() as run:
        run.denials = FakeDenials(DeniedRoom(Resources.parse(3, "7Gi"), datetime.fromtimestamp(0, UTC)))
        await begun(run)
        await run.passes(600)
        assert run.denials.asked == set()
