"""kube-scheduler's constraints and our scheduler's room together: a pod gets a node that satisfies both."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.units import Resources
from tests.kubernetes.scheduling.agents import Agent
from tests.kubernetes.scheduling.stage import TOLERATED, Stage

pytestmark = pytest.mark.kubernetes

FULL = "Insufficient cpu"
ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"


def full(stage: Stage, node: str) -> Agent:
    """The agent of a VM that has taken all of a node, of which kube-scheduler sees 100m."""
    name = f"fills-{node}"
    agent = Agent.of(stage, stage.vm_pod(stage.vm(name), name, nodeName=node))
    assert agent.go_to(Resources.parse(4, "16Gi"))
    return agent


def shrink(agent: Agent) -> None:
    assert agent.go_to(Resources.parse(1, "2Gi"))


def near(key: str, *, apart: bool = False) -> dict[str, Any]:
    """In the same ``key`` as pods of app db, or apart from them."""
    term = {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": key}
    kind = "podAntiAffinity" if apart else "podAffinity"
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def test_taint_excludes_node_with_room(stage: Stage) -> None:
    tainted, other = stage.node("tainted"), stage.node("other")
    taints = [{"key": "dedicated", "effect": "NoSchedule"}]
    stage.patch(f"/api/v1/nodes/{tainted}", {"spec": {"taints": taints}})
    agent = full(stage, other)
    stage.pod("plain")
    said = stage.until_refused("plain")["plain"]
    assert (FULL in said, "untolerated taint" in said) == (True, True)
    stage.pod("tolerant", tolerations=[*TOLERATED, {"key": "dedicated", "operator": "Exists"}])
    assert stage.until_placed("tolerant") == {"tolerant": tainted}
    shrink(agent)
    assert stage.until_placed("plain") == {"plain": other}
    stage.until_books_agree()


def test_required_affinity_waits_and_preferred_does_not(stage: Stage) -> None:
    one, two = stage.node("one", **{ZONE: "z1"}), stage.node("two", **{ZONE: "z2"})
    agent = full(stage, one)
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["z1"]}]}
    must = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    weighed = [{"weight": 100, "preference": term}]
    rather = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighed}}
    stage.pod("must", affinity=must)
    stage.pod("rather", affinity=rather)
    assert FULL in stage.until_refused("must")["must"]
    assert stage.until_placed("rather") == {"rather": two}
    shrink(agent)
    assert stage.until_placed("must") == {"must": one}


def test_anti_affinity_waits_for_full_node(stage: Stage) -> None:
    nodes = [stage.node(name) for name in ("a", "b", "c")]
    agent = full(stage, nodes[0])
    for name in ("db-1", "db-2", "db-3"):
        stage.pod(name, labels={"app": "db"}, affinity=near(HOST, apart=True))
    (waits,) = stage.until_refused_but(2)
    assert set(stage.placed().values()) == set(nodes)
    shrink(agent)
    assert stage.until_placed(waits) == {waits: nodes[0]}


def test_pod_affinity_waits_for_room(stage: Stage) -> None:
    one, _ = stage.node("one"), stage.node("two")
    stage.pod("db", "100m", "64Mi", labels={"app": "db"}, nodeName=one)
    agent = full(stage, one)
    stage.pod("beside", affinity=near(HOST))
    assert FULL in stage.until_refused("beside")["beside"]
    shrink(agent)
    assert stage.until_placed("beside") == {"beside": one}


def test_zone_spread_waits_for_room(stage: Stage) -> None:
    zones = {stage.node("one", **{ZONE: "z1"}): "z1", stage.node("two", **{ZONE: "z2"}): "z2"}
    agent = full(stage, next(node for node, zone in zones.items() if zone == "z2"))
    assert agent.go_to(Resources.parse(3, "8Gi"))
    spread = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "db"}},
    }
    for number in range(4):
        stage.pod(f"db-{number}", "900m", labels={"app": "db"}, topologySpreadConstraints=[spread])
    (waits,) = stage.until_refused_but(3)
    placed = [zones[node] for pod, node in stage.placed().items() if pod.startswith("db")]
    assert sorted(placed) == ["z1", "z1", "z2"]
    shrink(agent)
    assert zones[stage.until_placed(waits)[waits]] == "z2"
    stage.until_books_agree()
