"""For any cluster and pod, the checker allows exactly the nodes that kube-scheduler's rules allow."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_plugin.cluster.pods.requests import other_requests, other_resources
from scheduler_plugin.cluster.pods.shapes import PodSpec
from scheduler_plugin.cluster.scheduling_fields import node_traits, pod_constraints, pod_traits
from scheduler_plugin.constraints.checker import Candidate, ConstraintChecker
from scheduler_plugin.constraints.cluster_view import ClusterView, PlacedPod
from tests.examples import examples
from tests.scheduler_plugin.constraints.oracle import REQUIRED, Cluster, Json

KEYS = st.sampled_from(["zone", "host", "disk"])
VALUES = st.sampled_from(["a", "b", "1", "2"])
LABELS = st.dictionaries(KEYS, VALUES, max_size=3)
NAMESPACES = {"db": {"team": "a"}, "web": {"team": "b"}}
EFFECTS = st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"])


def requirements(operators: list[str]) -> st.SearchStrategy[Json]:
    def made(key: str, operator: str, values: list[str]) -> Json:
        bare = operator in {"Exists", "DoesNotExist"}
        return {"key": key, "operator": operator} | ({} if bare else {"values": values})

    return st.builds(made, KEYS, st.sampled_from(operators), st.lists(VALUES, min_size=1, max_size=1))


SET_OPERATORS = ["In", "NotIn", "Exists", "DoesNotExist"]
SELECTORS = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "matchLabels": st.dictionaries(KEYS, VALUES, max_size=1),
        "matchExpressions": st.lists(requirements(SET_OPERATORS), max_size=2),
    },
)
NAME_FIELDS = st.builds(
    lambda operator, name: {"key": "metadata.name", "operator": operator, "values": [name]},
    st.sampled_from(["In", "NotIn"]),
    st.sampled_from(["n0", "n1"]),
)
NODE_TERMS = st.fixed_dictionaries(
    {"matchExpressions": st.lists(requirements(["Gt", "Lt", *SET_OPERATORS]), max_size=2)},
    optional={"matchFields": st.lists(NAME_FIELDS, max_size=1)},
)
POD_TERMS = st.fixed_dictionaries(
    {"topologyKey": KEYS, "labelSelector": SELECTORS},
    optional={
        "namespaces": st.lists(st.sampled_from(list(NAMESPACES)), max_size=1),
        "namespaceSelector": st.sampled_from([{}, {"matchLabels": {"team": "a"}}]),
        "matchLabelKeys": st.lists(KEYS, max_size=1),
        "mismatchLabelKeys": st.lists(KEYS, max_size=1),
    },
)
ANTI = st.fixed_dictionaries({}, optional={"podAntiAffinity": st.fixed_dictionaries({REQUIRED: st.lists(POD_TERMS)})})
AFFINITY = st.fixed_dictionaries(
    {},
    optional={
        "nodeAffinity": st.fixed_dictionaries(
            {}, optional={REQUIRED: st.fixed_dictionaries({"nodeSelectorTerms": st.lists(NODE_TERMS, max_size=2)})}
        ),
        "podAffinity": st.fixed_dictionaries({REQUIRED: st.lists(POD_TERMS, max_size=2)}),
        "podAntiAffinity": st.fixed_dictionaries({REQUIRED: st.lists(POD_TERMS, max_size=2)}),
    },
)
TAINTS = st.fixed_dictionaries({"key": KEYS, "effect": EFFECTS}, optional={"value": VALUES})
TOLERATIONS = st.fixed_dictionaries(
    {}, optional={"key": KEYS, "operator": st.just("Equal"), "value": VALUES, "effect": EFFECTS}
) | st.fixed_dictionaries({"operator": st.just("Exists")}, optional={"key": KEYS, "effect": EFFECTS})
SPREADS = st.fixed_dictionaries(
    {
        "topologyKey": KEYS,
        "maxSkew": st.integers(1, 2),
        "whenUnsatisfiable": st.sampled_from(["DoNotSchedule", "ScheduleAnyway"]),
        "labelSelector": SELECTORS,
    },
    optional={
        "minDomains": st.integers(1, 3),
        "nodeAffinityPolicy": st.sampled_from(["Honor", "Ignore"]),
        "nodeTaintsPolicy": st.sampled_from(["Honor", "Ignore"]),
        "matchLabelKeys": st.lists(KEYS, max_size=1),
    },
)
PORTS = st.fixed_dictionaries(
    {
        "hostPort": st.sampled_from([80, 90]),
        "protocol": st.sampled_from(["TCP", "UDP"]),
        "hostIP": st.sampled_from(["0.0.0.0", "10.0.0.1", "10.0.0.2"]),
    }
)
RESOURCES = st.sampled_from(["example.com/gpu", "hugepages-2Mi"])
ASKS: st.SearchStrategy[Json] = st.just({}) | st.fixed_dictionaries(
    {"requests": st.dictionaries(RESOURCES | st.sampled_from(["cpu", "memory"]), st.integers(0, 2), max_size=3)}
)
CONTAINERS = st.lists(
    st.fixed_dictionaries({"ports": st.lists(PORTS, max_size=1), "resources": ASKS}), min_size=1, max_size=2
)
INITS = st.lists(st.fixed_dictionaries({"resources": ASKS}, optional={"restartPolicy": st.just("Always")}), max_size=2)
ALLOCATABLE = st.dictionaries(RESOURCES, st.integers(0, 4), max_size=2) | st.fixed_dictionaries(
    {"pods": st.integers(0, 3)}
)
CONDITIONS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["Ready", "MemoryPressure"]), "status": st.sampled_from(["True", "True", "Unknown"])}
    ),
    max_size=1,
)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Json], list[Json], Json]:
    """Nodes, pods placed on them, and a pending pod."""
    count = draw(st.integers(1, 4))
    nodes: list[Json] = [
        {
            "metadata": {"name": f"n{number}", "labels": draw(LABELS)},
            "spec": {"taints": draw(st.lists(TAINTS, max_size=1))},
            "status": {"conditions": draw(CONDITIONS), "allocatable": draw(ALLOCATABLE)},
        }
        for number in range(count)
    ]

    def meta() -> Json:
        return {"namespace": draw(st.sampled_from(list(NAMESPACES))), "labels": draw(LABELS)}

    pods: list[Json] = []
    for _ in range(draw(st.integers(0, 5))):
        leaving = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if draw(st.booleans()) else {}
        spec = {
            "nodeName": f"n{draw(st.integers(0, count - 1))}",
            "containers": draw(CONTAINERS),
            "initContainers": draw(INITS),
        }
        pods.append({"metadata": meta() | leaving, "spec": spec | {"affinity": draw(ANTI)}})
    placed: Json = {
        "containers": draw(CONTAINERS),
        "initContainers": draw(INITS),
        "affinity": draw(AFFINITY),
        "nodeSelector": draw(st.just({}) | st.dictionaries(KEYS, VALUES, max_size=1)),
        "tolerations": draw(st.lists(TOLERATIONS, max_size=2)),
        "topologySpreadConstraints": draw(st.lists(SPREADS, max_size=2)),
    }
    return nodes, pods, {"metadata": meta(), "spec": placed}


def judged(nodes: list[Json], pods: list[Json], pod: Json, *, late: bool) -> dict[str, bool]:
    """The verdict on each node; ``late``: half of the pods are placed after the view was used."""
    known = {
        node["metadata"]["name"]: node_traits(
            node["metadata"]["labels"],
            node["spec"]["taints"],
            node["status"]["conditions"],
            other_resources(node["status"]["allocatable"]),
        )
        for node in nodes
    }
    view = ClusterView(known, (), NAMESPACES)
    judge, candidate = ConstraintChecker(view), _candidate(pod)
    for number, each in enumerate(pods):
        if late and number == len(pods) // 2:
            for name in known:
                judge.check(candidate).obstacle(name)
        view.add(PlacedPod(each["spec"]["nodeName"], each["metadata"]["namespace"], _traits(each)))
    judgement = judge.check(candidate)
    return {name: judgement.obstacle(name) is None for name in known}


def _traits(pod: Json) -> Any:
    leaving = "deletionTimestamp" in pod["metadata"]
    asks = other_requests(msgspec.convert(pod["spec"], PodSpec))
    return pod_traits(pod["metadata"]["labels"], pod["spec"], is_terminating=leaving, others=asks)


def _candidate(pod: Json) -> Candidate:
    constraints = pod_constraints(pod["spec"])
    assert not constraints.unreadable
    return Candidate(pod["metadata"]["namespace"], constraints, _traits(pod))


@settings(max_examples=examples(40, 400))
@given(clusters(), st.booleans())
def test_nodes_are_judged_as_kube_scheduler_judges_them(
    cluster: tuple[list[Json], list[Json], Json], late: bool
) -> None:
    nodes, pods, pod = cluster
    oracle = Cluster(nodes, pods, NAMESPACES)
    assert judged(nodes, pods, pod, late=late) == {node["metadata"]["name"]: oracle.fits(pod, node) for node in nodes}
