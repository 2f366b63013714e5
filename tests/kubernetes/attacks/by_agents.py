"""What agents try: that of a node, and that beside a VM."""

from __future__ import annotations

from typing import Final

from protocol.kubernetes.resources import EVENTS, MIGRATIONS, PODS, VIRTUAL_MACHINES
from tests.kubernetes.attacks.attempt import RBAC, Attempt, event, noted, patches, resources, use
from tests.kubernetes.attacks.world import (
    ELSEWHERE,
    GUEST,
    LEFT_BEHIND,
    MINE,
    MORE,
    NODE_AGENT,
    SECRETS,
    SIDECAR,
    UNBOUND_AGENT,
    move,
    runner,
)

_AGENTS: Final = "policy autoscaling-agents"
_EVENTS: Final = "policy autoscaling-agents-events"
_PERMITS: Final = "policy autoscaling-permits"
BY_AGENTS: Final = (
    *patches(VIRTUAL_MACHINES, "mine", NODE_AGENT, {
        "resizes a VM of its node within the permit": (use("1500m", 3), ""),
        "shrinks it": (use("500m", 1), ""),
        "gives it more CPU than the permit": (use("2100m", 2), _PERMITS),
        "gives it more memory than the permit": (use(1, 5), _PERMITS),
        "raises its maximum": ({"spec": {"guest": {"cpus": {"max": 64}}}}, _AGENTS),
        "raises its minimum": ({"spec": {"guest": {"cpus": {"min": "300m"}}}}, _AGENTS),
        "changes its image": ({"spec": {"guest": {"rootDisk": {"image": "evil"}}}}, _AGENTS),
        "gives it a script": ({"spec": {"initScript": "sh"}}, _AGENTS),
        "gives it a runner": ({"spec": {"runnerImage": "evil"}}, _AGENTS),
        "writes its permit": (noted("autoscaling.neon.tech/permit", '{"vCPUs":8,"mem":"16Gi"}'), _AGENTS),
        "writes its bounds": (noted("autoscaling.neon.tech/bounds"), _AGENTS),
        "takes its label": ({"metadata": {"labels": None}}, _AGENTS),
        "gives it a finalizer": ({"metadata": {"finalizers": ["a.b/c"]}}, _AGENTS),
    }),
    *patches(VIRTUAL_MACHINES, "theirs", NODE_AGENT, {"resizes a VM of another node": (use(1, 1), _AGENTS)}),
    *patches(VIRTUAL_MACHINES, "asleep", NODE_AGENT, {"resizes a VM that did not opt in": (use(1, 1), _AGENTS)}),
    *patches(VIRTUAL_MACHINES, "mine", UNBOUND_AGENT, {"resizes any VM": (use(1, 1), _AGENTS)}),
    *patches(
        VIRTUAL_MACHINES, "mine", NODE_AGENT,
        {"says in the status where it runs": ({"status": {"node": "node-b"}}, RBAC)}, subresource="status",
    ),
    Attempt(NODE_AGENT, "deletes a VM of its node", RBAC, "delete", VIRTUAL_MACHINES, "mine"),
    Attempt(NODE_AGENT, "deletes a pod of its node", RBAC, "delete", PODS, "mine-1"),
    *patches(
        PODS, "mine-1", NODE_AGENT,
        {"resizes the pod of a VM": (resources(runner(MINE), GUEST, requests=MORE), RBAC)}, subresource="resize",
    ),
    Attempt(NODE_AGENT, "moves a VM of its node", RBAC, "create", MIGRATIONS, "x", move("x")),
    Attempt(NODE_AGENT, "writes an Event about a VM", "", "create", EVENTS, "e", event("VirtualMachine")),
    Attempt(NODE_AGENT, "writes an Event about a pod", _EVENTS, "create", EVENTS, "f", event("Pod")),
    Attempt(NODE_AGENT, "reads secrets", RBAC, "get", SECRETS, ""),
    *patches(VIRTUAL_MACHINES, "mine", SIDECAR, {
        "resizes its VM within the permit": (use("1500m", 3), ""),
        "gives it more CPU than the permit": (use(3, 2), _PERMITS),
        "changes its command": ({"spec": {"guest": {"args": ["sh"]}}}, _AGENTS),
    }),
    *patches(VIRTUAL_MACHINES, "theirs", SIDECAR, {"resizes the VM of another pod": (use(1, 1), _AGENTS)}),
    *patches(VIRTUAL_MACHINES, "moved", LEFT_BEHIND, {"resizes the VM in its new pod": (use(1, 1), _AGENTS)}),
    *patches(
        VIRTUAL_MACHINES, "far", SIDECAR, {"resizes a VM of another namespace": (use(1, 1), RBAC)},
        namespace=ELSEWHERE,
    ),
    Attempt(
        SIDECAR, "writes an Event of the scheduler", _EVENTS, "create", EVENTS, "g",
        event("VirtualMachine", "autoscale-scheduler"),
    ),
    Attempt(SIDECAR, "lists pods", RBAC, "get", PODS, ""),
)  # fmt: skip
