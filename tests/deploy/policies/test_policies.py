"""The policies' verdict on each attempt of the attack table. They apply to our identities only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deploy.local.apiserver.patch.merge import merge_patch
from tests.deploy.manifests import WITH_PODS, Document, documents
from tests.deploy.policies.admission import Write, is_judged, refusal
from tests.kubernetes.attacks.attempt import RBAC, Attempt, noted
from tests.kubernetes.attacks.attempts import ATTEMPTS
from tests.kubernetes.attacks.world import NAMESPACES, OBJECTS, Obj

POLICIES = [each for each in documents() if each["kind"] == "ValidatingAdmissionPolicy"]
BINDINGS = [each for each in documents() if each["kind"] == "ValidatingAdmissionPolicyBinding"]
OPERATIONS = {"create": "CREATE", "patch": "UPDATE", "update": "UPDATE", "delete": "DELETE"}
GIVEN = {(kind, found["metadata"]["name"], found["metadata"].get("namespace", "")): found for kind, found in OBJECTS}

OTHERS = (
    *("admin", "vm-agent", "system:node:n", "system:serviceaccount:kube-system:generic-garbage-collector"),
    *("system:serviceaccount:kube-system:autoscaling-agent-2", "system:serviceaccount:a:vm-agents"),
)


def write_of(tried: Attempt) -> Write:
    """The attempt as admission sees it, on the given cluster."""
    namespace = tried.namespace if tried.kind.namespaced else ""
    before = GIVEN.get((tried.kind, tried.name, namespace)) if tried.verb != "create" else None
    after: Obj | None = tried.body
    if tried.verb == "patch":
        assert before is not None, tried
        after = merge_patch(before, tried.body)
    return Write(
        tried.who.username,
        OPERATIONS[tried.verb],
        tried.kind.group,
        tried.kind.plural,
        namespace,
        tried.subresource,
        None if tried.verb == "delete" else after,
        before,
        tried.who.extra,
        tried.name,
        NAMESPACES.get(namespace, {}),
    )


@pytest.mark.parametrize("tried", [each for each in ATTEMPTS if each.refused_by != RBAC], ids=str)
def test_a_policy_refuses_what_the_table_says(tried: Attempt) -> None:
    said = refusal(POLICIES, write_of(tried))
    assert f"policy {said.partition(':')[0]}" == tried.refused_by if tried.refused_by else said == ""


def rules_of(account: str, namespace: str) -> list[Document]:
    """The rules of our manifests' roles for a service account in a namespace."""
    shipped = [*documents(), *documents(*WITH_PODS)]
    named = {
        (each["roleRef"]["kind"], each["roleRef"]["name"])
        for each in shipped
        if each["kind"].endswith("RoleBinding")
        and f"{each['subjects'][0]['namespace']}:{each['subjects'][0]['name']}" == account
        and each["metadata"].get("namespace", namespace) == namespace
    }
    roles = [each for each in shipped if (each["kind"], each["metadata"]["name"]) in named]
    return [rule for role in roles for rule in role["rules"]]


def allows(rule: Document, tried: Attempt) -> bool:
    resource = f"{tried.kind.plural}/{tried.subresource}" if tried.subresource else tried.kind.plural
    return (
        tried.kind.group in rule["apiGroups"]
        and resource in rule["resources"]
        and tried.verb in rule["verbs"]
        and tried.name in rule.get("resourceNames", [tried.name])
    )


@pytest.mark.parametrize("tried", [each for each in ATTEMPTS if each.refused_by == RBAC], ids=str)
def test_roles_grant_nothing_listed_as_refused(tried: Attempt) -> None:
    assert [rule for rule in rules_of(tried.who.account, tried.namespace) if allows(rule, tried)] == []


ABOUT_EVERYBODY = {"autoscaling-permit-writers", "neonvm-places"}
"""A permit is what the scheduler has granted: nobody else can write one. Places on nodes are for all VMs."""


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy["metadata"]["name"])
def test_policy_is_bound_to_its_identity(policy: Document) -> None:
    name = policy["metadata"]["name"]
    (binding,) = (each for each in BINDINGS if each["spec"]["policyName"] == name)
    assert (binding["metadata"]["name"], binding["spec"]["validationActions"]) == (name, ["Deny", "Audit"])
    assert policy["spec"]["failurePolicy"] == "Fail"
    for rule in policy["spec"]["matchConstraints"]["resourceRules"]:
        for resource in rule["resources"]:
            plural, _, subresource = resource.partition("/")
            for other in OTHERS if name not in ABOUT_EVERYBODY else ():
                assert not is_judged(policy, Write(other, "UPDATE", rule["apiGroups"][0], plural, "a", subresource))
    assert all(rule["reason"] == "Forbidden" for rule in policy["spec"]["validations"])


@pytest.mark.parametrize("other", [*OTHERS, "system:serviceaccount:other:autoscaling-scheduler"])
def test_permits_are_protected_and_only_they(other: str) -> None:
    """Objects without annotations, or with other annotations, are not rejected for a missing permit."""

    def said(before: Obj, after: Obj) -> str:
        old, new = ({"metadata": {"annotations": each} if each else {}} for each in (before, after))
        write = Write(other, "UPDATE", "vm.neon.tech", "virtualmachines", "a", after=new, before=old)
        return refusal(POLICIES, write)

    permit, writer = "autoscaling.neon.tech/permit", "autoscaling.neon.tech/permit-writer"
    kept: Obj = {permit: "1", writer: "s/1"}
    none: Obj = {}
    allowed = ((kept, kept), (none, none), (kept, none), (kept, {writer: "s/1"}), ({"a": "b"}, {"a": "c", "d": "e"}))
    refused = ((kept, kept | {permit: "2"}), (kept, kept | {writer: "x"}), (none, {permit: "1"}), (none, {writer: "x"}))
    assert [said(*each) for each in allowed] == [""] * len(allowed)
    assert all(said(*each).startswith("autoscaling-permit-writers: only the scheduler") for each in refused)


def test_agent_does_not_revoke_sleep_order() -> None:
    """Removing the order would wake the VM; a new order, and a resize that keeps the order, are allowed."""
    sleep, (tried,) = "autoscaling.neon.tech/sleep", (each for each in ATTEMPTS if each.what == "orders it to sleep")
    asked = write_of(tried)
    assert asked.after is not None

    def said(order: str | None) -> str:
        after = merge_patch(asked.after or {}, noted(sleep, order))
        return refusal(POLICIES, replace(asked, before=asked.after, after=after))

    assert said(None) == "autoscaling-agents: an order to sleep must be an RFC 3339 timestamp"
    assert (said("2026-11-27T03:00:00Z"), said("2026-11-27T02:10:00.000000Z")) == ("", "")
