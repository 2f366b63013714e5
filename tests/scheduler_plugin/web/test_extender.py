"""kube-scheduler's JSON, key for key: scores are integers, unset is null, only asked nodes are named."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from protocol.units import Seconds
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster
from tests.scheduler_plugin.objects import Obj, node, plain_pod, vm, vm_pod
from tests.scheduler_plugin.running import Running, running, usual_settings

BIG = plain_pod("big", "8", "8Gi")
SHORT = "Insufficient cpu"
LESS = "Insufficient cpu: more than the node has"


@pytest.fixture
def cluster() -> FakeCluster:
    """``free`` is empty, ``full`` has 5 of 10 vCPUs taken, ``tiny`` is too small, ``closed`` is cordoned."""
    cluster = FakeCluster()
    for one in (node("free"), node("full"), node("tiny", "2"), node("closed", unschedulable=True)):
        cluster.put(NODES, one)
    cluster.put(PODS, plain_pod("taker", "5", "1Gi", "full"))
    cluster.put(VMS, vm("db", 2, 4))
    return cluster


async def asked(scheduler: Running, verb: str, body: Any) -> tuple[int, Any]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = await scheduler.client.post(f"http://extender/{verb}", content=content)
    return response.status_code, response.json()


async def test_filter_tells_apart_what_preemption_may_help(cluster: FakeCluster) -> None:
    async with running(cluster, FakeClock()) as scheduler:
        names = ["full", "unknown", "free", "tiny", "closed"]
        assert await scheduler.verb("filter", {"Pod": BIG, "Nodes": None, "NodeNames": names}) == {
            "Nodes": None,
            "NodeNames": ["free"],
            "FailedNodes": {"full": SHORT, "unknown": "the scheduler does not know the node yet"},
            "FailedAndUnresolvableNodes": {"tiny": LESS, "closed": "node(s) were unschedulable"},
            "Error": "",
        }


async def test_pod_needs_prefer_watched_version(
    cluster: FakeCluster,
) -> None:
    async with running(cluster, FakeClock()) as scheduler:
        shown = cluster.put(PODS, plain_pod("p", "1", "1Gi"))
        await settle()
        said = plain_pod("p", "8", "8Gi")
        version = shown["metadata"]["resourceVersion"]
        for told, fits in ((version, ["full", "free"]), ("999", ["free"])):
            said["metadata"]["resourceVersion"] = told
            assert await scheduler.filter(said, "full", "free") == fits
        said["metadata"] |= {"resourceVersion": version, "uid": "another"}
        assert await scheduler.filter(said, "full", "free") == ["free"]


async def test_call_with_nodes_is_stateless_simulation(cluster: FakeCluster) -> None:
    async with running(cluster, FakeClock()) as scheduler:
        template = node("template", "16") | {"extra": {"kept": [1]}}
        items = [node("full"), template, node("small", "1")]
        result = await scheduler.verb("filter", {"Pod": BIG, "Nodes": {"items": items}, "NodeNames": None})
        assert result == {
            "Nodes": {"kind": "NodeList", "apiVersion": "v1", "items": [template]},
            "NodeNames": None,
            "FailedNodes": {"full": SHORT},
            "FailedAndUnresolvableNodes": {"small": LESS},
            "Error": "",
        }
        assert await scheduler.filter(BIG, "free") == ["free"]
        assert (await scheduler.verb("filter", {"Pod": BIG, "Nodes": {"items": None}}))["Nodes"]["items"] == []
        assert scheduler.parts.context.ledger.waiting == 0


@pytest.mark.parametrize("whole", [True, False])
async def test_prioritize_answers_integers_for_each_asked_node(cluster: FakeCluster, whole: bool) -> None:
    async with running(cluster, FakeClock()) as scheduler:
        pod = plain_pod("p", "4", "4Gi")
        nodes: Obj = {"Nodes": {"items": [node("free"), node("full"), node("tiny")]}, "NodeNames": None}
        if not whole:
            nodes = {"Nodes": None, "NodeNames": ["free", "full", "tiny"]}
        scores = await scheduler.verb("prioritize", {"Pod": pod, **nodes})
        assert [one["Host"] for one in scores] == ["free", "full", "tiny"]
        assert all(type(one["Score"]) is int and 0 <= one["Score"] <= 10 for one in scores)
        assert scores[2]["Score"] == 0 < scores[0]["Score"]


async def test_unknown_vm_is_error_not_refusal(cluster: FakeCluster) -> None:
    async with running(cluster, FakeClock()) as scheduler:
        args = {"Pod": vm_pod("ghost"), "NodeNames": ["free"]}
        unknown = "VirtualMachine default/ghost of pod default/ghost-pod is not known yet"
        assert (await scheduler.verb("filter", args))["Error"] == unknown
        assert await asked(scheduler, "prioritize", args) == (503, {"error": unknown})
        cluster.put(PODS, vm_pod("ghost"))
        assert await scheduler.bind(vm_pod("ghost"), "free") == unknown


async def test_preempt_keeps_the_nodes_where_it_would_help(cluster: FakeCluster) -> None:
    cluster.put(PODS, vm_pod("db", "full"))
    async with running(cluster, FakeClock()) as scheduler:
        victims = {
            "full": {"Pods": [{"UID": "pod-db"}, {"UID": "pod-taker"}], "NumPDBViolations": 1},
            "tiny": {"Pods": [], "NumPDBViolations": 0},
            "unknown": {"Pods": None, "NumPDBViolations": 0},
        }
        kept = {"NodeNameToMetaVictims": {"full": victims["full"]}}
        assert await scheduler.verb("preempt", {"Pod": BIG, "NodeNameToMetaVictims": victims}) == kept
        whole = {"full": {"Pods": [{"metadata": {"uid": "pod-taker"}}], "NumPDBViolations": 0}}
        assert await scheduler.verb("preempt", {"Pod": BIG, "NodeNameToVictims": whole}) == {
            "NodeNameToMetaVictims": {"full": {"Pods": [{"UID": "pod-taker"}], "NumPDBViolations": 0}}
        }
        too_little = {"full": {"Pods": [{"UID": "pod-db"}, {"UID": "elsewhere"}], "NumPDBViolations": 0}}
        assert await scheduler.verb("preempt", {"Pod": BIG, "NodeNameToMetaVictims": too_little}) == {
            "NodeNameToMetaVictims": {}
        }


async def test_keys_may_have_any_case(cluster: FakeCluster) -> None:
    """Go decodes them like that: a list under ``nodenames`` is not an empty list."""
    cluster.put(PODS, plain_pod("p", "1", "1Gi"))
    async with running(cluster, FakeClock()) as scheduler:
        fits = {"NodeNames": ["free"], "FailedNodes": {"full": SHORT}}
        for args in ({"pod": BIG, "nodenames": ["free", "full"]}, {"Pod": BIG, "nodeNames": ["free", "full"]}):
            assert (await scheduler.verb("filter", args)).items() >= fits.items()
        whole = await scheduler.verb("filter", {"pod": BIG, "nodes": {"Items": [node("full"), node("new", "16")]}})
        assert (whole["Nodes"]["items"], whole["FailedNodes"]) == ([node("new", "16")], {"full": SHORT})
        scores = await scheduler.verb("prioritize", {"POD": BIG, "nodenames": ["free"], "nodes": None})
        assert [score["Host"] for score in scores] == ["free"]
        victims = {"full": {"pods": [{"uid": "pod-taker"}], "numPDBViolations": 1}, "tiny": {"pods": None}}
        assert await scheduler.verb("preempt", {"pod": BIG, "nodeNameToMetaVictims": victims}) == {
            "NodeNameToMetaVictims": {"full": {"Pods": [{"UID": "pod-taker"}], "NumPDBViolations": 1}}
        }
        bound = {"podName": "p", "podNamespace": "default", "podUID": "pod-p", "node": "free"}
        assert await scheduler.verb("bind", bound) == {"Error": ""}
        assert await asked(scheduler, "preempt", {"pod": BIG, "nodeNameToMetaVictims": []}) == (
            400,
            {"error": "Pod: expected a value, the field is missing"},
        )


async def test_malformed_calls_say_what_is_wrong(cluster: FakeCluster) -> None:
    async with running(cluster, FakeClock()) as scheduler:
        missing = "Pod: expected a value, the field is missing"
        assert (await scheduler.verb("filter", {}))["Error"] == missing
        bad_pod = plain_pod("p", "much")
        said = (await scheduler.verb("filter", {"Pod": bad_pod, "NodeNames": []}))["Error"]
        assert said.startswith("spec.containers[0].resources.requests.cpu: expected a quantity")
        assert await asked(scheduler, "prioritize", {}) == (400, {"error": missing})
        assert await asked(scheduler, "preempt", b"[") == (400, {"error": "document: expected object, got array"})
        assert (await asked(scheduler, "bind", b"{}"))[1]["Error"].startswith("PodName: ")
        nameless = {"PodName": "", "PodNamespace": "default", "PodUID": "pod-p", "Node": "n1"}
        assert (await scheduler.verb("bind", nameless))["Error"].startswith("PodName: ")


async def test_no_answer_before_initial_list(cluster: FakeCluster) -> None:
    cluster.go_away()
    async with running(cluster, FakeClock()) as scheduler:
        unread = (503, {"error": "the scheduler has not listed the cluster yet"})
        assert await asked(scheduler, "preempt", {"Pod": BIG}) == unread
        simulated = await scheduler.verb("filter", {"Pod": BIG, "Nodes": {"items": []}})
        assert (simulated["Nodes"], simulated["Error"]) == (None, unread[1]["error"])
        assert (await asked(scheduler, "prioritize", {"Pod": BIG, "NodeNames": ["free"]}))[0] == 503


def preferring(**spec: Any) -> Obj:
    """A small pod with more in its spec."""
    small = plain_pod("small", "1", "1Gi")
    return {**small, "metadata": {**small["metadata"], "resourceVersion": "1"}, "spec": {**small["spec"], **spec}}


PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "labelSelector": {}}


@pytest.mark.parametrize(
    ("spec", "nodes"),
    [
        ({}, ["full"]),
        ({"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}}, ["full"]),
        ({"topologySpreadConstraints": [{**SPREAD, "whenUnsatisfiable": "DoNotSchedule"}]}, ["full"]),
        ({"topologySpreadConstraints": [{**SPREAD, "whenUnsatisfiable": "ScheduleAnyway"}]}, ["free", "full"]),
        ({"affinity": {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": {}}]}}}, ["free", "full"]),
        (
            {"affinity": {"podAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}}]}}},
            ["free", "full"],
        ),
        (
            {"affinity": {"podAntiAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}}]}}},
            ["free", "full"],
        ),
        ({"topologySpreadConstraints": "none of ours"}, ["free", "full"]),
    ],
)
async def test_pod_without_preferences_gets_best_node(cluster: FakeCluster, spec: Obj, nodes: list[str]) -> None:
    settings = replace(usual_settings(), candidates=1)
    async with running(cluster, FakeClock(), settings) as scheduler:
        args = {"Pod": preferring(**spec), "Nodes": None, "NodeNames": ["free", "full", "tiny"]}
        result = await scheduler.verb("filter", args)
        assert (result["NodeNames"][: len(nodes)], result["Error"]) == (nodes, "")
        assert len(result["NodeNames"]) == (1 if nodes == ["full"] else 3)


async def test_sampled_refusal_retries_without_eviction() -> None:
    cluster, full = FakeCluster(), [f"full-{number}" for number in range(100)]
    for name in full:
        cluster.put(NODES, node(name, "2"))
    for one in (node("victims"), node("free")):
        cluster.put(NODES, one)
    cluster.put(PODS, plain_pod("taker", "5", "1Gi", "victims"))
    victims = {"victims": {"Pods": [{"UID": "pod-taker"}], "NumPDBViolations": 0}}
    async with running(cluster, FakeClock()) as scheduler:
        help_ = {"Pod": BIG, "NodeNameToMetaVictims": victims}
        nowhere: dict[str, Obj] = {"NodeNameToMetaVictims": {}}
        assert await scheduler.filter(BIG, *full, "victims") == []
        assert await scheduler.verb("preempt", help_) == nowhere
        await scheduler.clock.advance(Seconds(1.0))
        assert len(cluster.made("PATCH", "/nodes/free")) == 1
        assert await scheduler.filter(BIG, *full[1:], "victims", "free") == ["free"]
        assert await scheduler.verb("preempt", help_) != nowhere


async def test_sampled_pod_needs_no_victims_without_vm() -> None:
    """An error would end the whole preemption, but a pod that is sent round takes no room from others."""
    cluster, full = FakeCluster(), [f"full-{number}" for number in range(100)]
    for name in full:
        cluster.put(NODES, node(name, "1"))
    cluster.put(NODES, node("free"))
    cluster.put(VMS, vm("db", 2, 4))
    pod = cluster.put(PODS, vm_pod("db"))
    async with running(cluster, FakeClock()) as scheduler:
        assert await scheduler.filter(pod, *full) == []
        await settle()
        cluster.remove(VMS, "default", "db")
        await settle()
        help_ = {"Pod": pod, "NodeNameToMetaVictims": {full[0]: {"Pods": [], "NumPDBViolations": 0}}}
        assert await asked(scheduler, "preempt", help_) == (200, {"NodeNameToMetaVictims": {}})
        assert (await asked(scheduler, "prioritize", {"Pod": pod, "NodeNames": full}))[0] == 503
