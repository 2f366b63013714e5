"""Who may do what: the person who asks, and the service accounts of our programs (pure).

What a program needs is what its ClusterRole and Role in the shipped manifests grant, which tests hold against every
call that it makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from protocol.kubernetes.objects import Json, child, items, name_of, text
from protocol.names import MIGRATION_PLURAL, VM_GROUP, VM_PLURAL
from scripts.autoscale.check.facts import CheckFacts, Right
from scripts.autoscale.check.finding import CheckProblem, CheckResult
from scripts.autoscale.check.installed_programs import is_told
from scripts.autoscale.check.looks import UnseenError

SHIPPED_NAMESPACE: Final = "kube-system"
"""What the shipped manifests call the namespace of an installation."""

BORROWED_IN: Final = "kube-system"
"""Where ``extension-apiserver-authentication-reader`` is, whatever the namespace of an installation."""

_RBAC: Final = "rbac.authorization.k8s.io"
_ADMISSION: Final = "admissionregistration.k8s.io"

BORROWED: Final = {
    "system:kube-scheduler": (
        Right("create", "", "pods/binding"),
        Right("watch", "", "nodes"),
        Right("list", "", "pods"),
    ),
    "system:volume-scheduler": (
        Right("list", "", "persistentvolumes"),
        Right("list", "storage.k8s.io", "storageclasses"),
    ),
    "extension-apiserver-authentication-reader": (
        Right("get", "", "configmaps", BORROWED_IN, "extension-apiserver-authentication"),
    ),
    "system:auth-delegator": (
        Right("create", "authentication.k8s.io", "tokenreviews"),
        Right("create", "authorization.k8s.io", "subjectaccessreviews"),
    ),
}
"""Of Kubernetes' own roles, which a cluster may have changed: what of each shows that it is bound."""

_ONLY_WITH: Final = {
    ("autoscaling-dashboard", "nodes"): "--history",
    ("autoscaling-dashboard", "pods"): "--agents-namespace",
    ("autoscaling-scheduler", "endpointslices"): "--leader-endpoints",
    ("autoscaling-scheduler", "leases"): "--lease",
    ("autoscaling-scheduler", "services"): "--leader-endpoints",
}
"""By account and kind, the argument without which a program does nothing with that kind: the chart grants no more."""

_NOT_WITH: Final = {("neonvm-controller", "--no-network-policies"): "polic"}
"""By account and argument, a part of the names of the kinds with which a program then does nothing."""


def install_rights(namespace: str, *, makes_namespace: bool) -> list[Right]:
    """Rights needed to install. A role of Kubernetes is bound where it is."""
    inside = (
        ("", "serviceaccounts"), ("", "configmaps"), ("", "secrets"), ("", "services"), ("apps", "deployments"),
        ("apps", "daemonsets"), ("policy", "poddisruptionbudgets"), (_RBAC, "roles"), (_RBAC, "rolebindings"),
        ("networking.k8s.io", "networkpolicies"), ("discovery.k8s.io", "endpointslices"),
    )  # fmt: skip
    outside = (
        ("apiextensions.k8s.io", "customresourcedefinitions"), (_RBAC, "clusterroles"), (_RBAC, "clusterrolebindings"),
        (_ADMISSION, "mutatingwebhookconfigurations"), (_ADMISSION, "validatingadmissionpolicies"),
        (_ADMISSION, "validatingadmissionpolicybindings"),
    )  # fmt: skip
    found = [Right(verb, group, what, namespace) for group, what in inside for verb in ("create", "patch")]
    found += [Right(verb, group, what) for group, what in outside for verb in ("create", "patch")]
    found += [Right(verb, _RBAC, "rolebindings", BORROWED_IN) for verb in ("create", "patch")]
    found += [Right("create", "", "namespaces")] if makes_namespace else []
    found += [Right("escalate", _RBAC, "clusterroles"), Right("bind", _RBAC, "clusterroles")]
    return list(dict.fromkeys(found))


def command_rights(namespace: str) -> list[Right]:
    """Rights for ``autoscale top``, ``explain`` and ``migrate``; ``top`` also watches what it follows."""
    return [
        Right("list", VM_GROUP, VM_PLURAL),
        Right("watch", VM_GROUP, VM_PLURAL),
        Right("list", VM_GROUP, MIGRATION_PLURAL),
        Right("watch", VM_GROUP, MIGRATION_PLURAL),
        Right("create", VM_GROUP, MIGRATION_PLURAL),
        Right("delete", VM_GROUP, MIGRATION_PLURAL),
        Right("list", "", "pods"),
        Right("watch", "", "pods"),
        Right("list", "", "events"),
        Right("get", "", "pods/portforward"),
        Right("create", "", "pods/portforward"),
        Right("get", "", "services/proxy", namespace),
    ]


def may_install(facts: CheckFacts) -> CheckResult:
    """Check that the person who asks may install."""
    return _own(facts, install_rights(facts.namespace, makes_namespace=facts.lacks_namespace))


def may_use_commands(facts: CheckFacts) -> CheckResult:
    """Check that the person who asks may use the other commands."""
    return _own(facts, command_rights(facts.namespace))


def _own(facts: CheckFacts, wanted: Iterable[Right]) -> CheckResult:
    known = facts.own_rights.value
    missing = [each for each in wanted if not known.get(each, True)]
    return CheckResult("", [CheckProblem(str(each), f"you may not {each}") for each in missing])


def programs_may_act(facts: CheckFacts) -> CheckResult:
    """Check that each program's service account may do all that the program does."""
    known = facts.account_rights.value
    if not known:
        raise UnseenError("no program is installed")
    problems = [
        CheckProblem(account, f"the service account {account} may not {', '.join(map(str, missing))}")
        for account, rights in sorted(known.items())
        if (missing := sorted(right for right, is_allowed in rights.items() if not is_allowed))
    ]
    return CheckResult(f"{len(known)} service accounts, {sum(map(len, known.values()))} rights", problems)


def needed_rights(documents: Iterable[Json], namespace: str) -> dict[str, frozenset[Right]]:
    """Rights that shipped manifests grant each service account, for an installation in ``namespace``.

    Accounts are ``namespace:name``.
    """
    every = list(documents)
    roles = {(text(each, "kind"), name_of(each).name): each for each in every if "rules" in each}
    found: dict[str, set[Right]] = {}
    for binding in every:
        if text(binding, "kind") in ("ClusterRoleBinding", "RoleBinding"):
            for account in _accounts(binding, namespace):
                found.setdefault(account, set()).update(_granted(binding, roles, namespace))
    return {account: frozenset(rights) for account, rights in found.items()}


def exercised(account: str, granted: Iterable[Right], pods: Sequence[Json]) -> frozenset[Right]:
    """Of what shipped manifests grant to an account (``namespace:name``), what the program in its ``pods`` does."""
    name = account.partition(":")[2]

    def is_told_any(argument: str) -> bool:
        return any(is_told(pod, argument) for pod in pods)

    unused = [part for (account_name, flag), part in _NOT_WITH.items() if account_name == name and is_told_any(flag)]
    needs = ((right, _ONLY_WITH.get((name, right.resource))) for right in granted)
    return frozenset(
        right
        for right, told in needs
        if (told is None or is_told_any(told)) and not any(part in right.resource for part in unused)
    )


def _accounts(binding: Json, namespace: str) -> list[str]:
    subjects = items(binding, "subjects")
    return [f"{_moved(text(each, 'namespace'), namespace)}:{text(each, 'name')}" for each in subjects]


def _moved(shipped: str, namespace: str) -> str:
    return namespace if shipped == SHIPPED_NAMESPACE else shipped


def _granted(binding: Json, roles: Mapping[tuple[str, str], Json], namespace: str) -> list[Right]:
    reference = child(binding, "roleRef")
    where = "" if text(binding, "kind") == "ClusterRoleBinding" else name_of(binding).namespace
    role = roles.get((text(reference, "kind"), text(reference, "name")))
    if role is None:
        return list(BORROWED.get(text(reference, "name"), ()))
    return [right for rule in items(role, "rules") for right in _rights(rule, _moved(where, namespace))]


def _rights(rule: Json, namespace: str) -> list[Right]:
    return [
        Right(verb, group, resource, namespace, name)
        for group in _words(rule, "apiGroups")
        for resource in _words(rule, "resources")
        for verb in _words(rule, "verbs")
        for name in (_words(rule, "resourceNames") or [""])
    ]


def _words(rule: Json, key: str) -> list[str]:
    found = rule.get(key)
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
