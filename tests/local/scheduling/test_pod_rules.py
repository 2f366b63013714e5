"""The rules between pods, in kube-scheduler's words."""

from __future__ import annotations

import pytest

from deploy.local.scheduling.pod_rules import (
    AFFINITY,
    ANTI_AFFINITY,
    EXISTING_ANTI_AFFINITY,
    PORTS,
    SPREAD,
    PodRules,
    placed_pod,
)
from protocol.kubernetes.objects import Json

HOST, ZONE = "kubernetes.io/hostname", "zone"
NODES: dict[str, Json] = {
    name: {"metadata": {"name": name, "labels": {HOST: name, ZONE: zone}}}
    for name, zone in (("n1", "a"), ("n2", "a"), ("n3", "b"))
}


def pod(labels: dict[str, str] | None = None, node: str = "", namespace: str = "default", **spec: object) -> Json:
    metadata = {"name": "p", "namespace": namespace, "labels": labels or {}}
    return {"metadata": metadata, "spec": {**spec, **({"nodeName": node} if node else {})}}


def demands(kind: str, app: str, topology: str = HOST) -> Json:
    term = {"topologyKey": topology, "labelSelector": {"matchLabels": {"app": app}}}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def verdicts(wanted: Json, *there: Json) -> dict[str, str | None]:
    rules = PodRules(wanted, NODES, [placed_pod(each) for each in there])
    return {name: rules.refusal(name) for name in NODES}


DB = {"app": "db"}


@pytest.mark.parametrize(
    ("wanted", "there", "refused"),
    [
        (pod(DB), [pod(DB, "n1")], {}),
        (pod(affinity=demands("podAntiAffinity", "db")), [pod(DB, "n1")], {"n1": ANTI_AFFINITY}),
        (
            pod(affinity=demands("podAntiAffinity", "db", ZONE)),
            [pod(DB, "n1")],
            {"n1": ANTI_AFFINITY, "n2": ANTI_AFFINITY},
        ),
        (pod(affinity=demands("podAntiAffinity", "db")), [pod(DB, "n1", namespace="other")], {}),
        (pod(DB), [pod(node="n3", affinity=demands("podAntiAffinity", "db"))], {"n3": EXISTING_ANTI_AFFINITY}),
        (pod(affinity=demands("podAffinity", "db", ZONE)), [pod(DB, "n1")], {"n3": AFFINITY}),
        (pod(affinity=demands("podAffinity", "db")), [], dict.fromkeys(NODES, AFFINITY)),
        (pod(DB, affinity=demands("podAffinity", "db")), [], {}),
        (
            pod(containers=[{"ports": [{"containerPort": 1, "hostPort": 80}]}]),
            [pod(node="n2", containers=[{"ports": [{"containerPort": 2, "hostPort": 80}]}])],
            {"n2": PORTS},
        ),
        (
            pod(
                DB,
                topologySpreadConstraints=[
                    {
                        "maxSkew": 1,
                        "topologyKey": ZONE,
                        "whenUnsatisfiable": "DoNotSchedule",
                        "labelSelector": {"matchLabels": DB},
                    }
                ],
            ),
            [pod(DB, "n1")],
            {"n1": SPREAD, "n2": SPREAD},
        ),
    ],
)
def test_node_is_refused_for_its_pods(wanted: Json, there: list[Json], refused: dict[str, str]) -> None:
    assert {name: why for name, why in verdicts(wanted, *there).items() if why} == refused


def test_preferred_anti_affinity_avoids_pods() -> None:
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": DB}}
    avoids: Json = {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]
        }
    }
    rules = PodRules(pod(DB, affinity=avoids), NODES, [placed_pod(pod(DB, "n1")), placed_pod(pod(DB, "n1"))])
    assert [rules.preference(node) for node in NODES] == [-200, 0, 0]
