"""Verdicts that the oracle does not cover: texts, preferences, volumes, and unknown facts."""

from __future__ import annotations

import pytest

from scheduler_plugin.cluster.scheduling_fields import node_traits, pod_constraints, pod_traits, volume_terms
from scheduler_plugin.constraints.checker import Candidate, ConstraintChecker
from scheduler_plugin.constraints.cluster_view import ClusterView, PlacedPod, PodsOnNode
from scheduler_plugin.constraints.model import (
    PLAIN_POD,
    PODS,
    UNCONSTRAINED,
    HostPort,
    NodeTerm,
    NodeTraits,
    PodConstraints,
    PodTerm,
    PodTraits,
    Requirement,
    Spread,
    Taint,
    Toleration,
    Weighted,
)

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONE_A, ZONE_B = NodeTraits({"zone": "a"}), NodeTraits({"zone": "b"})
IN_A = NodeTerm((Requirement("zone", "In", ("a",)),))
APP = (Requirement("app", "In", ("db",)),)


def why_not(
    constraints: PodConstraints = UNCONSTRAINED,
    node: NodeTraits = ZONE_A,
    *pods: PodTraits,
    traits: PodTraits = PLAIN_POD,
    volumes: tuple[tuple[NodeTerm, ...], ...] = (),
) -> str | None:
    """The reason why the pod cannot be placed on ``node``, which has ``pods``."""
    view = ClusterView({"n": node}, [PlacedPod("n", "default", pod) for pod in pods])
    return ConstraintChecker(view).check(Candidate("default", constraints, traits, volumes)).obstacle("n")


def test_full_nodes_equal_judging_pods_one_by_one() -> None:
    """Two nodes take two pods each; one is full, the other has a pod with anti-affinity, and a third node is
    unknown.
    """
    place = {
        "n": NodeTraits({"zone": "a"}, other_allocatable={PODS: 2}),
        "m": NodeTraits({"zone": "b"}, other_allocatable={PODS: 2}),
    }
    pods = [PlacedPod(node, "default", traits) for node, traits in (("n", REPELS), ("m", PLAIN_POD), ("m", PLAIN_POD))]
    one_by_one, at_once = ClusterView(place, [*pods, PlacedPod("gone", "default", REPELS)]), ClusterView(place)
    for node in ("n", "m", "gone"):
        at_once.set_pods(
            node, PodsOnNode.of(pod for pod in [*pods, PlacedPod("gone", "default", REPELS)] if pod.node == node)
        )
    near = PodConstraints(affinity=(PodTerm("zone", APP),))
    for constraints, expected in (
        (UNCONSTRAINED, ["node(s) didn't satisfy existing pods anti-affinity rules", "Too many pods"]),
        (near, ["node(s) didn't satisfy existing pods anti-affinity rules", "Too many pods"]),
    ):
        for view in (one_by_one, at_once):
            judged = ConstraintChecker(view).check(Candidate("default", constraints, PodTraits({"app": "db"})))
            assert [judged.obstacle(node) for node in ("n", "m")] == expected


REPELS = PodTraits({"app": "db"}, anti_affinity=(PodTerm("zone", APP),))
HINDRANCES = {
    "the node is not ready and under disk pressure": why_not(
        node=node_traits({}, [], [{"type": "Ready", "status": "False"}, {"type": "DiskPressure", "status": "True"}])
    ),
    "node(s) had untolerated taint gpu=yes:NoExecute": why_not(
        node=NodeTraits(taints=(Taint("gpu", "yes", "NoExecute"),))
    ),
    "node(s) had untolerated taint gpu:NoSchedule": why_not(node=NodeTraits(taints=(Taint("gpu", "", "NoSchedule"),))),
    "node(s) didn't match Pod's node affinity/selector": why_not(PodConstraints(node_terms=(IN_A,)), ZONE_B),
    "node(s) had volume node affinity conflict": why_not(node=ZONE_B, volumes=((IN_A,),)),
    "node(s) didn't match pod affinity rules": why_not(PodConstraints(affinity=(PodTerm("zone", APP),))),
    "node(s) didn't match pod anti-affinity rules": why_not(
        PodConstraints(anti_affinity=(PodTerm("zone", APP),)), ZONE_A, PodTraits({"app": "db"})
    ),
    "node(s) didn't satisfy existing pods anti-affinity rules": why_not(
        UNCONSTRAINED, ZONE_A, REPELS, traits=PodTraits({"app": "db"})
    ),
    "node(s) didn't match pod topology spread constraints (missing required label rack)": why_not(
        PodConstraints(spreads=(Spread("rack", 1, APP),))
    ),
    "node(s) didn't match pod topology spread constraints (zone)": why_not(
        PodConstraints(spreads=(Spread("zone", 1, APP, min_domains=2),)),
        ZONE_A,
        PodTraits({"app": "db"}),
        traits=PodTraits({"app": "db"}),
    ),
    "Too many pods": why_not(UNCONSTRAINED, NodeTraits(other_allocatable={PODS: 1}), PLAIN_POD),
    "Insufficient example.com/gpu": why_not(
        UNCONSTRAINED,
        NodeTraits(other_allocatable={"example.com/gpu": 2}),
        PodTraits(other_requests=(("example.com/gpu", 1),)),
        traits=PodTraits(other_requests=(("example.com/gpu", 2),)),
    ),
    "Insufficient example.com/nic": why_not(traits=PodTraits(other_requests=(("example.com/nic", 1),))),
    "node(s) didn't have free ports for the requested pod ports (80)": why_not(
        UNCONSTRAINED, ZONE_A, PodTraits(host_ports=(HostPort(80),)), traits=PodTraits(host_ports=(HostPort(80),))
    ),
}


def test_obstacles() -> None:
    assert {words: words for words in HINDRANCES} == HINDRANCES


def test_unknown_node_is_not_excluded() -> None:
    judgement = ConstraintChecker(ClusterView({})).check(Candidate("default", PodConstraints(node_terms=())))
    assert (judgement.obstacle("n"), judgement.preference("n")) == (None, (0, 0))


def test_pods_on_unknown_nodes_do_not_count() -> None:
    view = ClusterView({"n": ZONE_A}, [PlacedPod("gone", "default", REPELS)])
    candidate = Candidate("default", traits=PodTraits({"app": "db"}))
    assert ConstraintChecker(view).check(candidate).obstacle("n") is None


def test_unknown_operators_are_conservative() -> None:
    odd = PodConstraints(node_selector=(Requirement("zone", "Near", ("a",)),))
    assert why_not(odd) == "node(s) didn't match Pod's node affinity/selector"
    tainted = NodeTraits(taints=(Taint("size", "3", "NoSchedule"),))
    assert why_not(PodConstraints(tolerations=(Toleration("size", "Gt", "2"),)), tainted) is None


@pytest.mark.parametrize(
    ("operator", "values", "fits"),
    [
        ("Gt", ("2",), True),
        ("Gt", ("3",), False),
        ("Lt", ("4",), True),
        ("Lt", ("few",), False),
        ("Lt", ("4", "5"), False),
    ],
)
def test_labels_are_compared_as_integers(operator: str, values: tuple[str, ...], fits: bool) -> None:
    disks = PodConstraints(node_selector=(Requirement("disks", operator, values),))
    found = [why_not(disks, NodeTraits(labels)) is None for labels in ({"disks": "3"}, {"disks": "many"}, {})]
    assert found == [fits, False, False]


@pytest.mark.parametrize("term", ["affinity", "anti_affinity"])
def test_unknown_namespaces_exclude_nothing(term: str) -> None:
    elsewhere = PodTerm("zone", APP, namespace_selector=(Requirement("team", "In", ("a",)),))
    constraints = PodConstraints(**{term: (elsewhere,)})  # type: ignore[arg-type] # the name of a field
    view = ClusterView({"n": ZONE_A}, [PlacedPod("n", "other", PodTraits({"app": "db"}))])
    assert ConstraintChecker(view).check(Candidate("default", constraints)).obstacle("n") is None


def test_what_is_placed_is_seen_by_the_next() -> None:
    judge = ConstraintChecker(ClusterView({"n": ZONE_A, "m": ZONE_B}))
    apart = PodConstraints(anti_affinity=(PodTerm("zone", APP),))
    first = Candidate("default", apart, PodTraits({"app": "db"}))
    assert judge.check(first).obstacle("n") is None
    judge.place(first, "n")
    second = judge.check(first)
    assert [second.obstacle(name) for name in ("n", "m")] == [
        "node(s) didn't match pod anti-affinity rules",
        None,
    ]


def test_preferences_order_nodes_and_forbid_none() -> None:
    spec = {
        "affinity": {
            "nodeAffinity": {
                PREFERRED: [
                    {"weight": 5, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}},
                    {"weight": 9, "preference": {}},
                ]
            },
            "podAffinity": {PREFERRED: [{"weight": 3, "podAffinityTerm": _term("web")}]},
            "podAntiAffinity": {PREFERRED: [{"weight": 20, "podAffinityTerm": _term("db")}]},
        }
    }
    nodes = {
        "a": NodeTraits({"zone": "a"}),
        "b": NodeTraits({"zone": "b"}),
        "c": NodeTraits(),
        "d": NodeTraits({"zone": "d"}, (Taint("old", "", "PreferNoSchedule"), Taint("x", "", "PreferNoSchedule"))),
    }
    pods = [PlacedPod("a", "default", PodTraits({"app": app})) for app in ("web", "db")]
    pods += [PlacedPod("b", "default", PodTraits({"app": "web"})), PlacedPod("b", "default", PodTraits({"app": "web"}))]
    tolerations = (Toleration("x", "Exists", "", "NoSchedule"), Toleration("old", "Exists"))
    constraints = pod_constraints(spec)
    patient = PodConstraints(
        tolerations, preferred_nodes=constraints.preferred_nodes, preferred_pods=constraints.preferred_pods
    )
    judgement = ConstraintChecker(ClusterView(nodes, pods)).check(Candidate("default", patient))
    assert {name: judgement.preference(name) for name in nodes} == {
        "a": (0, 12),
        "b": (0, -11),
        "c": (0, 0),
        "d": (1, -5),
    }
    assert [judgement.obstacle(name) for name in nodes] == [None] * 4


def _term(app: str) -> dict[str, object]:
    return {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}}


def test_spread_ignores_excluded_nodes() -> None:
    nodes = {"a": ZONE_A, "b": NodeTraits({"zone": "b"}, (Taint("gpu", "", "NoSchedule"),))}
    pods = [PlacedPod("a", "default", PodTraits({"app": "db"}))]
    for honors, expected in ((False, "node(s) didn't match pod topology spread constraints (zone)"), (True, None)):
        constraints = PodConstraints(spreads=(Spread("zone", 1, APP, honors_taints=honors),))
        judgement = ConstraintChecker(ClusterView(nodes, pods)).check(
            Candidate("default", constraints, PodTraits({"app": "db"}))
        )
        assert judgement.obstacle("a") == expected


# Reading --------------------------------------------------------------------------------------------------------------


def test_objects_without_constraints_share_one_value() -> None:
    assert pod_constraints({"guest": {}, "tolerations": []}) is UNCONSTRAINED
    assert pod_traits({}, {"containers": [{"ports": [{"containerPort": 80}]}]}, is_terminating=False) is PLAIN_POD


def test_vm_moves_to_nodes_of_its_architecture() -> None:
    """NeonVM's controller would require it of the target pod, which would then find no node."""
    nodes = {arch: NodeTraits({"kubernetes.io/arch": arch, "zone": "a"}) for arch in ("amd64", "arm64")}
    constraints = pod_constraints({"targetArchitecture": "arm64", "nodeSelector": {"zone": "a"}})
    judgement = ConstraintChecker(ClusterView(nodes, [])).check(Candidate("default", constraints))
    assert judgement.obstacle("amd64") is not None
    assert judgement.obstacle("arm64") is None


@pytest.mark.parametrize("spec", [{"affinity": 7}, {"tolerations": [3]}, {"nodeSelector": {"a": {}}}])
def test_unreadable_constraint_is_reported(spec: dict[str, object]) -> None:
    found = pod_constraints(spec)
    assert found.unreadable
    assert found == PodConstraints(unreadable=found.unreadable)


def test_unreadable_pod_keeps_labels() -> None:
    assert pod_traits({"app": "db"}, {"volumes": 3}, is_terminating=True) == PodTraits(
        {"app": "db"}, is_terminating=True
    )


def test_pod_volumes_ports_tolerations_are_read() -> None:
    spec = {
        "containers": [{"ports": [{"hostPort": 80}, {"hostPort": 81, "protocol": "UDP", "hostIP": "10.0.0.1"}]}],
        "volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "b", "emptyDir": {}}],
        "tolerations": [{"key": "gpu"}, {"key": "node.kubernetes.io/not-ready", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {REQUIRED: [_term("db")]}},
    }
    assert pod_traits({}, spec, is_terminating=False) == PodTraits(
        anti_affinity=(PodTerm("zone", APP),),
        host_ports=(HostPort(80), HostPort(81, "UDP", "10.0.0.1")),
        volumes=("data",),
        tolerations=(Toleration("gpu"),),
    )


def test_unreadable_node_entries_are_dropped() -> None:
    found = node_traits({"zone": "a"}, [{"key": "gpu", "effect": "NoSchedule"}, 7], "nonsense")
    assert found == NodeTraits({"zone": "a"}, (Taint("gpu", "", "NoSchedule"),))


def test_volume_affinity_terms_are_alternatives() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
    assert volume_terms({"required": {"nodeSelectorTerms": terms}}) == (IN_A,)
    assert (volume_terms(None), volume_terms({"required": 3})) == ((), ())


def test_weights_are_those_of_the_terms_that_hold() -> None:
    constraints = PodConstraints(preferred_nodes=(Weighted(5, IN_A), Weighted(7, NodeTerm())))
    judgement = ConstraintChecker(ClusterView({"a": ZONE_A, "b": ZONE_B})).check(Candidate("default", constraints))
    assert [judgement.preference(name) for name in ("a", "b")] == [(0, -5), (0, 0)]
