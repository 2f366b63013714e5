"""Constraints with thousands of parts: checking them against a cluster would keep the scheduler busy for minutes."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_plugin.cluster.scheduling_fields import pod_constraints, pod_traits
from scheduler_plugin.constraints.model import PLAIN_POD, PodConstraints
from scheduler_plugin.texts.explanations import TOO_MANY_CONSTRAINTS

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
EVERY: dict[str, Any] = {"matchExpressions": []}
NEEDED = {"key": "a", "operator": "Exists"}


def term(**parts: Any) -> dict[str, Any]:
    return {"topologyKey": "zone", "labelSelector": {}, **parts}


def near(*terms: Any, kind: str = "podAffinity") -> dict[str, Any]:
    return {"affinity": {kind: {REQUIRED: list(terms)}}}


def nodes(*terms: Any) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}


def preferring(kind: str, field: str, count: int, each: Any) -> dict[str, Any]:
    return {"affinity": {kind: {PREFERRED: [{"weight": 1, field: each}] * count}}}


MANY = [str(number) for number in range(1001)]
ONE_IN_MANY = {"key": "a", "operator": "In", "values": MANY}
TOO_MANY: list[dict[str, Any]] = [
    near(*[term()] * 101),
    near(*[term()] * 101, kind="podAntiAffinity"),
    near(term(labelSelector={"matchExpressions": [NEEDED] * 100})),
    near(term(namespaceSelector={"matchExpressions": [NEEDED] * 100})),
    near(term(namespaces=MANY)),
    near(term(matchLabelKeys=MANY)),
    near(term(mismatchLabelKeys=MANY)),
    near(term(labelSelector={"matchExpressions": [ONE_IN_MANY]})),
    preferring("podAffinity", "podAffinityTerm", 101, term()),
    preferring("podAntiAffinity", "podAffinityTerm", 101, term()),
    preferring("nodeAffinity", "preference", 1001, EVERY),
    nodes(*[EVERY] * 1001),
    nodes({"matchExpressions": [NEEDED] * 1000}),
    nodes({"matchFields": [ONE_IN_MANY]}),
    {"nodeSelector": dict.fromkeys(MANY, "a")},
    {"tolerations": [{}] * 1001},
    {"topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 1}] * 101},
    {"topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 1, "matchLabelKeys": MANY}]},
]


@pytest.mark.parametrize("spec", TOO_MANY)
def test_too_many_constraints_are_not_read(spec: dict[str, Any]) -> None:
    assert pod_constraints(spec) == PodConstraints(unreadable=TOO_MANY_CONSTRAINTS)


def test_usual_constraints_are_read() -> None:
    hosts = nodes({"matchExpressions": [ONE_IN_MANY | {"values": MANY[:900]}]})
    tolerations: dict[str, Any] = {"tolerations": [{}] * 1000}
    for spec in (near(*[term()] * 100), hosts, tolerations):
        assert not pod_constraints(spec).unreadable


def test_pods_with_many_terms_repel_none() -> None:
    def traits(count: int) -> Any:
        return pod_traits({}, near(*[term()] * count, kind="podAntiAffinity"), is_terminating=False)

    assert len(traits(100).anti_affinity) == 100
    assert traits(101) is PLAIN_POD


def test_lists_of_a_pod_are_limited() -> None:
    """170 pods with 80,000 labels each, or as many other parts, took all memory of the scheduler."""
    ports = [{"hostPort": number} for number in range(1, 2001)]
    claims = [{"persistentVolumeClaim": {"claimName": str(number)}} for number in range(2000)]
    spec = {"containers": [{"ports": ports}], "volumes": claims, "tolerations": [{"key": "a"}] * 2000}
    labels = {str(number): "a" for number in range(2000)}
    others = tuple((str(number), 1) for number in range(2000))
    traits = pod_traits(labels, spec, is_terminating=False, others=others)
    parts = (traits.labels, traits.host_ports, traits.volumes, traits.tolerations, traits.other_requests)
    assert [len(part) for part in parts] == [1000] * 5
