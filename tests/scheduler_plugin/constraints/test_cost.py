"""Valid constraints that a tenant writes to keep the scheduler busy.

In a cluster of 10,000 pods each such VM on a full node cost half a second per round, with a hundred spread constraints
many times as much, in which neither agents nor kube-scheduler were answered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scheduler_plugin.cluster.scheduling_fields import pod_constraints, pod_traits
from scheduler_plugin.constraints import cluster_view, cost
from scheduler_plugin.constraints.checker import Candidate, ConstraintChecker
from scheduler_plugin.constraints.cluster_view import ClusterView, PlacedPod
from scheduler_plugin.constraints.cost import CostLimit
from scheduler_plugin.constraints.model import NodeTraits, PodTraits, Taint
from scheduler_plugin.texts.explanations import COSTLY_CONSTRAINTS
from scheduler_plugin.texts.refusals import OTHERS_ANTI_AFFINITY, POD_ANTI_AFFINITY, UNTOLERATED_TAINT
from tests.scheduler_plugin.constraints.test_limits import PREFERRED, REQUIRED, near, nodes, term
from tests.steps import steps

NODES = [f"n{number}" for number in range(50)]
OTHER = {"key": "app", "operator": "NotIn", "values": ["none"]}
EVERYWHERE = term(labelSelector={"matchExpressions": [OTHER]}, namespaceSelector={}, topologyKey="host")
SPREAD = {"topologyKey": "host", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}


def cluster(*more: PlacedPod, pods: int = 2_000) -> ClusterView:
    traits = [PodTraits({"app": f"app-{number}"}) for number in range(pods)]
    placed = (PlacedPod(NODES[number % len(NODES)], "shop", each) for number, each in enumerate(traits))
    return ClusterView({name: NodeTraits({"host": name}) for name in NODES}, [*placed, *more], {"shop": {}, "evil": {}})


def prefers(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {"podAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": each} for each in terms]}}}


def named(number: int) -> dict[str, Any]:
    return term(labelSelector={"matchLabels": {f"key-{number}": "x"}}, topologyKey="host")


def unlike(number: int) -> dict[str, Any]:
    return {"key": "app", "operator": "NotIn", "values": [str(number)]}


def everywhere(number: int) -> dict[str, Any]:
    return EVERYWHERE | {"labelSelector": {"matchExpressions": [unlike(number)]}}


HOSTILE: list[Callable[[int], dict[str, Any]]] = [
    lambda number: prefers(*(everywhere(50 * number + each) for each in range(50))),
    lambda number: near(*[everywhere(number)] * 50),
    lambda number: near(*(everywhere(50 * number + each) for each in range(50)), kind="podAntiAffinity"),
    lambda number: (
        nodes(*[{"matchExpressions": [unlike(number)]}] * 250) | {"topologySpreadConstraints": [SPREAD] * 90}
    ),
    # An index for each of them.
    lambda number: prefers(*(named(50 * number + each) for each in range(50))),
]


@pytest.mark.parametrize("spec", HOSTILE)
def test_hostile_vms_share_one_limit(spec: Callable[[int], dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only as many are checked as the limit allows; the others must stay on their nodes."""
    monkeypatch.setattr(cost, "MAX_COMPARISONS", 26_000)
    checker = ConstraintChecker(cluster())

    def check(number: int) -> list[str | None]:
        found = checker.check(Candidate("evil", pod_constraints(spec(number))))
        return [found.obstacle(name) for name in NODES]

    assert steps(lambda: [check(number) for number in range(20)]) < 300_000
    assert check(20) == [COSTLY_CONSTRAINTS] * len(NODES)
    cheap = checker.check(Candidate("free", pod_constraints(near(term(topologyKey="host"), kind="podAntiAffinity"))))
    assert (cheap.obstacle("n1"), cheap.preference("n1")) == (None, (0, 0))


def test_fleet_with_one_selector_is_checked() -> None:
    """Its pods are counted once per round, and each migrating VM is added."""
    selector = {"matchExpressions": [OTHER]}
    spread = SPREAD | {"labelSelector": selector, "topologyKey": "host"}
    spec = near(term(labelSelector=selector, topologyKey="host"), kind="podAntiAffinity")
    constraints = pod_constraints(spec | {"topologySpreadConstraints": [spread]})
    checker = ConstraintChecker(cluster())
    fleet = [Candidate("shop", constraints, PodTraits({"app": f"app-{number}"})) for number in range(20)]
    checker.check(fleet[0])
    assert steps(lambda: [checker.check(vm) for vm in fleet]) < 50_000
    empty = ConstraintChecker(cluster(pods=0))
    before = empty.check(fleet[0])
    empty.place(fleet[1], "n1")
    empty.place(Candidate("shop", traits=PodTraits({"app": "none"})), "n2")
    after = empty.check(fleet[0])
    obstacles = [[checks.obstacle(name) for name in NODES[:3]] for checks in (before, after)]
    assert obstacles == [[None, None, None], [None, POD_ANTI_AFFINITY, None]]


def test_costly_vms_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is checked in some round, except one that alone costs more than a round."""
    monkeypatch.setattr(cost, "MAX_COMPARISONS", 9_000)
    limit = CostLimit()
    costs = [1_000, 8_500, 9_001, 3_000, 3_000, 6_000]

    def checked() -> list[int]:
        limit.start_round()
        view = cluster(pods=0)
        return [number for number, each in enumerate(costs) if limit.allows(iter([0, each]), view)]

    assert [checked() for _ in range(5)] == [[0, 1], [0, 3, 4], [0, 5], [0, 1], [0, 3, 4]]


def test_terms_of_own_namespace_cost_little() -> None:
    """However many pods others have."""
    checker = ConstraintChecker(cluster())
    own = term(labelSelector={"matchExpressions": [OTHER]}, topologyKey="host")
    spec = near(own, kind="podAntiAffinity") | {"topologySpreadConstraints": [SPREAD | {"labelSelector": {}}]}
    assert steps(lambda: checker.check(Candidate("evil", pod_constraints(spec)))) < 1_000
    checker.place(Candidate("evil", traits=PodTraits({"app": "new"})), "n1")
    found = checker.check(Candidate("evil", pod_constraints(near(own, kind="podAntiAffinity"))))
    assert [name for name in NODES if found.obstacle(name)] == ["n1"]


def test_equal_constraints_cost_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet's VMs usually have the same tolerations."""
    monkeypatch.setattr(cost, "MAX_COMPARISONS", 1_500)
    taint = Taint("gpu", "yes", "NoSchedule")
    checker = ConstraintChecker(ClusterView({name: NodeTraits(taints=(taint,)) for name in NODES}))
    spec = pod_constraints({"tolerations": [{"key": str(number)} for number in range(25)]})
    others = pod_constraints({"tolerations": [{"key": str(number)} for number in range(26)]})
    found = [checker.check(Candidate("shop", each)).obstacle("n1") for each in (spec, spec, others)]
    untolerated = UNTOLERATED_TAINT.format(taint=taint)
    assert found == [untolerated, untolerated, COSTLY_CONSTRAINTS]


def repelling(number: int, terms: int) -> PlacedPod:
    away = [term(labelSelector={"matchExpressions": [unlike(1000 * number + each)]}) for each in range(terms)]
    spec = {"affinity": {"podAntiAffinity": {REQUIRED: [each | {"namespaceSelector": {}} for each in away]}}}
    return PlacedPod(NODES[number], "evil", pod_traits({"app": "x"}, spec, is_terminating=False))


def test_pods_of_a_namespace_repel_by_limited_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is compared with each VM that may move. Equal terms count once, and terms of other namespaces are
    kept.
    """
    monkeypatch.setattr(cluster_view, "MAX_REPULSIONS", 30)
    same = term(topologyKey="host", labelSelector={})
    spec = {"affinity": {"podAntiAffinity": {REQUIRED: [same]}}}
    shop = [PlacedPod(name, "shop", pod_traits({}, spec, is_terminating=False)) for name in NODES[:40]]
    checker = ConstraintChecker(cluster(*(repelling(number, 20) for number in range(40)), *shop, pods=0))
    innocent = Candidate("shop", traits=PodTraits({"app": "a"}))
    assert steps(lambda: checker.check(innocent)) < 1_000
    found = checker.check(innocent)
    assert [found.obstacle(name) for name in NODES] == [OTHERS_ANTI_AFFINITY] * 40 + [None] * 10


def test_refused_vm_has_own_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node accepts it. Otherwise no node would accept other VMs of its shape, although the limit may suffice for
    them.
    """
    spec = pod_constraints(prefers(everywhere(1)))
    view = cluster(PlacedPod("n0", "shop", PodTraits({"app": "1"})))
    checked = ConstraintChecker(view).check(Candidate("shop", spec))
    monkeypatch.setattr(cost, "MAX_COMPARISONS", 0)
    refused = ConstraintChecker(cluster()).check(Candidate("shop", spec))
    assert refused.ignores_pods
    assert checked.shape != refused.shape
