"""A waiting pod is woken when it fits, even if a call was lost or a process restarted."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import scheduler_plugin
from tests.fake_clock import FakeClock, settle
from tests.scheduler_plugin.fake_cluster import NODES, PODS, VMS, FakeCluster, Fault, to
from tests.scheduler_plugin.objects import Obj, node, plain_pod, vm, vm_pod
from tests.scheduler_plugin.running import running

ROOT = Path(scheduler_plugin.__file__).parent
STATE = "state"
RESULTS = ("Effect", "Decision", "Reservation")


@pytest.fixture
def cluster() -> FakeCluster:
    """Two nodes of 10 vCPUs; n2 is full."""
    cluster = FakeCluster()
    for name in ("n1", "n2"):
        cluster.put(NODES, node(name))
    cluster.put(PODS, plain_pod("full", "10", "1Gi", "n2"))
    return cluster


def unschedulable(pod: Obj) -> Obj:
    """As kube-scheduler leaves a pod that fits no node."""
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}
    return {**pod, "status": {"phase": "Pending", "conditions": [why]}}


def called_by(cluster: FakeCluster) -> list[str]:
    """The nodes that were touched."""
    return [call.path.rpartition("/")[2] for call in cluster.made("PATCH", "/api/v1/nodes/")]


async def test_fitting_waiting_pod_is_woken_after_restart(cluster: FakeCluster, clock: FakeClock) -> None:
    """Room became free while no scheduler ran, so kube-scheduler was not notified."""
    cluster.put(PODS, unschedulable(plain_pod("waits", "6")))
    async with running(cluster, clock):
        await settle()
        assert called_by(cluster) == ["n1"]


async def test_restart_wakes_pod_for_freed_room(cluster: FakeCluster, clock: FakeClock) -> None:
    cluster.put(PODS, unschedulable(plain_pod("waits", "6")))
    cluster.put(PODS, plain_pod("also", "9", "1Gi", "n1"))
    async with running(cluster, clock):
        await clock.advance(60)
        assert called_by(cluster) == []
        cluster.remove(PODS, "default", "also")
        await clock.advance(2)
        assert called_by(cluster) == ["n1"]


async def test_refused_touch_delays_no_other(cluster: FakeCluster, clock: FakeClock) -> None:
    """Nobody may change n1, for example because of a taint that the API server no longer accepts."""
    cluster.put(PODS, unschedulable(plain_pod("waits", "6")))
    cluster.faults.append(Fault(to("PATCH", "/nodes/n1"), refuse=422, times=999))
    async with running(cluster, clock):
        await clock.advance(200)
        cluster.put(PODS, plain_pod("taker", "9", "1Gi", "n1"))
        cluster.put(PODS, unschedulable(plain_pod("also", "8")))
        await clock.advance(1)
        cluster.remove(PODS, "default", "full")
        await clock.advance(2)
        assert called_by(cluster)[-1] == "n2"
        cluster.faults.clear()
        await clock.advance(40)
        assert {"n1", "n2"} == {
            name for name in ("n1", "n2") if "annotations" in cluster.get(NODES, "", name)["metadata"]
        }


async def test_waiting_vm_pod_is_woken_after_restart(cluster: FakeCluster, clock: FakeClock) -> None:
    cluster.put(VMS, vm("db"))
    cluster.put(PODS, unschedulable(vm_pod("db")))
    async with running(cluster, clock):
        await settle()
        assert called_by(cluster) == ["n1"]


async def test_node_with_taints_is_touched_last(cluster: FakeCluster, clock: FakeClock) -> None:
    """kube-scheduler does not retry a pod because of a node that the pod does not tolerate."""
    tainted = node("a-gpu")
    tainted["spec"]["taints"] = [{"key": "gpu", "effect": "NoSchedule"}]
    cluster.put(NODES, tainted)
    cluster.put(PODS, unschedulable(plain_pod("waits", "6")))
    async with running(cluster, clock):
        await settle()
        assert called_by(cluster) == ["n1"]


@pytest.mark.parametrize("other", ["default-scheduler", "bound", "over", "no word"])
async def test_pods_not_waiting_for_us_are_not_woken(cluster: FakeCluster, clock: FakeClock, other: str) -> None:
    pod = plain_pod("waits", "6") if other == "no word" else unschedulable(plain_pod("waits", "6"))
    if other == "default-scheduler":
        pod["spec"]["schedulerName"] = other
    elif other == "bound":
        pod["spec"]["nodeName"] = "n1"
    elif other == "over":
        pod["status"]["phase"] = "Failed"
    cluster.put(PODS, pod)
    async with running(cluster, clock):
        await clock.advance(60)
        assert called_by(cluster) == []


async def test_unheeded_pod_is_woken_again(cluster: FakeCluster, clock: FakeClock) -> None:
    """A touch was written and kube-scheduler did not retry; touches do not continue forever, and new room starts them
    again.
    """
    cluster.put(PODS, plain_pod("also", "9", "1Gi", "n1"))
    pod = cluster.put(PODS, unschedulable(plain_pod("waits", "6")))
    async with running(cluster, clock) as scheduler:
        assert await scheduler.filter(pod, "n1", "n2") == []
        cluster.remove(PODS, "default", "also")
        await clock.advance(2)
        assert called_by(cluster) == ["n1"]
        await clock.advance(40)
        assert called_by(cluster) == ["n1"] * 2
        await clock.advance(600)
        assert called_by(cluster) == ["n1"] * 4
        cluster.put(PODS, plain_pod("another", "1", "1Gi", "n1"))
        await clock.advance(2)
        assert called_by(cluster) == ["n1"] * 5


async def test_retried_pod_is_not_woken_again(cluster: FakeCluster, clock: FakeClock) -> None:
    cluster.put(PODS, plain_pod("also", "9", "1Gi", "n1"))
    pod = cluster.put(PODS, unschedulable(plain_pod("waits", "6")))
    async with running(cluster, clock) as scheduler:
        assert await scheduler.filter(pod, "n1", "n2") == []
        cluster.remove(PODS, "default", "also")
        await clock.advance(2)
        assert await scheduler.filter(pod, "n1", "n2") == ["n1"]
        await clock.advance(120)
        assert called_by(cluster) == ["n1"]


def test_effects_are_never_discarded() -> None:
    """No statement of the scheduler calls a function that returns effects and drops the result."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
    ledger = {path.stem: tree for path, tree in trees.items() if ROOT / "ledger" in path.parents}
    functions = {(stem, name) for stem, tree in ledger.items() for name in _returning(tree.body)}
    classes = [each for tree in ledger.values() for each in tree.body if isinstance(each, ast.ClassDef)]
    methods = {
        (STATE if each.name == "LedgerState" else "", name) for each in classes for name in _returning(each.body)
    }
    assert {("", "apply"), ("", "_finish"), (STATE, "finish")} <= methods
    assert {("permit_rule", "decide"), ("binding", "reserve"), ("binding", "bind_ended")} <= functions
    dropped = [
        f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        if _called(node.value.func, path.stem, {stem for stem, _ in functions}) in {*functions, *methods}
    ]
    assert dropped == []


def _returning(body: list[ast.stmt]) -> set[str]:
    """The functions among them that return effects, or what has effects."""
    found = [each for each in body if isinstance(each, ast.FunctionDef) and each.returns is not None]
    return {each.name for each in found if any(word in ast.unparse(each.returns or each) for word in RESULTS)}


def _called(func: ast.expr, here: str, modules: set[str]) -> object:
    """The function or method that is called, with its module, ``STATE`` or nothing."""
    if not isinstance(func, ast.Attribute):
        return here, ast.unparse(func)
    owner = ast.unparse(func.value)
    return owner if owner in modules else STATE if owner.endswith(STATE) else "", func.attr
