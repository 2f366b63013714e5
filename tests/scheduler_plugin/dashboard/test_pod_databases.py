"""Postgres in pods on the page: seen like VMs, by those who may get the pods of the namespace."""

from __future__ import annotations

from protocol.kubernetes.resources import PODS as PODS_OF_API
from protocol.messages import ObjectName
from scheduler_plugin.dashboard.core.frames import VM
from scheduler_plugin.dashboard.core.rows import VmRow
from scheduler_plugin.dashboard.core.sessions import CHECKED_FOR
from scheduler_plugin.history.core.samples import SECOND, MoveRecord
from tests.fake_clock import settle
from tests.pod_databases import pod_database
from tests.scheduler_plugin.dashboard.made_up_history import MadeUpHistory
from tests.scheduler_plugin.dashboard.page_cluster import Page, a_node, a_pod, nodes_answer, page, put_pod, put_vm
from tests.scheduler_plugin.fake_cluster import PODS, Fault, to
from tests.scheduler_plugin.objects import vm_pod

KEY = "default/pod/pg-1"


async def statuses(run: Page, *paths: str) -> list[int]:
    return [(await run.http.get(path)).status_code for path in paths]


async def test_pods_that_opted_in_are_rows() -> None:
    async with page() as run:
        put_vm(run.cluster, "db")
        put_pod(run.cluster, "pg-1")
        run.cluster.put(PODS, vm_pod("db", "n1"))
        run.told.scheduler["/nodes"] = nodes_answer(a_node("n1", a_pod(KEY, "2", "2Gi")))
        await settle()
        await run.dashboard.fleet.poll()
        rows = run.dashboard.fleet.journal.of(VM)
        assert sorted(rows) == ["default/db", KEY]
        database = rows[KEY]
        assert isinstance(database, VmRow)
        assert (database.use, database.reserved, database.state) == ((1000, 1024), (2000, 2048), "calm")
        asked = [call.query["labelSelector"] for call in run.cluster.calls if call.path == PODS_OF_API.path()]
        assert set(asked) == {"autoscaling.neon.tech/enabled=true,!vm.neon.tech/name"}
        withdrawn = pod_database()
        withdrawn["metadata"]["labels"] = {}
        run.cluster.put(PODS, withdrawn)
        await settle()
        assert sorted(run.dashboard.fleet.journal.of(VM)) == ["default/db"]


async def test_account_and_history_have_slash() -> None:
    async with page() as run:
        await run.sign_in(run.links[-1])
        put_pod(run.cluster, "pg-1")
        run.cluster.put(PODS, vm_pod("db", "n1"))
        await settle()
        run.told.scheduler[f"/explain/{KEY}"] = {"pods": []}
        run.told.agent = {"because": "idle", "troubles": [{"with": "metrics", "reason": "no cgroup"}]}
        details = (await run.http.get(f"/api/vms/{KEY}")).json()
        assert details["story"][:3] == [
            f"{KEY} has 1 vCPU and 1Gi; it is Running on n1.",
            "  Its bounds are 500m to 4 vCPU and 512Mi to 8Gi; its container postgres requests now: 1 vCPU and 1Gi.",
            "",
        ]
        assert details["scheduler"] == {"pods": []}
        now, database = round(run.clock.wall() * SECOND), ObjectName("default", "pod/pg-1")
        moved = MoveRecord(database, database, "n1", "n2", "Succeeded", now - 9000, now)
        run.dashboard.details.history = MadeUpHistory([], moved=[moved])
        assert [each["key"] for each in (await run.http.get(f"/api/past/{KEY}?seconds=900")).json()["moves"]] == [KEY]
        others = (
            "/api/vms/default/pod/db-pod",
            "/api/vms/default/pod/a/b",
            "/api/vms/default/pod/",
            "/api/vms/default/",
        )
        assert await statuses(run, *others) == [404] * 4


async def test_readers_of_pods_see_pods() -> None:
    """The right to list VMs does not show pods, nor the other way round; both are reviewed again."""
    async with page(on_a_cluster=True) as run:
        put_vm(run.cluster, "db", "shop")
        put_pod(run.cluster, "pg-1", "shop")
        put_pod(run.cluster, "pg-2", "bank")
        run.told.scheduler["/settings"] = {"schedulerName": "autoscale-scheduler"}
        await settle()
        run.cluster.people = {
            "of-vms": {"shop"},
            "of-pods": {"shop/pods"},
            "of-all-vms": {"*"},
            "of-all-pods": {"*/pods"},
            "of-all": {"*", "*/pods"},
        }
        paths = ("/api/vms/shop/db", "/api/vms/shop/pod/pg-1", "/api/past/shop/pod/pg-1", "/api/vms/bank/pod/pg-2")
        seen = {}
        for person in run.cluster.people:
            assert (await run.sign_in(person)).status_code == 200
            seen[person] = await statuses(run, *paths, "/api/settings")
        assert seen == {
            "of-vms": [200, 404, 404, 404, 404],
            "of-pods": [404, 200, 200, 404, 404],
            "of-all-vms": [200, 404, 404, 404, 200],
            "of-all-pods": [404, 200, 200, 200, 404],
            "of-all": [200, 200, 200, 200, 200],
        }
        run.cluster.people["of-all"] = {"bank/pods"}
        await run.clock.advance(CHECKED_FOR)
        assert await statuses(run, *paths) == [404, 404, 404, 200]


async def test_page_works_without_right_to_pods() -> None:
    async with page(is_away=True) as run:
        run.cluster.faults.append(Fault(to("GET", PODS), refuse=403, times=1000))
        put_vm(run.cluster, "db")
        run.cluster.come_back()
        await run.clock.advance(60.0)
        assert (run.dashboard.fleet.missing, sorted(run.dashboard.fleet.journal.of(VM))) == ([], ["default/db"])
