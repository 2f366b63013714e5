"""Valid constraints that a tenant writes to keep the scheduler busy.

In a cluster of 10,000 pods each such VM on a full node cost half a second per round, with a hundred spread constraints
many times as much, in which neither agents nor kube-scheduler were answered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from protocol.messages import ObjectName
from scheduler_plugin.cluster.scheduling_fields import pod_constraints, pod_traits
from scheduler_plugin.constraints import cluster_view, cost
from scheduler_plugin.constraints.checker import Candidate, ConstraintChecker
from scheduler_plugin.constraints.cluster_view import ClusterView, PlacedPod
from scheduler_plugin.constraints.cost import CostLimit, Turn
from scheduler_plugin.constraints.model import NodeTraits, PodTraits, Taint
from scheduler_plugin.texts.explanations import COSTLY_CONSTRAINTS
from scheduler_plugin.texts.refusals import NODE_AFFINITY, OTHERS_ANTI_AFFINITY, POD_ANTI_AFFINITY, UNTOLERATED_TAINT
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


@pytest.mark.parametrize(("spec", "obstacle"), [*zip(HOSTILE, [None] * 4 + [COSTLY_CONSTRAINTS], strict=True)])
def test_hostile_vms_share_one_limit(
    spec: Callable[[int], dict[str, Any]], obstacle: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few are checked, as far as the limit goes; the others wait, or cost too much for any round."""
    monkeypatch.setattr(cost, "MAX_COMPARISONS", 26_000)
    checker = ConstraintChecker(cluster())

    def check(number: int) -> list[str | None]:
        found = checker.check(Candidate("evil", pod_constraints(spec(number))))
        return [found.obstacle(name) for name in NODES]

    assert steps(lambda: [check(number) for number in range(20)]) < 300_000
    assert check(20) == [obstacle] * len(NODES)
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


Fleet = dict[tuple[str, str], list[int]]
"""The comparisons of each step of VMs, by namespace and name."""


def rounds(fleet: Fleet, count: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The VMs that are checked in each of the first rounds, apart from cheap ones."""
    monkeypatch.setattr(cost, "MAX_COMPARISONS", 9_000)
    limit, view, checked = CostLimit(), cluster(pods=0), []
    for _ in range(count):
        limit.start_round()
        turns = {vm: limit.turn(ObjectName(*vm), iter(costs), view) for vm, costs in fleet.items()}
        checked.append(" ".join(vm for (_, vm), turn in turns.items() if turn is Turn.NOW))
    return checked


def test_costly_vms_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cheap ones need none."""
    fleet: Fleet = {
        ("shop", "cheap"): [0, 1_000],
        ("shop", "a"): [0, 8_500],
        ("shop", "b"): [0, 3_000],
        ("shop", "c"): [3_000, 3_000],
    }
    assert rounds(fleet, 4, monkeypatch) == ["cheap a", "cheap b c", "cheap a", "cheap b c"]


def test_namespaces_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with many VMs must not delay those of others for as many rounds."""
    fleet: Fleet = {("evil", f"evil-{number}"): [8_000] for number in range(6)}
    fleet |= {("shop", "a"): [4_000, 4_000], ("shop", "b"): [9_000], ("zoo", "z"): [8_000]}
    order = ["evil-0", "evil-1", "a", "z", "evil-2", "b", "z"]
    assert rounds(fleet, 7, monkeypatch) == order


def test_absent_vm_delays_others_by_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "MAX_COMPARISONS", 9_000)
    limit, view = CostLimit(), cluster(pods=0)
    one, other, third = (ObjectName("shop", vm) for vm in ("one", "other", "third"))
    turns = []
    for vms in ((one, other, third), (third,), (third,)):
        limit.start_round()
        turns.append([limit.turn(vm, iter([8_000]), view) for vm in vms])
    assert turns == [[Turn.NOW, Turn.LATER, Turn.LATER], [Turn.LATER], [Turn.NOW]]


def test_rounds_without_checks_keep_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """While migrations are at their limit no VM is checked: afterwards it would start over with the same VM."""
    monkeypatch.setattr(cost, "MAX_COMPARISONS", 9_000)
    limit, view = CostLimit(), cluster(pods=0)
    fleet, turns = (ObjectName("evil", "e"), ObjectName("shop", "s")), []
    for checks in (True, False, True, False):
        limit.start_round()
        turns.append([limit.turn(vm, iter([8_000]), view) for vm in fleet if checks])
    assert turns == [[Turn.NOW, Turn.LATER], [], [Turn.LATER, Turn.NOW], []]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (9_000, [POD_ANTI_AFFINITY, NODE_AFFINITY, None]),
        (5_000, [None, NODE_AFFINITY, None]),
        (400, [None, None, None]),
    ],
)
def test_kube_scheduler_checks_too_costly_constraints(
    limit: int, expected: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A VM that costs more than a whole round would otherwise never move: what is too much is left out."""
    monkeypatch.setattr(cost, "MAX_COMPARISONS", limit)
    monkeypatch.setattr(cost, "CHEAP", 0)
    monkeypatch.setattr(cost, "CHEAP_PER_NODE", 2)
    hosts = {"key": "host", "operator": "NotIn", "values": ["n1"]}
    spec = nodes(*[{"matchExpressions": [hosts]}] * 5)
    spec["affinity"] |= near(everywhere(0), everywhere(0), kind="podAntiAffinity")["affinity"]
    view = cluster(PlacedPod("n0", "evil", PodTraits({"app": "x"})), pods=0)
    for number in range(1_999):
        view.add(PlacedPod("n0", "shop", PodTraits({"app": f"{number}"})))
    found = ConstraintChecker(view).check(Candidate("evil", pod_constraints(spec)))
    assert [found.obstacle(name) for name in NODES[:3]] == expected


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
