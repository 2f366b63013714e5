"""What the scheduler tries, whose account its kube-scheduler has too."""

from __future__ import annotations

from typing import Any, Final

from protocol.kubernetes.resources import (
    ENDPOINT_SLICES,
    LEASES,
    MIGRATIONS,
    NODES,
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
OWN_SLICE: Final = "autoscaling-scheduler-extender"


def slice_for(name: str, service: str = "", namespace: str = SYSTEM) -> dict[str, Any]:
    """A slice that leads clients of a Service, of that of its own name if no other is given, to one address."""
    made = named(ENDPOINT_SLICES, name, namespace, addressType="IPv4", endpoints=[{"addresses": ["10.0.0.9"]}])
    made["metadata"]["labels"] = {"kubernetes.io/service-name": service or name}
    return made


OF_US: Final = move("to-b", "autoscale-scheduler")
BY_SCHEDULER: Final = (
    *patches(VIRTUAL_MACHINES, "theirs", SCHEDULER, {
        "stores a permit": (noted("autoscaling.neon.tech/permit", '{"vCPUs":2,"mem":"4Gi"}'), ""),
        "resizes a VM": (use(2, 2), _VMS),
        "writes other annotations of a VM": (noted("autoscaling.neon.tech/bounds"), _VMS),
        "writes labels of a VM": ({"metadata": {"labels": {"a": "b"}}}, _VMS),
        "changes who owns a VM": ({"metadata": {"ownerReferences": owner(VM_GROUPS, "x")}}, _VMS),
    }),
    Attempt(SCHEDULER, "deletes a VM", RBAC, "delete", VIRTUAL_MACHINES, "theirs"),
    *patches(
        VIRTUAL_MACHINES, "theirs", SCHEDULER,
        {"says in the status where a VM runs": ({"status": {"node": "node-a"}}, RBAC)}, subresource="status",
    ),
    Attempt(SCHEDULER, "orders a move", "", "create", MIGRATIONS, "to-b", OF_US),
    Attempt(SCHEDULER, "orders a move in another's name", _VMS, "create", MIGRATIONS, "x", move("x", "a-person")),
    Attempt(
        SCHEDULER, "orders a move that copies memory after it", _VMS, "create", MIGRATIONS, "y",
        changed(move("y", "autoscale-scheduler"), {"spec": {"allowPostCopy": True}}),
    ),
    Attempt(SCHEDULER, "ends a move of its own", "", "delete", MIGRATIONS, "by-us"),
    Attempt(SCHEDULER, "ends a person's move", _VMS, "delete", MIGRATIONS, "by-hand"),
    *patches(NODES, "node-a", SCHEDULER, {
        "wakes the pods that wait for a node": (noted("autoscaling.neon.tech/room-freed"), ""),
        "writes other annotations of a node": (noted("volumes.kubernetes.io/controller-managed-attach-detach"), _NODES),
        "taints a node": ({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}, _NODES),
        "labels a node": ({"metadata": {"labels": {"zone": "b"}}}, _NODES),
        "cordons a node": ({"spec": {"unschedulable": True}}, _NODES),
    }),
    Attempt(SCHEDULER, "binds a pod", "", "create", PODS, "ours", binding_of("ours"), subresource="binding"),
    Attempt(
        SCHEDULER, "annotates a pod by binding it", _PODS, "create", PODS, "waiting",
        binding_of("waiting", annotations={"a": "b"}), subresource="binding",
    ),
    Attempt(
        SCHEDULER, "binds a pod of the cluster's own", _PODS, "create", PODS, "unplaced", binding_of("unplaced"),
        namespace=SYSTEM, subresource="binding",
    ),
    Attempt(
        SCHEDULER, "binds a pod of a namespace that is closed to it", _PODS, "create", PODS, "vault-1",
        binding_of("vault-1"), namespace=CLOSED, subresource="binding",
    ),
    Attempt(SCHEDULER, "binds by the old way", _PODS, "create", BINDINGS, "waiting", binding_of("waiting")),
    *patches(
        PODS, "waiting", SCHEDULER,
        {"says that another scheduler's pod is placed": (condition("PodScheduled"), _PODS)}, subresource="status",
    ),
    *patches(
        PODS, "web-1", SCHEDULER,
        {"says that a pod is ready": (condition("Ready"), _PODS),
         "gives a pod another address": ({"status": {"podIP": "10.0.0.9"}}, _PODS),
         "says that a pod is displaced": (condition("DisruptionTarget"), "")}, subresource="status",
    ),
    Attempt(SCHEDULER, "displaces a pod of lower priority", "", "delete", PODS, "web-1"),
    Attempt(SCHEDULER, "deletes a pod that has no node", _PODS, "delete", PODS, "waiting"),
    Attempt(SCHEDULER, "deletes a pod of the cluster's own", _PODS, "delete", PODS, "dns", namespace=SYSTEM),
    Attempt(
        SCHEDULER, "deletes a pod of a namespace that is closed to it", _PODS, "delete", PODS, "vault-0",
        namespace=CLOSED,
    ),
    *patches(
        PODS, "theirs-1", SCHEDULER,
        {"raises what the pod of a VM requests": (resources(runner(THEIRS), GUEST, requests=MORE), ""),
         "limits the guest's memory": (resources(runner(THEIRS), GUEST, limits=MORE), _PODS)}, subresource="resize",
    ),
    *patches(
        PODS, "moved-2", SCHEDULER,
        {"resizes a container beside the guest's": (resources(beside(MOVED), "proxy", requests=MORE), _PODS)},
        subresource="resize",
    ),
    *patches(
        PODS, "web-2", SCHEDULER,
        {"resizes a pod of no VM whose container is called like a guest's": (
            {"spec": {"containers": [{**CALLED_RUNNER, "resources": {"requests": MORE}}]}}, _PODS,
        )}, subresource="resize",
    ),
    *patches(PODS, "theirs-1", SCHEDULER, {"labels the pod of a VM": ({"metadata": {"labels": {"a": "b"}}}, RBAC)}),
    Attempt(SCHEDULER, "makes a pod", RBAC, "create", PODS, "x", pod("x")),
    Attempt(
        SCHEDULER, "makes the EndpointSlice of a Service of its own", "", "create", ENDPOINT_SLICES, OWN_SLICE,
        slice_for(OWN_SLICE), namespace=SYSTEM,
    ),
    Attempt(
        SCHEDULER, "redirects clients of another Service to itself", "policy autoscaling-scheduler-endpoints", "create",
        ENDPOINT_SLICES, "kube-dns-1", slice_for("kube-dns-1", "kube-dns"), namespace=SYSTEM,
    ),
    Attempt(
        SCHEDULER, "makes an EndpointSlice in another namespace", RBAC, "create", ENDPOINT_SLICES, OWN_SLICE,
        slice_for(OWN_SLICE, namespace="default"),
    ),
    Attempt(SCHEDULER, "reads secrets", RBAC, "get", SECRETS, ""),
    *patches(PERSISTENT_VOLUME_CLAIMS, "data", SCHEDULER, {
        "chooses where a volume is made": (noted("volume.kubernetes.io/selected-node", "node-b"), ""),
        "labels a volume's claim": ({"metadata": {"labels": {"a": "b"}}}, "policy autoscaling-scheduler-volumes"),
    }),
    Attempt(
        SCHEDULER, "makes a claim on devices for a pod", "", "create", RESOURCE_CLAIMS, "web-2-gpu",
        device_claim("web-2-gpu", "web-2"),
    ),
    Attempt(
        SCHEDULER, "makes a claim on devices of no pod", _CLAIMS, "create", RESOURCE_CLAIMS, "x", device_claim("x"),
    ),
    Attempt(SCHEDULER, "ends the claim of a pod", "", "delete", RESOURCE_CLAIMS, "web-1-gpu"),
    Attempt(SCHEDULER, "ends a person's claim", _CLAIMS, "delete", RESOURCE_CLAIMS, "gpus"),
    *patches(RESOURCE_CLAIMS, "gpus", SCHEDULER, {
        "holds a claim while it is in use": (
            {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}, "",
        ),
        "labels a claim": ({"metadata": {"labels": {"a": "b"}}}, _CLAIMS),
        "gives a claim another owner": ({"metadata": {"ownerReferences": owner(PODS, "web-2")}}, _CLAIMS),
    }),
    Attempt(
        SCHEDULER, "takes the Lease of the cluster's scheduler", "policy autoscaling-leases", "update", LEASES,
        "kube-scheduler", named(LEASES, "kube-scheduler", SYSTEM, {"holderIdentity": "me"}), namespace=SYSTEM,
    ),
    Attempt(
        SCHEDULER, "makes the Lease of another program", "policy autoscaling-leases", "create", LEASES,
        "autoscale-groups", named(LEASES, "autoscale-groups", SYSTEM, {}), namespace=SYSTEM,
    ),
)  # fmt: skip
