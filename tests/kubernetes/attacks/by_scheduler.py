"""Attempts of the scheduler, whose account its kube-scheduler shares."""

from __future__ import annotations

from typing import Any, Final

from protocol.kubernetes.resources import (
    ENDPOINT_SLICES,
    LEASES,
    MIGRATIONS,
    NODES,
    PERSISTENT_VOLUMES,
    PODS,
    VIRTUAL_MACHINES,
    VM_GROUPS,
)
from tests.kubernetes.attacks.attempt import (
    BINDINGS,
    RBAC,
    Attempt,
    binding_of,
    changed,
    condition,
    noted,
    patches,
    resources,
    use,
)
from tests.kubernetes.attacks.world import (
    CALLED_RUNNER,
    CLOSED,
    GUEST,
    MORE,
    MOVED,
    PERSISTENT_VOLUME_CLAIMS,
    RESOURCE_CLAIMS,
    SCHEDULER,
    SECRETS,
    SYSTEM,
    THEIRS,
    beside,
    claimed_by,
    device_claim,
    move,
    named,
    owner,
    pod,
    runner,
)

_VMS: Final = "policy autoscaling-scheduler-vms"
_NODES: Final = "policy autoscaling-scheduler-nodes"
_PODS: Final = "policy autoscaling-scheduler-pods"
_CLAIMS: Final = "policy autoscaling-scheduler-claims"
_VOLUMES: Final = "policy autoscaling-scheduler-volumes"
OWN_SLICE: Final = "autoscaling-scheduler-extender"


def slice_for(name: str, service: str = "", namespace: str = SYSTEM) -> dict[str, Any]:
    """An EndpointSlice that routes clients of a Service, by default that of its own name, to one address."""
    made = named(ENDPOINT_SLICES, name, namespace, addressType="IPv4", endpoints=[{"addresses": ["10.0.0.9"]}])
    made["metadata"]["labels"] = {"kubernetes.io/service-name": service or name}
    return made


CLAIMED_BY_DATA: Final[dict[str, Any]] = {"spec": {"claimRef": claimed_by("data")}}
OF_US: Final = move("to-b", "autoscale-scheduler")
BY_SCHEDULER: Final = (
    *patches(VIRTUAL_MACHINES, "theirs", SCHEDULER, {
        "stores a permit": (noted("autoscaling.neon.tech/permit", '{"vCPUs":2,"mem":"4Gi"}'), ""),
        "resizes a VM": (use(2, 2), _VMS),
        "writes other annotations of a VM": (noted("autoscaling.neon.tech/bounds"), _VMS),
        "labels a VM": ({"metadata": {"labels": {"a": "b"}}}, _VMS),
        "changes a VM's owner": ({"metadata": {"ownerReferences": owner(VM_GROUPS, "x")}}, _VMS),
    }),
    Attempt(SCHEDULER, "deletes a VM", RBAC, "delete", VIRTUAL_MACHINES, "theirs"),
    *patches(
        VIRTUAL_MACHINES, "theirs", SCHEDULER,
        {"writes a VM's node into its status": ({"status": {"node": "node-a"}}, RBAC)}, subresource="status",
    ),
    Attempt(SCHEDULER, "creates a migration", "", "create", MIGRATIONS, "to-b", OF_US),
    Attempt(SCHEDULER, "creates a migration in another's name", _VMS, "create", MIGRATIONS, "x", move("x", "a-person")),
    Attempt(
        SCHEDULER, "creates a migration with post-copy", _VMS, "create", MIGRATIONS, "y",
        changed(move("y", "autoscale-scheduler"), {"spec": {"allowPostCopy": True}}),
    ),
    Attempt(SCHEDULER, "deletes a migration of its own", "", "delete", MIGRATIONS, "by-us"),
    Attempt(SCHEDULER, "deletes a user's migration", _VMS, "delete", MIGRATIONS, "by-hand"),
    *patches(NODES, "node-a", SCHEDULER, {
        "has pending pods retried through a node's annotation": (noted("autoscaling.neon.tech/room-freed"), ""),
        "writes other annotations of a node": (noted("volumes.kubernetes.io/controller-managed-attach-detach"), _NODES),
        "taints a node": ({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}, _NODES),
        "labels a node": ({"metadata": {"labels": {"zone": "b"}}}, _NODES),
        "cordons a node": ({"spec": {"unschedulable": True}}, _NODES),
    }),
    Attempt(SCHEDULER, "binds a pod", "", "create", PODS, "ours", binding_of("ours"), subresource="binding"),
    Attempt(
        SCHEDULER, "annotates a pod through its binding", _PODS, "create", PODS, "waiting",
        binding_of("waiting", annotations={"a": "b"}), subresource="binding",
    ),
    Attempt(
        SCHEDULER, "binds a pod in kube-system", _PODS, "create", PODS, "unplaced", binding_of("unplaced"),
        namespace=SYSTEM, subresource="binding",
    ),
    Attempt(
        SCHEDULER, "binds a pod in a namespace that is closed to it", _PODS, "create", PODS, "vault-1",
        binding_of("vault-1"), namespace=CLOSED, subresource="binding",
    ),
    Attempt(SCHEDULER, "binds through the deprecated API", _PODS, "create", BINDINGS, "waiting", binding_of("waiting")),
    *patches(
        PODS, "waiting", SCHEDULER,
        {"sets PodScheduled of another scheduler's pod": (condition("PodScheduled"), _PODS)}, subresource="status",
    ),
    *patches(
        PODS, "web-1", SCHEDULER,
        {"sets a pod's Ready condition": (condition("Ready"), _PODS),
         "changes a pod's address": ({"status": {"podIP": "10.0.0.9"}}, _PODS),
         "labels a pod through its status": ({"metadata": {"labels": {"a": "b"}}}, _PODS),
         "sets a pod's DisruptionTarget condition": (condition("DisruptionTarget"), "")}, subresource="status",
    ),
    Attempt(SCHEDULER, "preempts a pod of lower priority", "", "delete", PODS, "web-1"),
    Attempt(SCHEDULER, "deletes a pod without a node", _PODS, "delete", PODS, "waiting"),
    Attempt(SCHEDULER, "deletes a pod in kube-system", _PODS, "delete", PODS, "dns", namespace=SYSTEM),
    Attempt(
        SCHEDULER, "deletes a pod in a namespace that is closed to it", _PODS, "delete", PODS, "vault-0",
        namespace=CLOSED,
    ),
    *patches(
        PODS, "theirs-1", SCHEDULER,
        {"raises the requests of a VM's pod": (resources(runner(THEIRS), GUEST, requests=MORE), ""),
         "sets a memory limit on the guest's container": (resources(runner(THEIRS), GUEST, limits=MORE), _PODS)},
        subresource="resize",
    ),
    *patches(
        PODS, "moved-2", SCHEDULER,
        {"resizes another container than the guest's": (resources(beside(MOVED), "proxy", requests=MORE), _PODS)},
        subresource="resize",
    ),
    *patches(
        PODS, "web-2", SCHEDULER,
        {"resizes a pod without a VM that has a container neonvm-runner": (
            {"spec": {"containers": [{**CALLED_RUNNER, "resources": {"requests": MORE}}]}}, _PODS,
        )}, subresource="resize",
    ),
    *patches(PODS, "theirs-1", SCHEDULER, {"labels a VM's pod": ({"metadata": {"labels": {"a": "b"}}}, RBAC)}),
    Attempt(SCHEDULER, "creates a pod", RBAC, "create", PODS, "x", pod("x")),
    Attempt(
        SCHEDULER, "creates the EndpointSlice of its own Service", "", "create", ENDPOINT_SLICES, OWN_SLICE,
        slice_for(OWN_SLICE), namespace=SYSTEM,
    ),
    Attempt(
        SCHEDULER, "redirects another Service's clients to itself", "policy autoscaling-scheduler-endpoints", "create",
        ENDPOINT_SLICES, "kube-dns-1", slice_for("kube-dns-1", "kube-dns"), namespace=SYSTEM,
    ),
    Attempt(
        SCHEDULER, "creates an EndpointSlice in another namespace", RBAC, "create", ENDPOINT_SLICES, OWN_SLICE,
        slice_for(OWN_SLICE, namespace="default"),
    ),
    Attempt(SCHEDULER, "reads secrets", RBAC, "get", SECRETS, ""),
    *patches(PERSISTENT_VOLUME_CLAIMS, "data", SCHEDULER, {
        "selects the node for a volume": (noted("volume.kubernetes.io/selected-node", "node-b"), ""),
        "labels a volume claim": ({"metadata": {"labels": {"a": "b"}}}, _VOLUMES),
    }),
    *patches(PERSISTENT_VOLUMES, "free", SCHEDULER, {"binds a free volume to a claim": (CLAIMED_BY_DATA, "")}),
    *patches(
        PERSISTENT_VOLUMES, "bound", SCHEDULER, {"binds another claim's volume to a claim": (CLAIMED_BY_DATA, _VOLUMES)}
    ),
    Attempt(
        SCHEDULER, "creates a ResourceClaim for a pod", "", "create", RESOURCE_CLAIMS, "web-2-gpu",
        device_claim("web-2-gpu", "web-2"),
    ),
    Attempt(
        SCHEDULER, "creates a ResourceClaim without a pod", _CLAIMS, "create", RESOURCE_CLAIMS, "x", device_claim("x"),
    ),
    Attempt(SCHEDULER, "deletes a pod's ResourceClaim", "", "delete", RESOURCE_CLAIMS, "web-1-gpu"),
    Attempt(SCHEDULER, "deletes a user's ResourceClaim", _CLAIMS, "delete", RESOURCE_CLAIMS, "gpus"),
    *patches(RESOURCE_CLAIMS, "gpus", SCHEDULER, {
        "adds a finalizer to a ResourceClaim in use": (
            {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}, "",
        ),
        "labels a ResourceClaim": ({"metadata": {"labels": {"a": "b"}}}, _CLAIMS),
        "changes the owner of a ResourceClaim": ({"metadata": {"ownerReferences": owner(PODS, "web-2")}}, _CLAIMS),
    }),
    Attempt(
        SCHEDULER, "takes over the Lease of the cluster's scheduler", "policy autoscaling-leases", "update", LEASES,
        "kube-scheduler", named(LEASES, "kube-scheduler", SYSTEM, {"holderIdentity": "me"}), namespace=SYSTEM,
    ),
    Attempt(
        SCHEDULER, "creates the Lease of another program", "policy autoscaling-leases", "create", LEASES,
        "autoscale-groups", named(LEASES, "autoscale-groups", SYSTEM, {}), namespace=SYSTEM,
    ),
)  # fmt: skip
