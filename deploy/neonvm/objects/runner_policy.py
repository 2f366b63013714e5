"""The NetworkPolicy for the ports of runner pods, and in which namespaces the controller maintains it (pure).

NetworkPolicies are additive: a pod accepts everything that one of its policies allows. So ours, which allows the
guest's ports to everyone, would weaken another policy for the same pods. It is maintained only if there is no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

from deploy.neonvm.addressing import MIGRATION_PORT, MONITOR_PORT, QMP_PORT, RUNNER_PORT
from deploy.neonvm.objects.pods import pod_labels
from protocol.kubernetes.objects import Json, JsonObject, child, is_large_selector, labels_of, name_of, selects
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
NAMESPACED_POLICIES: Final = (
    Resource("cilium.io", "v2", "ciliumnetworkpolicies", "CiliumNetworkPolicy"),
    Resource("crd.projectcalico.org", "v1", "networkpolicies", "NetworkPolicy"),
    Resource("crd.antrea.io", "v1beta1", "networkpolicies", "NetworkPolicy"),
)
CLUSTER_POLICIES: Final = (
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
"""Kinds of policies that a NetworkPolicy can override; which pods they select is not evaluated."""

_RUNNERS: Final[Json] = {"matchExpressions": [{"key": LABEL_VM_NAME, "operator": "Exists"}]}
_PROTECTED_PORTS: Final = sorted((MONITOR_PORT, QMP_PORT, MIGRATION_PORT, RUNNER_PORT))


class PolicyAction(Enum):
    """A change to the policy of one namespace."""

    CREATE = "create"
    RESTORE = "restore"
    DELETE = "delete"


def policy_spec(own_namespace: str) -> Json:
    """The policy's spec, equal to the chart's template. ``own_namespace`` is the namespace of controller and agents."""
    return {
        "podSelector": _RUNNERS,
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [_program(own_namespace, CONTROLLER)], "ports": [_tcp(QMP_PORT), _tcp(RUNNER_PORT)]},
            {
                "from": [_program(own_namespace, "autoscaling-agent")],
                "ports": [_tcp(MONITOR_PORT), _tcp(RUNNER_PORT)],
            },
            # Guests are migrated between runner pods of one namespace.
            {"from": [{"podSelector": _RUNNERS}], "ports": [_tcp(MIGRATION_PORT)]},
            # The ports of guests and agents stay open, as without a policy.
            {"ports": [*_other_ports(), {"protocol": "UDP", "port": 1, "endPort": 65535}]},
        ],
    }


def new_policy(own_namespace: str) -> Json:
    """The policy to create."""
    metadata: Json = {"name": NAME, "labels": dict(LABELS)}
    return {
        "apiVersion": NETWORK_POLICIES.api_version,
        "kind": NETWORK_POLICIES.kind,
        "metadata": metadata,
        "spec": policy_spec(own_namespace),
    }


def restoring_patch(own_namespace: str) -> Json:
    """A merge patch that restores the spec of our policy and removes additions."""
    # A merge patch keeps fields that it does not mention, so remove additions with null.
    return {"spec": {**policy_spec(own_namespace), "podSelector": {**_RUNNERS, "matchLabels": None}, "egress": None}}


def policy_action(
    own_namespace: str,
    vms: Sequence[JsonObject],
    policies: Iterable[JsonObject],
    others: bool,
    pods: Sequence[JsonObject] = (),
) -> PolicyAction | None:
    """The action needed in a namespace with these VMs, NetworkPolicies and ``pods`` of VMs; None if none. ``others``:
    policies of other kinds may select its pods.
    """
    # A pod has its VM's labels from when it was created, and those added by users and webhooks.
    labels = [*map(pod_labels, vms), *map(labels_of, pods)]
    # The policies are iterated several times below.
    policy_list = list(policies)
    own = next((policy for policy in policy_list if is_ours(policy)), None)
    # A user has created a policy of this name, or removed our label: it is theirs.
    is_name_taken = own is None and any(name_of(policy).name == NAME for policy in policy_list)
    rest = [policy for policy in policy_list if policy is not own]
    must_yield = (
        others or is_name_taken or any(selects_ingress(policy, pod_labels) for policy in rest for pod_labels in labels)
    )
    if own is None:
        return PolicyAction.CREATE if vms and not must_yield else None
    if not vms or must_yield:
        return PolicyAction.DELETE
    return PolicyAction.RESTORE if own.get("spec") != policy_spec(own_namespace) else None


def is_ours(policy: JsonObject) -> bool:
    """Return True if the controller created the policy and its label was not removed."""
    return name_of(policy).name == NAME and labels_of(policy).get(MANAGED_BY) == CONTROLLER


def relevant_fields(policy: JsonObject) -> Json:
    """The fields of a NetworkPolicy that ``policy_action`` reads: all of ours, and only the selection of others."""
    if is_ours(policy):
        return dict(policy)
    spec = child(policy, "spec")
    # The rules of other policies are not needed, and can be large.
    selection: Json = {key: spec[key] for key in ("podSelector", "policyTypes") if key in spec}
    if is_large_selector(child(spec, "podSelector")):
        # Comparing it with all pods takes too long. Assume that it selects all.
        selection["podSelector"] = {}
    return {"metadata": {"name": name_of(policy).name}, "spec": selection}


def selects_ingress(policy: JsonObject, labels: Mapping[str, str]) -> bool:
    """Return True if a NetworkPolicy restricts ingress to pods with these labels in its namespace."""
    selector = child(policy, "spec", "podSelector")
    # The default for policyTypes always includes Ingress.
    types = child(policy, "spec").get("policyTypes") or ["Ingress"]
    # An empty selector selects all pods of the namespace.
    return isinstance(types, list) and "Ingress" in types and (not any(selector.values()) or selects(selector, labels))


def _program(own_namespace: str, name: str) -> Json:
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": own_namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": name}},
    }


def _other_ports() -> list[Json]:
    """All ports except the protected ones: the ports of the guest and its agent."""
    # NetworkPolicies can only allow, so list the ranges between the protected ports.
    starts, ends = [1, *(port + 1 for port in _PROTECTED_PORTS)], [*(port - 1 for port in _PROTECTED_PORTS), 65535]
    return [{**_tcp(first), "endPort": last} for first, last in zip(starts, ends, strict=True)]


def _tcp(port: int) -> Json:
    return {"protocol": "TCP", "port": port}
