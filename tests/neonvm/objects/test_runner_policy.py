"""The NetworkPolicy of the controller: where it exists, and what it must never open."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.local.apiserver.patch.merge import merge_patch
from deploy.neonvm.objects.runner_policy import (
    MANAGED_BY,
    NAME,
    PolicyAction,
    new_policy,
    policy_action,
    relevant_fields,
    restoring_patch,
)
from protocol.kubernetes.objects import Json
from tests.deploy.manifests import documents
from tests.neonvm.sample_objects import virtual_machine

HOME = "kube-system"
OURS = new_policy(HOME)
DENY_ALL: Json = {"metadata": {"name": "deny"}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}


def policy(name: str = "theirs", labels: dict[str, str] | None = None, **spec: Any) -> Json:
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}


def todo(*policies: Json, vms: int = 1, others: bool = False) -> PolicyAction | None:
    return policy_action(HOME, [virtual_machine()] * vms, policies, others)


def test_it_is_the_policy_of_the_chart() -> None:
    (shipped,) = documents("deploy/kubernetes/neonvm-policy.yaml")
    assert OURS["spec"] == shipped["spec"]
    assert OURS["metadata"]["labels"].items() >= shipped["metadata"]["labels"].items()  # type: ignore[index]


def test_it_is_there_while_there_are_vms() -> None:
    assert (todo(), todo(OURS), todo(OURS, vms=0), todo(vms=0)) == (
        PolicyAction.CREATE,
        None,
        PolicyAction.DELETE,
        None,
    )


@pytest.mark.parametrize(
    "other",
    [
        DENY_ALL,
        policy(podSelector={"matchLabels": {"vm.neon.tech/name": "db"}}),
        policy(podSelector={"matchLabels": {"app.kubernetes.io/name": "NeonVM"}}),
        policy(podSelector={"matchExpressions": [{"key": "vm.neon.tech/name", "operator": "Exists"}]}),
        policy(podSelector={"matchLabels": {}}, policyTypes=["Egress", "Ingress"]),
        policy(),
    ],
    ids=["everything", "this VM", "NeonVM's pods", "all VMs", "everything, both ways", "nothing said"],
)
def test_it_never_opens_what_another_policy_closes(other: Json) -> None:
    """Policies are additive: ours would open a database's ports to everyone."""
    assert (todo(other), todo(OURS, other)) == (None, PolicyAction.DELETE)


@pytest.mark.parametrize(
    "other",
    [
        policy(podSelector={"matchLabels": {"app": "web"}}, policyTypes=["Ingress"]),
        policy(podSelector={}, policyTypes=["Egress"]),
        policy(podSelector={}, policyTypes="Ingress"),
    ],
    ids=["other pods", "what goes out", "unreadable"],
)
def test_policies_that_keep_vms_open_are_ignored(other: Json) -> None:
    assert todo(other) is PolicyAction.CREATE


def test_labels_of_running_pods_count() -> None:
    """A pod keeps labels that its VM has lost, and has labels that users and webhooks gave only to it."""
    other = policy(podSelector={"matchLabels": {"tier": "db"}}, policyTypes=["Ingress"])
    pods: list[Json] = [{"metadata": {"name": "db-x", "labels": {"tier": "db"}}}]
    todos = [policy_action(HOME, [virtual_machine()], each, False, pods) for each in ([other], [OURS, other], [OURS])]
    assert todos == [None, PolicyAction.DELETE, None]


def test_policies_of_other_kinds_come_first() -> None:
    assert (todo(others=True), todo(OURS, others=True)) == (None, PolicyAction.DELETE)


def test_the_name_is_left_to_who_has_it() -> None:
    """The chart's policy, one made by hand, and ours without its label: the controller changes none of them."""
    theirs = policy(NAME, {MANAGED_BY: "Helm"}, podSelector={"matchLabels": {"app": "web"}})
    assert (todo(theirs), todo(theirs, vms=0)) == (None, None)
    assert todo({**OURS, "metadata": {"name": NAME}}) is None


@pytest.mark.parametrize(
    "edit",
    [
        {"spec": {"ingress": [{}]}},
        {"spec": {"egress": [{}], "policyTypes": ["Ingress", "Egress"]}},
        {"spec": {"podSelector": {"matchLabels": {"a": "b"}}}},
        {"spec": None},
    ],
)
def test_an_edit_is_undone_whole(edit: Json) -> None:
    edited = merge_patch(OURS, edit)
    assert todo(edited) is PolicyAction.RESTORE
    assert todo(merge_patch(edited, restoring_patch(HOME))) is None


@pytest.mark.parametrize(
    "selector",
    [
        {"matchExpressions": [{"key": f"k{number}", "operator": "DoesNotExist"} for number in range(200)]},
        {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"] * 2000}]},
        {"matchLabels": {f"k{number}": "a" for number in range(200)}},
    ],
)
def test_huge_selectors_count_as_selecting_all(selector: Json) -> None:
    """Fifty policies with 33,000 requirements each took all memory, and one second for each 50 VMs."""
    kept = relevant_fields(policy(podSelector=selector, policyTypes=["Ingress"]))
    assert kept["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    assert todo(kept) is None
