"""Attempts of the groups program."""

from __future__ import annotations

from typing import Any, Final

from protocol.kubernetes.resources import (
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    HORIZONTAL_AUTOSCALERS,
    PODS,
    SERVICES,
    VIRTUAL_MACHINES,
    VM_GROUPS,
)
from tests.kubernetes.attacks.attempt import RBAC, Attempt, changed, noted, patches, resources, use
from tests.kubernetes.attacks.world import (
    CALLED_RUNNER,
    GROUPS,
    GUEST,
    MINE,
    MORE,
    SECRETS,
    Obj,
    deployment,
    named,
    owner,
    runner,
    vm,
)

_GROUP_VMS: Final = "policy autoscaling-groups-vms"
_ENDPOINTS: Final = "policy autoscaling-groups-endpoints"
_WORKLOADS: Final = "policy autoscaling-groups-workloads"
_SHOP: Final = owner(VM_GROUPS, "shop")


def _service(name: str, **spec: Any) -> Obj:
    found = named(SERVICES, name, spec={"clusterIP": "None", "ports": [{"port": 5432}], **spec})
    return changed(found, {"metadata": {"ownerReferences": _SHOP}})


def _new(name: str, **metadata: Any) -> Obj:
    found = changed(vm(name, "", "", **metadata), {"metadata": {"annotations": None}})
    return {key: value for key, value in found.items() if key != "status"}


_LARGER: Final = {"spec": {"containers": [{**CALLED_RUNNER, "resources": {"requests": MORE}}]}}
BY_GROUPS: Final = (
    Attempt(
        GROUPS, "creates a member of a group", "", "create", VIRTUAL_MACHINES, "shop-replica-1",
        _new("shop-replica-1", ownerReferences=_SHOP),
    ),
    Attempt(GROUPS, "creates a VM outside of groups", _GROUP_VMS, "create", VIRTUAL_MACHINES, "x", _new("x")),
    Attempt(
        GROUPS, "creates a member with a permit", _GROUP_VMS, "create", VIRTUAL_MACHINES, "shop-replica-2",
        vm("shop-replica-2", "", "", ownerReferences=_SHOP),
    ),
    Attempt(GROUPS, "deletes a member of a group", "", "delete", VIRTUAL_MACHINES, "shop-replica-0"),
    Attempt(GROUPS, "deletes a VM outside of groups", _GROUP_VMS, "delete", VIRTUAL_MACHINES, "theirs"),
    *patches(VIRTUAL_MACHINES, "theirs", GROUPS, {
        "sets the bounds of a VM": (noted("autoscaling.neon.tech/bounds"), ""),
        "resizes a VM": (use(2, 2), _GROUP_VMS),
        "writes a permit": (noted("autoscaling.neon.tech/permit"), _GROUP_VMS),
    }),
    *patches(
        PODS, "web-2", GROUPS,
        {"resizes a pod in place": (_LARGER, "")},
        subresource="resize",
    ),
    *patches(
        PODS, "mine-1", GROUPS,
        {"resizes a VM's pod": (resources(runner(MINE), GUEST, requests=MORE), "policy autoscaling-groups-pods")},
        subresource="resize",
    ),
    *patches(DEPLOYMENTS, "web", GROUPS, {
        "sets a workload's requests": (deployment(cpu="200m"), ""),
        "changes a workload's image": (deployment(image="evil"), _WORKLOADS),
        "changes a workload's account": ({"spec": {"template": {"spec": {"serviceAccountName": "x"}}}}, _WORKLOADS),
    }),
    Attempt(GROUPS, "creates the read endpoint of a group", "", "create", SERVICES, "shop-read", _service("shop-read")),
    Attempt(
        GROUPS, "creates another Service", _ENDPOINTS, "create", SERVICES, "bank",
        _service("bank", selector={"app": "web"}),
    ),
    *patches(ENDPOINT_SLICES, "bank", GROUPS, {
        "redirects another Service's clients": ({"endpoints": [{"addresses": ["10.0.0.6"]}]}, _ENDPOINTS),
    }),
    Attempt(
        GROUPS, "deletes a user's HPA", "policy autoscaling-groups-autoscalers", "delete", HORIZONTAL_AUTOSCALERS,
        "theirs",
    ),
    Attempt(GROUPS, "deletes a pod", RBAC, "delete", PODS, "web-2"),
    Attempt(GROUPS, "reads secrets", RBAC, "get", SECRETS, ""),
)  # fmt: skip
