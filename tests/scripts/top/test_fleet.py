"""The view of a cluster in ``top``: its queries, its messages about failures, and the user's commands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import httpx2 as httpx
import msgspec
import pytest

from deploy.kube.client import ApiClient
from protocol.kubernetes.objects import Json, name_of, text
from protocol.runtime.kubernetes.http_api import HttpApi
from scheduler_plugin.dashboard.core.states import LONG
from scripts.autoscale.site import NAME_LABEL
from scripts.autoscale.top.columns import TableRow
from scripts.autoscale.top.fleet import FleetReader
from tests.fake_clock import FakeClock
from tests.pod_databases import pod_database
from tests.scripts.top.fleet_fixture import MOVE, agent, node, vm

API = "http://api"


class Place:
    """A cluster of one node; each VM has a pod, whose agent counts its questions."""

    title = "a test"

    def __init__(self, *names: str) -> None:
        self.request_errors: dict[str, str] = {}
        self.vms = [_with_pod(vm(each)) for each in names]
        self.pods: list[Json] = []
        self.migrations: list[Json] = []
        self.nodes: list[Json] | None = [node("node-1")]
        self.is_away = False
        self.knows_migrations = True
        self.asked: list[str] = []
        self.made: list[Json] = []
        self.client = ApiClient(
            HttpApi(httpx.AsyncClient(base_url=API, transport=httpx.MockTransport(self._answer)), lambda: None)
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if self.is_away:
            raise httpx.ConnectError("refused")
        kind = request.url.path.rpartition("/")[2]
        if request.method == "POST":
            self.made.append(msgspec.json.decode(request.content, type=Json))
            made = {"metadata": {"namespace": "shop", "name": "db-7"}}
            return httpx.Response(201, json=made)
        if kind == "virtualmachinemigrations" and not self.knows_migrations:
            return httpx.Response(404, json={"kind": "Status", "reason": "NotFound", "code": 404})
        found = {"virtualmachines": self.vms, "virtualmachinemigrations": self.migrations}
        pods = [
            {"metadata": {"namespace": name_of(each).namespace, "name": text(each, "status", "podName")}}
            for each in self.vms
        ] + self.pods
        return httpx.Response(200, json={"metadata": {"resourceVersion": "1"}, "items": found.get(kind, pods)})

    async def of_scheduler(self, path: str) -> Json | None:
        return None if self.nodes is None else {"nodes": self.nodes}

    async def of_groups(self, path: str) -> Json | None:
        return None

    async def of_agent(self, pod: Json, path: str) -> Json | None:
        self.asked.append(text(pod, "metadata", "name"))
        return agent()

    def into_vm(self, vm: Json, port: int) -> AbstractAsyncContextManager[tuple[str, int]]:
        raise NotImplementedError


def _with_pod(given: Json) -> Json:
    status = given["status"]
    assert isinstance(status, dict)
    return {**given, "status": {**status, "podName": f"pod-{text(given, 'metadata', 'name')}"}}


def by_name(rows: tuple[TableRow, ...]) -> dict[str, TableRow]:
    return {each.name: each for each in rows}


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    made = Place("shop/db", "shop/orders", "default/other")
    yield made
    await made.client.__aexit__()


async def test_one_look_asks_every_agent(place: Place) -> None:
    place.migrations = [{**MOVE, "spec": {"vmName": "db"}}]
    seen = await FleetReader(place, FakeClock()).everything()
    assert sorted(place.asked) == ["pod-db", "pod-orders", "pod-other"]
    found = by_name(seen.vms)
    assert {name: row.state for name, row in found.items()} == {
        "shop/db": "migrating",
        "shop/orders": "Running",
        "default/other": "Running",
    }
    assert found["shop/orders"].cells[4] == "1.90"
    assert ([each.name for each in seen.nodes], seen.troubles) == (["node-1"], ())


async def test_pods_that_opted_in_are_rows(place: Place) -> None:
    """Their agents are those of their nodes; a pod that opts out again is no row any more."""
    about = {"namespace": "kube-system", "name": "agent-n1", "labels": {NAME_LABEL: "autoscaling-agent"}}
    place.pods = [pod_database("db", "shop"), {"metadata": about, "spec": {"nodeName": "n1"}}]
    fleet = FleetReader(place, FakeClock(), "shop")
    rows = by_name((await fleet.everything()).vms)
    assert sorted(rows) == ["shop/db", "shop/orders", "shop/pod/db"]
    assert (rows["shop/pod/db"].cells[3], rows["shop/pod/db"].cells[4]) == ("1", "1.90")
    assert sorted(place.asked) == ["agent-n1", "pod-db", "pod-orders"]
    place.pods[0] = {**place.pods[0], "metadata": {"namespace": "shop", "name": "db", "resourceVersion": "2"}}
    assert sorted(by_name((await fleet.everything()).vms)) == ["shop/db", "shop/orders"]


async def test_single_namespace_works_without_migrations(place: Place) -> None:
    place.knows_migrations = False
    seen = await FleetReader(place, FakeClock(), "shop").everything()
    assert sorted(by_name(seen.vms)) == ["shop/db", "shop/orders"]


async def test_outage_is_reported_and_rows_stay(place: Place) -> None:
    fleet = FleetReader(place, FakeClock())
    before = await fleet.everything()
    place.is_away, nodes, place.nodes = True, place.nodes, None
    lost = await fleet.read([])
    assert (lost.vms, lost.nodes) == (before.vms, before.nodes)
    api, scheduler = lost.troubles
    assert (api.startswith("The API server does not respond: "), scheduler) == (True, "The scheduler does not respond.")
    place.is_away, place.nodes = False, nodes
    assert await fleet.read([]) == before


async def test_visible_agents_are_queried_others_in_turn() -> None:
    place = Place(*(f"shop/db-{each}" for each in range(100)))
    fleet = FleetReader(place, FakeClock())
    await fleet.everything()
    place.asked.clear()
    for _ in range(4):
        await fleet.read(["shop/db-99", "shop/gone"])
    assert (place.asked.count("pod-db-99") >= 4, len(set(place.asked)), len(place.asked) < 110) == (True, 100, True)
    await place.client.__aexit__()


async def test_long_pending_vm_is_marked(place: Place) -> None:
    clock = FakeClock()
    fleet, running = FleetReader(place, clock), place.vms
    place.vms = [{**each, "status": {"phase": "Pending"}} if "orders" in str(each) else each for each in running]
    states = []
    for passed, found in ((0.0, place.vms), (LONG, place.vms), (0.0, []), (0.0, place.vms)):
        place.vms = found
        await clock.advance(passed)
        states.append(by_name((await fleet.everything()).vms).get("shop/orders"))
    assert [each and each.state for each in states] == ["Pending", "waiting", None, "Pending"]


async def test_only_changed_vms_get_new_rows(place: Place) -> None:
    fleet = FleetReader(place, FakeClock())
    before = by_name((await fleet.everything()).vms)
    place.vms = [
        {**each, "status": {**_status(each), "cpus": "4"}} if "orders" in str(each) else each for each in place.vms
    ]
    after = by_name((await fleet.everything()).vms)
    assert [name for name in before if after[name] is not before[name]] == ["shop/orders"]
    assert after["shop/orders"].cells[3] == "4"


async def test_scheduler_report_changes_only_its_row(place: Place) -> None:
    def said(*denied: str) -> list[Json]:
        pods = {"node-1": "shop/db", "node-2": "shop/orders"}
        return [
            {**node(name), "pods": [{"vm": vm, "denied": {"cpu": "1" if vm in denied else "0", "mem": "0"}}]}
            for name, vm in pods.items()
        ]

    fleet = FleetReader(place, FakeClock())
    place.nodes = said()
    before = await fleet.everything()
    place.nodes = said("shop/orders")
    after = await fleet.read([])
    assert [row.name for row in before.vms if by_name(after.vms)[row.name] is not row] == ["shop/orders"]
    assert by_name(after.vms)["shop/orders"].state == "denied"
    place.nodes = said()[:1]
    assert [row.state for row in (await fleet.read([])).vms] == ["Running"] * 3


def _status(given: Json) -> Json:
    found = given["status"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("odd", ["", "-1", "\x00", "1e99", "much", None, {}])
async def test_an_amount_that_cannot_be_read_ends_nothing(place: Place, odd: object) -> None:
    place.nodes = [{**node("node-1"), "reserved": {"cpu": odd, "mem": odd}, "watermark": {"cpu": odd}}]
    seen = await FleetReader(place, FakeClock()).everything()
    assert [each.name for each in seen.nodes] == ["node-1"]


async def test_question_escapes_control_characters(place: Place) -> None:
    place.vms[0] = {**place.vms[0], "status": {**_status(place.vms[0]), "node": "n\x1b[2J"}}
    fleet = FleetReader(place, FakeClock())
    await fleet.everything()
    assert "\x1b" not in fleet.question("shop/db")


async def test_migration_is_created_like_the_commands(place: Place) -> None:
    fleet = FleetReader(place, FakeClock())
    await fleet.everything()
    asked = (
        "Migrate shop/db from node-1 to another node that has room?"
        " It has no flat-network address: its connections will break."
    )
    assert fleet.question("shop/db") == asked
    assert await fleet.move("shop/db") == "Created migration shop/db-7 of shop/db."
    assert [text(each, "spec", "vmName") for each in place.made] == ["db"]
    place.migrations = [{**MOVE, "spec": {"vmName": "db"}}]
    await fleet.everything()
    assert await fleet.move("shop/db") == "shop/db is already migrating."
    place.is_away = True
    assert (await fleet.move("shop/orders")).startswith("Cannot migrate shop/orders: ")
    (said,) = await fleet.explain("shop/orders")
    assert "refused" in said or "answer" in said
    assert len(place.made) == 1
