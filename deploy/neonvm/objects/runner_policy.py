"""The NetworkPolicy around the ports of runner pods, and where the controller keeps one (pure).

NetworkPolicies only add up: one that selects a pod closes what none of them opens. Beside another policy for the same
pods, ours would open to everybody what that one keeps closed, so it is kept only if there is no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

from deploy.neonvm.addressing import MIGRATION_PORT, MONITOR_PORT, QMP_PORT, RUNNER_PORT
from deploy.neonvm.objects.pods import pod_labels
from protocol.kubernetes.objects import Json, JsonObject, child, labels_of, name_of, selects
from protocol.kubernetes.resources import NETWORK_POLICIES, Resource
from protocol.names import LABEL_VM_NAME

NAME: Final = "neonvm-runners"
CONTROLLER: Final = "neonvm-controller"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABELS: Final = {
    "app.kubernetes.io/name": CONTROLLER,
    "app.kubernetes.io/component": CONTROLLER,
    "app.kubernetes.io/part-of": "autoscaling",
    MANAGED_BY: CONTROLLER,
}
OF_NAMESPACES: Final = (
    Resource("cilium.io", "v2", "ciliumnetworkpolicies", "CiliumNetworkPolicy"),
    Resource("crd.projectcalico.org", "v1", "networkpolicies", "NetworkPolicy"),
    Resource("crd.antrea.io", "v1beta1", "networkpolicies", "NetworkPolicy"),
)
OF_CLUSTERS: Final = (
    Resource("cilium.io", "v2", "ciliumclusterwidenetworkpolicies", "CiliumClusterwideNetworkPolicy", namespaced=False),
    Resource("crd.projectcalico.org", "v1", "globalnetworkpolicies", "GlobalNetworkPolicy", namespaced=False),
    Resource(
        "policy.networking.k8s.io",
        "v1alpha1",
        "baselineadminnetworkpolicies",
        "BaselineAdminNetworkPolicy",
        namespaced=False,
    ),
    Resource(
        "policy.networking.k8s.io", "v1alpha2", "clusternetworkpolicies", "ClusterNetworkPolicy", namespaced=False
    ),  # the successor of the one above
    Resource("crd.antrea.io", "v1beta1", "clusternetworkpolicies", "ClusterNetworkPolicy", namespaced=False),
)
"""Other kinds of policies that an allowing NetworkPolicy can override; whom they select is not evaluated."""

_RUNNERS: Final[Json] = {"matchExpressions": [{"key": LABEL_VM_NAME, "operator": "Exists"}]}
_CLOSED: Final = sorted((MONITOR_PORT, QMP_PORT, MIGRATION_PORT, RUNNER_PORT))


class Todo(Enum):
    """A change to the policy of one namespace."""

    CREATE = "create"
    RESTORE = "restore"
    DELETE = "delete"


def policy_spec(home: str) -> Json:
    """The spec of the policy, if the programs run in the namespace ``home``: the chart's template, in other words."""
    return {
        "podSelector": _RUNNERS,
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [_program(home, CONTROLLER)], "ports": [_tcp(QMP_PORT), _tcp(RUNNER_PORT)]},
            {"from": [_program(home, "autoscaling-agent")], "ports": [_tcp(MONITOR_PORT), _tcp(RUNNER_PORT)]},
            # Guests move between runner pods of one namespace.
            {"from": [{"podSelector": _RUNNERS}], "ports": [_tcp(MIGRATION_PORT)]},
            # The ports of guests and agents stay as open as without a policy.
            {"ports": [*_other_ports(), {"protocol": "UDP", "port": 1, "endPort": 65535}]},
        ],
    }


def new_policy(home: str) -> Json:
    """The policy, to be created."""
    metadata: Json = {"name": NAME, "labels": dict(LABELS)}
    return {
        "apiVersion": NETWORK_POLICIES.api_version,
        "kind": NETWORK_POLICIES.kind,
        "metadata": metadata,
        "spec": policy_spec(home),
    }


def restoring_patch(home: str) -> Json:
    """A merge patch that gives a policy of ours its spec back, whatever was added to it."""
    # A merge patch keeps what it does not name, so additions are removed by null.
    return {"spec": {**policy_spec(home), "podSelector": {**_RUNNERS, "matchLabels": None}, "egress": None}}


def policy_todo(
    home: str, vms: Sequence[JsonObject], policies: Iterable[JsonObject], others: bool, pods: Sequence[JsonObject] = ()
) -> Todo | None:
    """The change that a namespace with these VMs, NetworkPolicies and ``pods`` of VMs needs; None if it needs none.
    ``others`` says that policies of other kinds may select its pods.
    """
    # A pod has the labels that its VM had when it was made, and those that people and webhooks gave it.
    labels = [*map(pod_labels, vms), *map(labels_of, pods)]
    # The policies are iterated several times below.
    policy_list = list(policies)
    own = next((policy for policy in policy_list if is_ours(policy)), None)
    # Somebody made a policy of this name, or took our label off: it is theirs.
    is_name_taken = own is None and any(name_of(policy).name == NAME for policy in policy_list)
    rest = [policy for policy in policy_list if policy is not own]
    stands_back = (
        others or is_name_taken or any(selects_ingress(policy, pod_labels) for policy in rest for pod_labels in labels)
    )
    if own is None:
        return Todo.CREATE if vms and not stands_back else None
    if not vms or stands_back:
        return Todo.DELETE
    return Todo.RESTORE if own.get("spec") != policy_spec(home) else None


def is_ours(policy: JsonObject) -> bool:
    """Return True if the controller made the policy and nobody has taken its label off."""
    return name_of(policy).name == NAME and labels_of(policy).get(MANAGED_BY) == CONTROLLER


def deciding_part(policy: JsonObject) -> Json:
    """The part of a NetworkPolicy that ``policy_todo`` reads: all of ours, and whom it selects of another one."""
    if is_ours(policy):
        return dict(policy)
    spec = child(policy, "spec")
    # Rules of other policies can be large, and do not matter here.
    selection: Json = {key: spec[key] for key in ("podSelector", "policyTypes") if key in spec}
    return {"metadata": {"name": name_of(policy).name}, "spec": selection}


def selects_ingress(policy: JsonObject, labels: Mapping[str, str]) -> bool:
    """Return True if a NetworkPolicy decides who reaches pods with these labels in its namespace."""
    selector = child(policy, "spec", "podSelector")
    # A policy without types is for ingress; egress is added only if it has egress rules.
    types = child(policy, "spec").get("policyTypes") or ["Ingress"]
    # An empty selector selects all pods of the namespace.
    return isinstance(types, list) and "Ingress" in types and (not any(selector.values()) or selects(selector, labels))


def _program(home: str, name: str) -> Json:
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": home}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": name}},
    }


def _other_ports() -> list[Json]:
    """All ports but the closed ones: they are the guest's or its agent's, and stay open."""
    # NetworkPolicies can only allow, so the gaps between the closed ports are listed.
    starts, ends = [1, *(port + 1 for port in _CLOSED)], [*(port - 1 for port in _CLOSED), 65535]
    return [{**_tcp(first), "endPort": last} for first, last in zip(starts, ends, strict=True)]


def _tcp(port: int) -> Json:
    return {"protocol": "TCP", "port": port}
