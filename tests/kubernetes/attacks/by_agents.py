"""Attempts of agents: a node's agent and a VM's sidecar."""

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
    PG,
    PG_FREE,
    PG_OF_B,
    PG_UNBOUND,
    SECRETS,
    SIDECAR,
    UNBOUND_AGENT,
    Obj,
    move,
    runner,
)

_SLEEP: Final = "autoscaling.neon.tech/sleep"
_AGENTS: Final = "policy autoscaling-agents"
_EVENTS: Final = "policy autoscaling-agents-events"
_PERMITS: Final = "policy autoscaling-permits"
_PODS: Final = "policy autoscaling-agents-pods"


def _sized(of: Obj, cpu: str, most_cpu: str, mem: str, most_mem: str = "") -> Obj:
    """A patch of requests and limits of postgres in a pod."""
    return resources(
        of,
        "postgres",
        requests={"cpu": cpu, "memory": mem},
        limits={"cpu": most_cpu, "memory": most_mem or mem},
    )


BY_AGENTS: Final = (
    *patches(VIRTUAL_MACHINES, "mine", NODE_AGENT, {
        "resizes a VM of its node within the permit": (use("1500m", 3), ""),
        "shrinks it": (use("500m", 1), ""),
        "raises CPU above the permit": (use("2100m", 2), _PERMITS),
        "raises memory above the permit": (use(1, 5), _PERMITS),
        "raises its maximum": ({"spec": {"guest": {"cpus": {"max": 64}}}}, _AGENTS),
        "raises its minimum": ({"spec": {"guest": {"cpus": {"min": "300m"}}}}, _AGENTS),
        "changes its image": ({"spec": {"guest": {"rootDisk": {"image": "evil"}}}}, _AGENTS),
        "adds an init script": ({"spec": {"initScript": "sh"}}, _AGENTS),
        "sets its runner image": ({"spec": {"runnerImage": "evil"}}, _AGENTS),
        "writes its permit": (noted("autoscaling.neon.tech/permit", '{"vCPUs":8,"mem":"16Gi"}'), _AGENTS),
        "writes its bounds": (noted("autoscaling.neon.tech/bounds"), _AGENTS),
        "orders it to sleep": (noted(_SLEEP, "2026-11-27T02:10:00.000000Z"), ""),
        "orders it to sleep with an arbitrary value": (noted(_SLEEP, "x" * 64), _AGENTS),
        "orders it to sleep and writes its permit": (
            {"metadata": {"annotations": {_SLEEP: "2026-11-27T02:11:00Z", "autoscaling.neon.tech/permit": None}}},
            _AGENTS,
        ),
        "removes its label": ({"metadata": {"labels": None}}, _AGENTS),
        "adds a finalizer": ({"metadata": {"finalizers": ["a.b/c"]}}, _AGENTS),
    }),
    *patches(VIRTUAL_MACHINES, "theirs", NODE_AGENT, {
        "resizes a VM of another node": (use(1, 1), _AGENTS),
        "orders a VM of another node to sleep": (noted(_SLEEP, "2026-11-27T02:10:00Z"), _AGENTS),
    }),
    *patches(VIRTUAL_MACHINES, "asleep", NODE_AGENT, {
        "resizes a VM that did not opt in": (use(1, 1), _AGENTS),
        "orders a VM that did not opt in to sleep": (noted(_SLEEP, "2026-11-27T02:10:00Z"), _AGENTS),
    }),
    *patches(VIRTUAL_MACHINES, "mine", UNBOUND_AGENT, {"resizes any VM": (use(1, 1), _AGENTS)}),
    *patches(
        VIRTUAL_MACHINES, "mine", NODE_AGENT,
        {"writes its node into the status": ({"status": {"node": "node-b"}}, RBAC)}, subresource="status",
    ),
    Attempt(NODE_AGENT, "deletes a VM of its node", RBAC, "delete", VIRTUAL_MACHINES, "mine"),
    Attempt(NODE_AGENT, "deletes a pod of its node", RBAC, "delete", PODS, "mine-1"),
    *patches(
        PODS, "mine-1", NODE_AGENT,
        {"resizes a VM's pod": (resources(runner(MINE), GUEST, requests=MORE), _PODS)}, subresource="resize",
    ),
    *patches(PODS, "pg-1", NODE_AGENT, {
        "resizes a pod of its node within its bounds": (_sized(PG, "4", "4500m", "8Gi"), ""),
        "shrinks it": (_sized(PG, "1", "1500m", "2Gi"), ""),
        "raises CPU above its bounds": (_sized(PG, "4100m", "4600m", "2Gi"), _PODS),
        "raises memory above its bounds": (_sized(PG, "1", "1500m", "9Gi"), _PODS),
        "raises its CPU limit alone": (_sized(PG, "1", "4", "2Gi"), _PODS),
        "lowers its CPU limit alone": (_sized(PG, "1", "1200m", "2Gi"), _PODS),
        "lowers its CPU request alone": (_sized(PG, "500m", "1500m", "2Gi"), _PODS),
        "raises its memory limit beyond its bounds": (_sized(PG, "1", "1500m", "2Gi", "9Gi"), _PODS),
        "resizes another container than postgres": (resources(PG, "proxy", requests=MORE), _PODS),
    }, subresource="resize"),
    *patches(
        PODS, "pg-1", NODE_AGENT, {"writes the bounds of a pod": (noted("autoscaling.neon.tech/bounds"), RBAC)}
    ),
    *patches(PODS, "pg-2", NODE_AGENT, {"resizes a pod of another node": (
        _sized(PG_OF_B, "2", "2500m", "2Gi"), _PODS)}, subresource="resize"),
    *patches(PODS, "pg-3", NODE_AGENT, {"resizes a pod that did not opt in": (
        _sized(PG_FREE, "2", "2500m", "2Gi"), _PODS)}, subresource="resize"),
    *patches(PODS, "pg-4", NODE_AGENT, {
        "grows a pod without bounds": (_sized(PG_UNBOUND, "2", "2500m", "2Gi"), _PODS),
        "shrinks a pod without bounds": (_sized(PG_UNBOUND, "500m", "1", "2Gi"), ""),
    }, subresource="resize"),
    *patches(
        PODS, "pg-1", UNBOUND_AGENT, {"resizes any pod": (_sized(PG, "2", "2500m", "2Gi"), _PODS)}, subresource="resize"
    ),
    Attempt(NODE_AGENT, "migrates a VM of its node", RBAC, "create", MIGRATIONS, "x", move("x")),
    Attempt(NODE_AGENT, "writes an Event about a VM", "", "create", EVENTS, "e", event("VirtualMachine")),
    Attempt(NODE_AGENT, "writes an Event about a pod", "", "create", EVENTS, "f", event("Pod")),
    Attempt(NODE_AGENT, "writes an Event about a node", _EVENTS, "create", EVENTS, "h", event("Node")),
    Attempt(NODE_AGENT, "reads secrets", RBAC, "get", SECRETS, ""),
    *patches(VIRTUAL_MACHINES, "mine", SIDECAR, {
        "resizes its VM within the permit": (use("1500m", 3), ""),
        "raises CPU above the permit": (use(3, 2), _PERMITS),
        "changes its command": ({"spec": {"guest": {"args": ["sh"]}}}, _AGENTS),
    }),
    *patches(VIRTUAL_MACHINES, "theirs", SIDECAR, {"resizes the VM of another pod": (use(1, 1), _AGENTS)}),
    *patches(VIRTUAL_MACHINES, "moved", LEFT_BEHIND, {"resizes the VM in its new pod": (use(1, 1), _AGENTS)}),
    *patches(
        VIRTUAL_MACHINES, "far", SIDECAR, {"resizes a VM of another namespace": (use(1, 1), RBAC)},
        namespace=ELSEWHERE,
    ),
    Attempt(
        SIDECAR, "writes an Event in the scheduler's name", _EVENTS, "create", EVENTS, "g",
        event("VirtualMachine", "autoscale-scheduler"),
    ),
    Attempt(SIDECAR, "writes an Event about a pod", _EVENTS, "create", EVENTS, "i", event("Pod")),
    *patches(
        PODS, "pg-1", SIDECAR, {"resizes a pod": (_sized(PG, "2", "2500m", "2Gi"), RBAC)}, subresource="resize"
    ),
    Attempt(SIDECAR, "lists pods", RBAC, "get", PODS, ""),
)  # fmt: skip
