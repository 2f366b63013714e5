"""Actions of users and of other projects' programs; only the policy on permits applies to them."""

from __future__ import annotations

from typing import Final

from protocol.kubernetes.resources import MIGRATIONS, NODES, PODS, VIRTUAL_MACHINES
from tests.kubernetes.attacks.attempt import RBAC, Attempt, noted, patches, use
from tests.kubernetes.attacks.world import ADMIN, OPERATOR, TENANT, Obj, move, pod, vm

_PERMITS: Final = "policy autoscaling-permit-writers"
_PERMIT: Final = "autoscaling.neon.tech/permit"
_WRITER: Final = "autoscaling.neon.tech/permit-writer"
_MUCH: Final = '{"vCPUs":1000,"mem":"1Ti"}'


def _taking(name: str, resource: str) -> Obj:
    made = pod(name)
    made["spec"]["containers"][0]["resources"] = {"limits": {resource: "1000"}, "requests": {resource: "1000"}}
    return made


BY_OTHERS: Final = (
    *patches(VIRTUAL_MACHINES, "mine", TENANT, {
        "resizes a VM": (use(2, 2), ""),
        "raises a VM's maximum": ({"spec": {"guest": {"cpus": {"max": 9}}}}, ""),
        "writes a permit": (noted(_PERMIT, _MUCH), _PERMITS),
        "writes the permit-writer annotation": (noted(_WRITER), _PERMITS),
        "removes a permit": (noted(_PERMIT, None), ""),
    }),
    *patches(
        VIRTUAL_MACHINES, "mine", TENANT,
        {"writes a VM's node into its status": ({"status": {"node": "node-b"}}, RBAC)}, subresource="status",
    ),
    Attempt(
        OPERATOR, "requests flat-network units of a node", "policy neonvm-places", "create", PODS, "of-other",
        _taking("of-other", "autoscaling.neon.tech/flat-network"),
    ),
    Attempt(
        OPERATOR, "requests another resource", "", "create", PODS, "of-other-2",
        _taking("of-other-2", "example.com/gpu"),
    ),
    Attempt(TENANT, "creates a VM", "", "create", VIRTUAL_MACHINES, "new", vm("new", "", "")),
    Attempt(TENANT, "creates a migration", "", "create", MIGRATIONS, "of-tenant", move("of-tenant")),
    Attempt(
        TENANT, "creates a migration in the scheduler's name", _PERMITS, "create", MIGRATIONS, "posing",
        move("posing", "autoscale-scheduler"),
    ),
    *patches(MIGRATIONS, "by-hand", TENANT, {
        "labels a migration as the scheduler's": (
            {"metadata": {"labels": {"autoscaling.neon.tech/created-by": "autoscale-scheduler"}}}, _PERMITS,
        ),
    }),
    Attempt(TENANT, "creates a pod", RBAC, "create", PODS, "of-tenant", pod("of-tenant")),
    *patches(VIRTUAL_MACHINES, "theirs", ADMIN, {
        "resizes a VM beyond its permit": (use(4, 4), ""),
        "changes its bounds and labels": (
            {"metadata": {"labels": {"a": "b"}, "annotations": {"autoscaling.neon.tech/bounds": None}}}, ""
        ),
    }),
    *patches(VIRTUAL_MACHINES, "theirs", OPERATOR, {
        "changes the maximum of a VM": (use(1, 2), ""),
        "writes a permit": (noted(_PERMIT, _MUCH), _PERMITS),
    }),
    *patches(NODES, "node-b", OPERATOR, {"labels a node": ({"metadata": {"labels": {"a": "b"}}}, "")}),
    Attempt(OPERATOR, "creates a pod", "", "create", PODS, "of-operator", pod("of-operator")),
    Attempt(OPERATOR, "deletes a pod", "", "delete", PODS, "web-2"),
    Attempt(ADMIN, "deletes a VM", "", "delete", VIRTUAL_MACHINES, "asleep"),
)  # fmt: skip
