"""Rights of the user, and of the service accounts of our programs (pure).

A program needs the rights that its roles in the shipped manifests grant; tests compare these with its API calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from protocol.kubernetes.objects import Json, child, items, name_of, text, texts_at
from protocol.names import MIGRATION_PLURAL, VM_GROUP, VM_PLURAL
from scripts.autoscale.check.facts import CheckFacts, Right, require
from scripts.autoscale.check.finding import CheckProblem, CheckResult, CheckSection, When, check_of
from scripts.autoscale.check.installed_programs import has_argument

check = partial(check_of, CheckSection.RIGHTS)

SHIPPED_NAMESPACE: Final = "kube-system"
"""The namespace in the shipped manifests."""

BORROWED_IN: Final = "kube-system"
"""The namespace of ``extension-apiserver-authentication-reader``, regardless of the installation's."""

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
"""Some rights of each of Kubernetes' own roles that we bind: enough to see that it is bound."""

_ONLY_WITH: Final = {
    ("autoscaling-dashboard", "nodes"): "--history",
    ("autoscaling-dashboard", "pods"): "--agents-namespace",
    ("autoscaling-scheduler", "endpointslices"): "--leader-endpoints",
    ("autoscaling-scheduler", "leases"): "--lease",
    ("autoscaling-scheduler", "services"): "--leader-endpoints",
}
"""The argument without which a program does not use a resource, by account and resource; the chart grants no more."""

_NOT_WITH: Final = {("neonvm-controller", "--no-network-policies"): "polic"}
"""A part of the names of resources that a program does not use if it has an argument, by account and argument."""


def install_rights(namespace: str, *, makes_namespace: bool) -> list[Right]:
    """Rights needed to install."""
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
    rights = [Right(verb, group, what, namespace) for group, what in inside for verb in ("create", "patch")]
    rights += [Right(verb, group, what) for group, what in outside for verb in ("create", "patch")]
    # `extension-apiserver-authentication-reader` is a Role, which can be bound only in its own namespace.
    rights += [Right(verb, _RBAC, "rolebindings", BORROWED_IN) for verb in ("create", "patch")]
    rights += [Right("create", "", "namespaces")] if makes_namespace else []
    # RBAC requires `escalate` (in roles) and `bind` (in bindings) to grant rights that one does not have.
    rights += [Right("escalate", _RBAC, "clusterroles"), Right("bind", _RBAC, "clusterroles")]
    # A dict drops duplicates and keeps the order: an installation in kube-system names its RoleBindings twice.
    return list(dict.fromkeys(rights))


def command_rights(namespace: str) -> list[Right]:
    """Rights for ``autoscale top``, ``explain``, ``migrate``, ``sleep`` and ``wake``; ``top`` also watches."""
    return [
        Right("list", VM_GROUP, VM_PLURAL),
        Right("watch", VM_GROUP, VM_PLURAL),
        Right("patch", VM_GROUP, VM_PLURAL),
        Right("list", VM_GROUP, MIGRATION_PLURAL),
        Right("watch", VM_GROUP, MIGRATION_PLURAL),
        Right("create", VM_GROUP, MIGRATION_PLURAL),
        Right("delete", VM_GROUP, MIGRATION_PLURAL),
        Right("list", "", "pods"),
        Right("watch", "", "pods"),
        Right("list", "", "events"),
        # `get` opens a port-forward over WebSocket, `create` one over SPDY; kubectl's version decides.
        Right("get", "", "pods/portforward"),
        Right("create", "", "pods/portforward"),
        Right("get", "", "services/proxy", namespace),
    ]


@check(
    "rights-install",
    "you have permission to install",
    "kubectl auth can-i --list -n {namespace}; ask an administrator for the ClusterRole cluster-admin",
    When.BEFORE,
)
def may_install(facts: CheckFacts) -> CheckResult:
    """Installing creates the namespace, CRDs, roles and bindings (one of them in `kube-system`), service accounts,
    workloads and settings. Kubernetes lets you grant only permissions that you have, unless you may `escalate` and
    `bind`.
    """
    return _own_rights(facts, install_rights(facts.namespace, makes_namespace=facts.lacks_namespace))


@check(
    "rights-commands",
    "you have permission to use the commands",
    "kubectl auth can-i --list -n {namespace}; ask an administrator for the missing permissions",
)
def may_use_commands(facts: CheckFacts) -> CheckResult:
    """`autoscale top`, `explain` and `migrate` list VMs, pods, events and migrations; `top` also watches VMs, pods and
    migrations. `migrate` creates and deletes migrations, and `sleep` and `wake` patch VMs. All reach agents and the
    scheduler by port-forward, because these serve explanations only on loopback or to callers with a token.
    """
    return _own_rights(facts, command_rights(facts.namespace))


def _own_rights(facts: CheckFacts, wanted: Iterable[Right]) -> CheckResult:
    rights = facts.own_rights.value
    # A right without a review counts as granted.
    missing = [right for right in wanted if not rights.get(right, True)]
    return CheckResult("", [CheckProblem(str(right), f"you cannot {right}") for right in missing])


@check(
    "rights-programs",
    "service accounts have the permissions they need",
    "kubectl auth can-i --list --as=system:serviceaccount:{subject}; apply the roles and bindings of the release again",
)
def programs_may_act(facts: CheckFacts) -> CheckResult:
    """A service account lacks a permission that its role in the manifests grants. Some depend on flags: the page lists
    pods only with `--agents-namespace` and nodes only with `--history`; the scheduler uses its Lease only with
    `--lease`, and EndpointSlices only with `--leader-endpoints`. Without `patch virtualmachines` the scheduler cannot
    store permits and no VM grows; without `create tokenreviews` agents get 503.
    """
    rights_by_account = facts.account_rights.value
    require(rights_by_account, "no program is installed")
    problems = [
        CheckProblem(account, f"the service account {account} cannot {', '.join(map(str, missing))}")
        for account, rights in sorted(rights_by_account.items())
        if (missing := sorted(right for right, is_allowed in rights.items() if not is_allowed))
    ]
    return CheckResult(
        f"{len(rights_by_account)} service accounts, {sum(map(len, rights_by_account.values()))} permissions", problems
    )


def needed_rights(documents: Iterable[Json], namespace: str) -> dict[str, frozenset[Right]]:
    """Rights that shipped manifests grant each service account, for an installation in ``namespace``.

    Accounts are ``namespace:name``.
    """
    objects = list(documents)
    roles = {(text(role, "kind"), name_of(role).name): role for role in objects if "rules" in role}
    granted: dict[str, set[Right]] = {}
    for binding in objects:
        if text(binding, "kind") in ("ClusterRoleBinding", "RoleBinding"):
            for account in _accounts(binding, namespace):
                # An account has several bindings, each with rights of its own.
                granted.setdefault(account, set()).update(_granted(binding, roles, namespace))
    return {account: frozenset(rights) for account, rights in granted.items()}


def exercised(account: str, granted: Iterable[Right], pods: Sequence[Json]) -> frozenset[Right]:
    """The rights that the program in ``pods`` uses, of those granted to its account (``namespace:name``)."""
    name = account.partition(":")[2]

    def has_flag(argument: str) -> bool:
        return any(has_argument(pod, argument) for pod in pods)

    # The flag disables a part of the program, which then needs no rights to those resources.
    unused = [part for (account_name, flag), part in _NOT_WITH.items() if account_name == name and has_flag(flag)]
    needs = ((right, _ONLY_WITH.get((name, right.resource))) for right in granted)
    return frozenset(
        right
        for right, argument in needs
        if (argument is None or has_flag(argument)) and not any(part in right.resource for part in unused)
    )


def _accounts(binding: Json, namespace: str) -> list[str]:
    subjects = items(binding, "subjects")
    return [f"{_moved(text(subject, 'namespace'), namespace)}:{text(subject, 'name')}" for subject in subjects]


def _moved(shipped: str, namespace: str) -> str:
    # The chart can be installed in any namespace; the manifests contain a fixed one.
    return namespace if shipped == SHIPPED_NAMESPACE else shipped


def _granted(binding: Json, roles: Mapping[tuple[str, str], Json], namespace: str) -> list[Right]:
    reference = child(binding, "roleRef")
    # A RoleBinding grants a ClusterRole only in its own namespace.
    where = "" if text(binding, "kind") == "ClusterRoleBinding" else name_of(binding).namespace
    role = roles.get((text(reference, "kind"), text(reference, "name")))
    # A role of Kubernetes itself is not in our manifests.
    if role is None:
        return list(BORROWED.get(text(reference, "name"), ()))
    return [right for rule in items(role, "rules") for right in _rights(rule, _moved(where, namespace))]


def _rights(rule: Json, namespace: str) -> list[Right]:
    return [
        Right(verb, group, resource, namespace, name)
        for group in texts_at(rule, "apiGroups")
        for resource in texts_at(rule, "resources")
        for verb in texts_at(rule, "verbs")
        # A rule without resourceNames applies to all objects.
        for name in (texts_at(rule, "resourceNames") or [""])
    ]
