"""Views for users and Prometheus: nodes, explanations of VMs, and few labels."""

from __future__ import annotations

from protocol.kubernetes.timestamps import timestamp
from scheduler_plugin.ledger.ledger import SILENT_AFTER
from scheduler_plugin.planner.headroom import LACKING
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster, Fault, to
from tests.scheduler_plugin.objects import node, plain_pod, postgres_pod, vm, vm_pod
from tests.scheduler_plugin.running import running

POD = vm_pod("db", "n1")
NOTHING = {"cpu": "0", "mem": "0"}


def small_cluster() -> FakeCluster:
    cluster = FakeCluster()
    cluster.put(NODES, node("n1"))
    cluster.put(VMS, vm("db", 1, 4))
    cluster.put(PODS, POD)
    return cluster


async def test_nodes_are_shown_with_their_pods() -> None:
    async with running(small_cluster(), FakeClock()) as scheduler:
        assert (await scheduler.probe("nodes")).json() == {
            "ready": True,
            "leading": True,
            "leader": "us",
            "waitingPods": 0,
            "unreadable": [],
            "migrationsIdle": "no planning round has run yet",
            "migrations": [],
            "nodes": [
                {
                    "name": "n1",
                    "open": True,
                    "known": True,
                    "computeUnit": {"cpu": "250m", "mem": "1Gi"},
                    "total": {"cpu": "10", "mem": "40Gi"},
                    "reserved": {"cpu": "1", "mem": "4Gi"},
                    "free": {"cpu": "9", "mem": "36Gi"},
                    "forWaking": NOTHING,
                    "watermark": {"cpu": "9", "mem": "36Gi"},
                    "denied": NOTHING,
                    "promised": NOTHING,
                    "pressure": {"logical": NOTHING, "capacity": NOTHING, "migrating": NOTHING, "excess": NOTHING},
                    "stuck": None,
                    "noRoomToGrow": None,
                    "pods": [
                        {
                            "pod": "default/db-pod",
                            "vm": "default/db",
                            "state": "bound",
                            "reserved": {"cpu": "1", "mem": "4Gi"},
                            "permit": None,
                            "use": {"cpu": "1", "mem": "4Gi"},
                            "actual": None,
                            "denied": NOTHING,
                            "promised": NOTHING,
                            "deferred": NOTHING,
                            "migrating": False,
                            "agentSilent": True,
                            "gaveBack": None,
                        }
                    ],
                }
            ],
        }


async def test_neighbour_gives_back_to_denied_vm() -> None:
    cluster, clock, hungry = small_cluster(), FakeClock(), vm_pod("db-7", "n1")
    cluster.put(VMS, vm("db", 6, 4))
    cluster.put(VMS, vm("db-7", 3, 4))
    cluster.put(PODS, hungry)
    async with running(cluster, clock) as scheduler:
        await scheduler.ask(hungry, 6, 4, sequence=1)
        answer = await scheduler.ask(POD, 6, 4, sequence=1, needs={"vCPUs": 1, "mem": 4})
        assert answer.json()["shrinkTo"] == {"vCPUs": 2.0, "mem": 4}
        (node_of,) = (await scheduler.probe("nodes")).json()["nodes"]
        waits = {"denied": {"cpu": "2", "mem": "0"}, "promised": {"cpu": "2", "mem": "0"}}
        (pod_of,) = (pod for pod in node_of["pods"] if pod["vm"] == "default/db-7")
        explained = (await scheduler.probe("explain/default/db-7")).json()["pods"][0]
        assert [{key: source[key] for key in waits} for source in (node_of, pod_of, explained)] == [waits] * 3
        lines = (await scheduler.probe("metrics")).text.splitlines()
        assert 'autoscale_scheduler_node_denied{node="n1",resource="cpu"} 2.0' in lines
        assert 'autoscale_scheduler_node_promised{node="n1",resource="cpu"} 2.0' in lines
        await clock.advance(5)
        cluster.put(VMS, vm("db", 4, 4))
        await settle()
        await scheduler.ask(POD, 4, 4, sequence=2, needs={"vCPUs": 1, "mem": 4})
        gift = {"amount": {"cpu": "2", "mem": "0"}, "at": timestamp(clock.wall()), "to": ["default/db-7"]}
        (node_of,) = (await scheduler.probe("nodes")).json()["nodes"]
        assert [pod["gaveBack"] for pod in node_of["pods"]] == [None, gift]
        assert (await scheduler.probe("explain/default/db")).json()["gaveBack"] == gift


async def test_long_full_cluster_asks_vms_to_stay() -> None:
    """No room has been freed, so the metric counts nothing."""
    cluster, clock = small_cluster(), FakeClock()
    cluster.put(VMS, vm("db", 6, 4))
    cluster.put(VMS, vm("db-7", 3, 4))
    cluster.put(PODS, vm_pod("db-7", "n1"))
    async with running(cluster, clock) as scheduler:
        assert "shrinkTo" not in (await scheduler.ask(POD, 6, 4, sequence=1)).json()
        await clock.advance(LACKING + 5)
        answer = (await scheduler.ask(POD, 6, 4, sequence=2)).json()
        assert answer["shrinkTo"] == answer["permit"] == {"vCPUs": 6.0, "mem": 4}
        lines = (await scheduler.probe("metrics")).text.splitlines()
        assert "autoscale_scheduler_shrinks_asked_total 0.0" in lines


async def test_pod_reports_agent_contact() -> None:
    clock = FakeClock()
    async with running(small_cluster(), clock) as scheduler:

        async def is_silent() -> list[object]:
            nodes = (await scheduler.probe("nodes")).json()["nodes"]
            return [pod["agentSilent"] for each in nodes for pod in each["pods"]]

        await scheduler.ask(POD, 2, 8)
        heard = await is_silent()
        await clock.advance(SILENT_AFTER + 1.0)
        assert (heard, await is_silent()) == ([False], [True])


EXPLAINED = ("permit", "denied", "deniedForSeconds", "weight", "deniedBy", "metrics")


async def test_explain_known_vm_or_404() -> None:
    cluster = small_cluster()
    cluster.put(PODS, plain_pod("other", "6", "1Gi", "n1"))
    clock = FakeClock()
    async with running(cluster, clock) as scheduler:
        await scheduler.ask(POD, 5, 4)
        await clock.advance(7)
        view = (await scheduler.probe("explain/default/db")).json()
        shown = {key: view["pods"][0][key] for key in EXPLAINED}
        assert (view["vm"], shown) == (
            "default/db",
            {
                "permit": {"cpu": "4", "mem": "4Gi"},
                "denied": {"cpu": "1", "mem": "0"},
                "deniedForSeconds": 7.0,
                "weight": 10,
                "deniedBy": "node n1 has 0 cpu, 35Gi free of 10 cpu, 40Gi; 1 cpu, 0 more needed",
                "metrics": {"load1": 0.5, "load5": 0.4, "memUsed": "1"},
            },
        )
        missing = await scheduler.probe("explain/default/none")
        assert (missing.status_code, missing.json()) == (404, {"error": "no pod runs default/none"})


async def test_name_of_pod_is_explained() -> None:
    """A pod is named as ``pod/NAME``; there may be a VM whose name equals the pod's."""
    cluster = small_cluster()
    cluster.put(PODS, postgres_pod("db", "1", "4Gi", "n1"))
    async with running(cluster, FakeClock()) as scheduler:
        views = [(await scheduler.probe(f"explain/default/{name}")).json()["vm"] for name in ("pod/db", "pod%2Fdb")]
        assert views == ["default/pod/db"] * 2


async def test_metrics_forget_gone_nodes() -> None:
    cluster, clock = small_cluster(), FakeClock()
    async with running(cluster, clock) as scheduler:
        cluster.faults.append(Fault(to("PATCH", "/virtualmachines/")))
        await scheduler.ask(POD, 2, 8)
        await scheduler.ask(POD, 2, 8)
        await scheduler.ask(POD, 2, 8, token="bad")
        await scheduler.bind(plain_pod("ghost"), "n1")
        await clock.advance(3)
        page = (await scheduler.probe("metrics")).text.splitlines()
        for line in (
            'autoscale_scheduler_node_reserved{node="n1",resource="cpu"} 2.0',
            'autoscale_scheduler_node_reservable{node="n1",resource="cpu"} 10.0',
            'autoscale_scheduler_node_watermark{node="n1",resource="cpu"} 9.0',
            'autoscale_scheduler_node_claims{node="n1"} 1.0',
            'autoscale_scheduler_permits_total{outcome="whole"} 2.0',
            'autoscale_scheduler_permit_writes_total{outcome="stored"} 1.0',
            'autoscale_scheduler_permit_writes_total{outcome="unknown"} 1.0',
            'autoscale_scheduler_agent_refusals_total{status="401"} 1.0',
            'autoscale_scheduler_agent_refusals_total{status="503"} 1.0',
            'autoscale_scheduler_extender_calls_total{outcome="refused",verb="bind"} 1.0',
            "autoscale_scheduler_ready 1.0",
            'autoscale_scheduler_watch_age_seconds{kind="nodes"} 3.0',
        ):
            assert line in page
        cluster.remove(PODS, "default", "db-pod")
        cluster.remove(NODES, "", "n1")
        await settle()
        assert 'node="n1"' not in (await scheduler.probe("metrics")).text


async def test_unready_process_is_healthy() -> None:
    cluster = small_cluster()
    cluster.go_away()
    async with running(cluster, FakeClock()) as scheduler:
        statuses = [(await scheduler.probe(path)).status_code for path in ("healthz", "readyz", "metrics", "nodes")]
        assert statuses == [200, 503, 200, 200]


async def test_effective_settings_use_quantities() -> None:
    async with running(small_cluster(), FakeClock()) as scheduler:
        found = (await scheduler.probe("settings")).json()
        assert found["scheduler_name"] == "autoscale-scheduler"
        assert found["defaults"]["compute_unit"] == {"cpu": "250m", "mem": "1Gi"}
        assert found["defaults"]["cpu"]["watermark"] == 0.9
        assert (found["overrides"], found["node_agents"]) == ({}, ["kube-system:autoscaling-agent"])
