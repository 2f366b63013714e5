"""Constraints that exclude a node before an extender is called, and the choice of the winner."""

import pytest

from deploy.local.scheduling.pod_rules import no_node_message, refusal, winner
from protocol.kubernetes.objects import Json

READY: Json = {"conditions": [{"type": "Ready", "status": "True"}]}


def node(labels: Json | None = None, spec: Json | None = None, status: Json = READY) -> Json:
    return {"metadata": {"name": "n1", "labels": labels or {}}, "spec": spec or {}, "status": status}


def pod(**spec: object) -> Json:
    return {"spec": spec}


def needs(key: str, operator: str, *values: str, where: str = "matchExpressions") -> Json:
    terms = [{where: [{"key": key, "operator": operator, "values": list(values)}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return pod(affinity={"nodeAffinity": required})


TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
NOT_SELECTED = "node(s) didn't match Pod's node affinity/selector"


@pytest.mark.parametrize(
    ("wanted", "offered", "answer"),
    [
        (pod(), node(), None),
        (pod(), node(status={}), "node(s) were not ready"),
        (pod(), node(status={"conditions": [{"type": "Ready", "status": "Unknown"}]}), "node(s) were not ready"),
        (pod(), node(spec={"unschedulable": True}), "node(s) were unschedulable"),
        (pod(tolerations=[{"operator": "Exists"}]), node(spec={"unschedulable": True}), None),
        (pod(), node(spec={"taints": [TAINT]}), "node(s) had untolerated taint {gpu: yes}"),
        (pod(), node(spec={"taints": [{**TAINT, "effect": "PreferNoSchedule"}]}), None),
        (pod(tolerations=[{"key": "gpu", "value": "yes"}]), node(spec={"taints": [TAINT]}), None),
        (pod(tolerations=[{"key": "gpu", "operator": "Exists"}]), node(spec={"taints": [TAINT]}), None),
        (
            pod(tolerations=[{"key": "gpu", "value": "yes", "effect": "NoExecute"}]),
            node(spec={"taints": [TAINT]}),
            "node(s) had untolerated taint {gpu: yes}",
        ),
        (pod(nodeSelector={"disk": "fast"}), node({"disk": "fast"}), None),
        (pod(nodeSelector={"disk": "fast"}), node(), NOT_SELECTED),
        (needs("zone", "In", "a", "b"), node({"zone": "b"}), None),
        (needs("zone", "In", "a"), node({"zone": "b"}), NOT_SELECTED),
        (needs("zone", "NotIn", "a"), node(), None),
        (needs("zone", "NotIn", "a"), node({"zone": "a"}), NOT_SELECTED),
        (needs("zone", "Exists"), node({"zone": "a"}), None),
        (needs("zone", "DoesNotExist"), node({"zone": "a"}), NOT_SELECTED),
        (needs("cores", "Gt", "4"), node({"cores": "8"}), None),
        (needs("cores", "Lt", "4"), node({"cores": "8"}), NOT_SELECTED),
        (needs("cores", "Gt", "4"), node({"cores": "many"}), NOT_SELECTED),
        (needs("zone", "Resembles", "a"), node({"zone": "a"}), NOT_SELECTED),
        (needs("metadata.name", "In", "n1", where="matchFields"), node(), None),
        (
            pod(
                affinity={
                    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}
                }
            ),
            node(),
            NOT_SELECTED,
        ),
    ],
)
def test_refusals_match_kube_scheduler(wanted: Json, offered: Json, answer: str | None) -> None:
    assert refusal(wanted, offered) == answer


def test_highest_score_wins() -> None:
    assert winner(["a", "b", "c"], {"a": 3, "b": 7}, {}, 0.0) == "b"


def test_equals_are_left_to_chance() -> None:
    assert winner(["a", "b", "c"], {"a": 7, "c": 7}, {}, 0.9) == "c"


def test_unfit_pod_gets_counted_reasons() -> None:
    refusals = {"a": "Insufficient cpu", "b": "Insufficient cpu", "c": "node(s) were unschedulable"}
    expected = "0/3 nodes are available: 2 Insufficient cpu, 1 node(s) were unschedulable."
    assert no_node_message(refusals, 3) == expected
    assert no_node_message({}, 0) == "no nodes available to schedule pods"


def test_preferred_affinity_outweighs_extender() -> None:
    assert winner(["a", "b"], {"a": 10, "b": 1}, {"a": -100}, 0.0) == "b"
    assert winner(["a", "b"], {"a": 10}, {"a": 5, "b": 5}, 0.0) == "a"
