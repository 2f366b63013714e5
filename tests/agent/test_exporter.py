"""Metrics, probes and explanations over the agent's own listener."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus

import httpx2 as httpx
import msgspec
import pytest
import pytest_asyncio
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from agent.assignments import Assignment, OwnVm
from agent.core.events import Fault
from agent.exporter import explain_guard, routes
from agent.ports import PortError
from agent.supervisor import Supervisor
from protocol.guest.database import DatabaseState
from protocol.guest.sleep import SleepReport, SleepState
from protocol.kubernetes.access_reviews import Scope
from protocol.messages import ObjectName
from protocol.pod_database import DEFERRED, ResizeObjection
from protocol.runtime.explaining.explain_access import AccessDenial, Caller
from protocol.runtime.explaining.probe_server import listening
from protocol.runtime.serving.http_requests import HttpResponse
from protocol.units import Seconds
from tests.agent.core.story import POLICY
from tests.agent.fake_ports import ASSIGNMENT, RunnerFixture
from tests.plain_http import plain_client


@pytest_asyncio.fixture
async def served() -> AsyncIterator[tuple[RunnerFixture, Supervisor, httpx.AsyncClient]]:
    """A fixture whose runner a supervisor has, behind a sidecar's listener."""
    fixture = RunnerFixture()
    supervisor = Supervisor(OwnVm(ASSIGNMENT), lambda *_: fixture.runner, POLICY, fixture.clock)
    supervisor.growths = fixture.growths
    async with (
        listening("127.0.0.1", 0, routes(supervisor, fixture.clock, alone=True)) as port,
        plain_client(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        yield fixture, supervisor, http


Served = tuple[RunnerFixture, Supervisor, httpx.AsyncClient]
Exported = tuple[RunnerFixture, Callable[[], Awaitable[str]]]


@pytest_asyncio.fixture
async def exported(served: Served) -> AsyncIterator[Exported]:
    """A runner after two seconds, and what reads its page of metrics."""
    fixture, supervisor, http = served
    supervisor.runners[ASSIGNMENT] = fixture.runner

    async def page() -> str:
        return (await http.get("/metrics")).text

    async with fixture:
        await fixture.clock.advance(2.0)
        yield fixture, page


async def test_readiness_waits_until_every_vm_was_read(served: Served) -> None:
    fixture, supervisor, http = served
    answers = [await http.get("/readyz")]
    supervisor.is_listed = True
    supervisor.runners[ASSIGNMENT] = fixture.runner
    answers.append(await http.get("/readyz"))
    async with fixture:
        answers.append(await http.get("/readyz"))
    assert [(a.status_code, a.text) for a in answers] == [
        (503, "VMs not listed yet\n"),
        (503, "waiting for the first read of default/vm-1\n"),
        (200, "ok\n"),
    ]
    assert (await http.get("/healthz")).text == "ok\n"


async def test_metrics_are_what_the_runners_know(exported: Exported) -> None:
    _, page = exported
    text = await page()
    found = {
        (s.name, s.labels.get("kind", "")): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }
    assert found["autoscale_agent_vms", ""] == 1
    assert found["autoscale_agent_cpu_cores", "actual"] == 0.25
    assert found["autoscale_agent_memory_bytes", "permit"] == 1024**3
    assert {kind for name, kind in found if name == "autoscale_agent_cpu_cores"} == {
        *("actual", "ordered", "permit", "goal", "used", "least", "most")
    }
    assert found["autoscale_agent_events_total", "scrape_ok"] == 3
    assert found["autoscale_agent_denied", ""] == 0
    assert "process_resident_memory_bytes" in text


async def test_use_of_a_hanging_guest_is_unknown(exported: Exported) -> None:
    fixture, page = exported
    fixture.guest.error = PortError(Fault.GUEST, "hangs")
    await fixture.clock.advance(60.0)
    text = await page()
    kinds = re.findall(r'autoscale_agent_(?:cpu_cores|memory_bytes)\{kind="(\w+)"', text)
    assert sorted(kinds) == sorted(2 * ["actual", "ordered", "permit", "least", "most"])


async def test_kills_of_a_guest_are_counted(exported: Exported) -> None:
    fixture, page = exported
    fixture.guest.oom_kills = 3.0
    await fixture.clock.advance(1.0)
    text = await page()
    assert 'autoscale_agent_guest_oom_kills_total{namespace="default",vm="vm-1"} 3.0' in text


async def test_sleep_and_quiet_are_exported(served: Served) -> None:
    fixture, supervisor, http = served
    supervisor.runners[ASSIGNMENT] = fixture.runner
    fixture.guest.quiet = 42.0
    async with fixture:
        await fixture.clock.advance(2.0)
        awake = (await http.get("/metrics")).text
        fixture.vm_api.change(phase="Asleep", actual=None)
        await fixture.clock.advance(2.0)
        asleep = (await http.get("/metrics")).text
    assert 'autoscale_agent_database_quiet_seconds{namespace="default",vm="vm-1"} 42.0' in awake
    assert 'autoscale_agent_asleep{namespace="default",vm="vm-1"} 0.0' in awake
    assert 'autoscale_agent_asleep{namespace="default",vm="vm-1"} 1.0' in asleep
    assert "autoscale_agent_database_quiet_seconds{" not in asleep


async def test_wakes_are_exported(exported: Exported) -> None:
    """Latency of the wake, its source by kind, and that no client used it; never an address."""
    fixture, page = exported
    packet, order = (
        SleepReport(state=SleepState.WAKING, message=message)
        for message in ("10.1.2.3:40312 opened a connection", "the order to sleep was removed")
    )
    for report in (packet, order):
        fixture.vm_api.change(phase="Asleep", actual=None)
        await fixture.clock.advance(2.0)
        fixture.vm_api.change(phase="Waking", actual=None, sleep=report)
        await fixture.clock.advance(2.0)
    text = await page()
    reading = SleepReport(state=SleepState.WAKING, message=order.message, saved=100 * 2**20)
    fixture.vm_api.change(phase="Running", actual=None, sleep=reading)
    await fixture.clock.advance(31.0)
    starting = await page()
    fixture.vm_api.change(sleep=SleepReport(state=SleepState.AWAKE, message=order.message))
    await fixture.clock.advance(1.0)
    running = await page()
    assert 'autoscale_agent_wakes_total{by="packet",namespace="default",vm="vm-1"} 1.0' in text
    assert 'autoscale_agent_wakes_total{by="order",namespace="default",vm="vm-1"} 1.0' in text
    assert 'autoscale_agent_waking_seconds{namespace="default",vm="vm-1"} 2.0' in text
    # The phase is Running as soon as the permit is stored, whether or not the guest starts.
    assert 'autoscale_agent_waking_seconds{namespace="default",vm="vm-1"} 33.0' in starting
    assert 'autoscale_agent_waking_seconds{namespace="default",vm="vm-1"} 0.0' in running
    assert 'autoscale_agent_wake_overdue_seconds{namespace="default",vm="vm-1"} 2.0' in text
    assert 'autoscale_agent_wake_overdue_seconds{namespace="default",vm="vm-1"} 32.0' in starting
    assert 'autoscale_agent_woken_for_nothing{namespace="default",vm="vm-1"} 0.0' in text
    assert "10.1.2.3" not in text


async def test_a_growth_and_a_trouble_are_told(exported: Exported) -> None:
    fixture, page = exported
    fixture.guest.cores = 0.25
    fixture.scheduler.errors = [PortError(Fault.SCHEDULER, "away")]
    await fixture.clock.advance(1.5)
    waits = await page()
    await fixture.clock.advance(4.0)
    grown = await page()
    assert 'autoscale_agent_trouble{about="scheduler",namespace="default",vm="vm-1"} 1.0' in waits
    assert 'autoscale_agent_growth_seconds_count{stage="size"} 0.0' in waits
    assert 'autoscale_agent_trouble{about="scheduler",namespace="default",vm="vm-1"} 0.0' in grown
    assert 'autoscale_agent_growth_seconds_bucket{le="5.0",stage="size"} 1.0' in grown
    assert 'autoscale_agent_growth_waiting_seconds{namespace="default",vm="vm-1"} 0.0' in grown


async def test_metrics_of_an_agent_that_knows_nothing_yet(served: Served) -> None:
    fixture, supervisor, http = served
    supervisor.runners[ASSIGNMENT] = fixture.runner
    assert "autoscale_agent_cpu_cores{" not in (await http.get("/metrics")).text


async def test_explain_by_name_or_only_vm(served: Served) -> None:
    fixture, supervisor, http = served
    assert (await http.get("/explain")).json() == {"error": "unknown VM or pod: none yet"}
    supervisor.runners[ASSIGNMENT] = fixture.runner
    async with fixture:
        await fixture.clock.advance(2.0)
        alone, named = (await http.get("/explain")).json(), (await http.get("/explain/default/vm-1")).json()
    assert alone == named
    assert (alone["vm"], alone["size"]["has"], alone["troubles"]) == (
        "default/vm-1",
        {"cpu": "250m", "mem": "1Gi"},
        [],
    )
    missing = await http.get("/explain/default/vm-9")
    assert (missing.status_code, missing.json()) == (404, {"error": "unknown VM or pod: default/vm-9"})


async def test_pod_metrics_are_selected_by_name(served: Served) -> None:
    """Its name has a slash."""
    fixture, supervisor, _ = served
    pod = Assignment(ObjectName("default", "pod/pg-1"), ObjectName("default", "pg-1"))
    fixture.runner.assignment = pod
    supervisor.runners[pod] = fixture.runner
    paths = routes(supervisor, fixture.clock, alone=False)
    async with fixture:
        await fixture.clock.advance(2.0)
        answers = [paths["/explain"](path) for path in ("/default/pod/pg-1", "/default/pg-1")]
        response = paths["/metrics"]("")
        assert isinstance(response, Awaitable)
        metrics = await response
    found, missing = (answer for answer in answers if isinstance(answer, HttpResponse))
    assert (msgspec.json.decode(found.body)["vm"], missing.status) == ("default/pod/pg-1", HTTPStatus.NOT_FOUND)
    assert b'autoscale_agent_denied{namespace="default",vm="pod/pg-1"} 0.0' in metrics.body


async def test_the_database_is_asked_when_the_agent_is(served: Served) -> None:
    fixture, supervisor, http = served
    assert (await http.get("/database")).status_code == 404
    supervisor.runners[ASSIGNMENT] = fixture.runner
    fixture.database.view = DatabaseState(True, streaming=True, lag=Seconds(0.5), sessions=3)
    answer = await http.get("/database")
    assert (answer.status_code, answer.json()) == (
        200,
        {
            "standby": True,
            "streaming": True,
            "lagSeconds": 0.5,
            "sessions": 3,
            "oldestTransactionSeconds": None,
        },
    )
    fixture.database.error = PortError(Fault.GUEST, "no database status from the guest: it is starting")
    answer = await http.get("/database/default/vm-1")
    assert (answer.status_code, answer.json()) == (
        503,
        {"error": "no database status from the guest: it is starting"},
    )


async def test_the_node_form_lists_its_vms(served: Served) -> None:
    fixture, supervisor, http = served
    supervisor.runners[ASSIGNMENT] = fixture.runner
    supervisor.source.unreadable = {ObjectName("default", "vm-2-pod"): "nested"}  # type: ignore[misc]
    answer = routes(supervisor, fixture.clock, alone=False)["/explain"]("")
    assert isinstance(answer, HttpResponse)
    assert msgspec.json.decode(answer.body) == {
        "vms": ["default/vm-1"],
        "unreadable": {"default/vm-2-pod": "nested"},
    }
    assert "autoscale_agent_unreadable_pods 1.0" in (await http.get("/metrics")).text


class Refusing:
    """An access check that rejects everyone, and records the requested databases."""

    def __init__(self) -> None:
        self.asked: list[tuple[Caller, Scope]] = []

    async def denial(self, caller: Caller, scope: Scope) -> AccessDenial | None:
        self.asked.append((caller, scope))
        return AccessDenial(HTTPStatus.FORBIDDEN, "not you")


@pytest.mark.parametrize(
    ("alone", "scopes"),
    [
        (ASSIGNMENT, [Scope("default")] * 5),
        (None, [Scope(), Scope("shop"), Scope("shop"), Scope("shop", of_pods=True), Scope()]),
    ],
)
async def test_explanations_are_guarded_and_metrics_are_not(alone: Assignment | None, scopes: list[Scope]) -> None:
    access, told = Refusing(), HttpResponse(b"told\n")
    open_to_all = {path: (lambda _: told) for path in ("/metrics", "/healthz", "/readyz", "/explain", "/database")}
    async with (
        listening("127.0.0.1", 0, open_to_all, explain_guard(access, alone)) as port,
        plain_client(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": "Bearer t"}) as http,
    ):
        for path in ("/metrics", "/healthz", "/readyz?explain"):
            assert (await http.get(path)).text == "told\n"
        paths = (
            "/explain",
            "/explain/shop/db",
            "/database/shop/db?x=1",
            "/explain/shop/pod/pg-1",
            "/explain//shop/pod/a",
        )
        for path in paths:
            answer = await http.get(path)
            assert (answer.status_code, answer.json()) == (403, {"error": "not you"})
    assert [scope for _, scope in access.asked] == scopes
    assert {caller for caller, _ in access.asked} == {Caller("Bearer t", "127.0.0.1", "127.0.0.1", f"127.0.0.1:{port}")}


async def test_objection_is_exported_by_its_verdict(served: Served) -> None:
    """Only while it lasts, so that an alert on it starts again after a revert."""
    fixture, supervisor, http = served
    supervisor.runners[ASSIGNMENT] = fixture.runner
    pages = list[str]()
    async with fixture:
        await fixture.clock.advance(2.0)
        seen = fixture.runner.state.vm.observed
        assert seen is not None
        for objection in (None, ResizeObjection(DEFERRED, "no room")):
            fixture.runner.state.vm.observed = replace(seen, objection=objection)
            pages.append((await http.get("/metrics")).text)
    samples = [[line for line in page.splitlines() if line.startswith("autoscale_agent_resize")] for page in pages]
    assert samples == [
        [],
        ['autoscale_agent_resize_objection{namespace="default",verdict="Deferred",vm="vm-1"} 1.0'],
    ]
