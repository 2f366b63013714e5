"""Refusals of nodes and pods for kube-scheduler, and of requests for agents. Pure."""

from __future__ import annotations

from typing import Final

# Nodes: in kube-scheduler's own sentences, and few of them, because it counts equal ones ("3000 Insufficient cpu")

UNKNOWN_NODE: Final = "the scheduler does not know the node yet"
UNSCHEDULABLE: Final = "node(s) were unschedulable"
INSUFFICIENT: Final = "Insufficient {resource}"
TOO_SMALL: Final = "Insufficient {resource}: more than the node has"
SHORTAGE: Final = "pod needs {claim}; node {room.node} has {room.free} free of {room.total}"
TOO_MANY_PODS: Final = "Too many pods"
PORT_TAKEN: Final = "node(s) didn't have free ports for the requested pod ports ({port})"
UNTOLERATED_TAINT: Final = "node(s) had untolerated taint {taint}"
NODE_AFFINITY: Final = "node(s) didn't match Pod's node affinity/selector"
VOLUME_AFFINITY: Final = "node(s) had volume node affinity conflict"
POD_AFFINITY: Final = "node(s) didn't match pod affinity rules"
POD_ANTI_AFFINITY: Final = "node(s) didn't match pod anti-affinity rules"
OTHERS_ANTI_AFFINITY: Final = "node(s) didn't satisfy existing pods anti-affinity rules"
SPREAD: Final = "node(s) didn't match pod topology spread constraints ({key})"
SPREAD_LABEL: Final = "node(s) didn't match pod topology spread constraints (missing required label {key})"
RESERVED_ELSEWHERE: Final = "the pod holds a reservation on node {node}"

# Target pods of migrations

MIGRATION_UNKNOWN: Final = "migration {migration} of pod {pod} is not known yet"
MIGRATION_OVER: Final = "the migration has ended or is being cancelled"
OTHER_VM: Final = "pod's migration belongs to a different VM"
OTHER_TARGET: Final = "the migration goes to node {node}"
LEAVES_NODE: Final = "the VM is due to leave this node"
NAME_TAKEN: Final = "a migration with this name already exists"
MIGRATES: Final = "the VM is already migrating"
NOT_SETTLED: Final = "the VM does not run in exactly one pod bound to that node"

# Pods and their VMs

POD_OVER: Final = "pod {pod} was deleted or has finished"
POD_ABSENT: Final = "pod {pod} with UID {uid} does not exist"
POD_UNKNOWN: Final = "pod {pod} is not known to the scheduler"
NO_CLAIM: Final = "no pod with UID {uid} holds a claim"
RUNS_NO_VM: Final = "pod {pod} runs no VM"
NODE_UNKNOWN: Final = "node {node} of pod {pod} is not known yet"
VM_UNKNOWN: Final = "VirtualMachine {pod.vm} of pod {pod.name} is not known yet"
VM_UNREADABLE: Final = "VirtualMachine {pod.vm} of pod {pod.name} cannot be read: {why}"
VM_ELSEWHERE: Final = "VirtualMachine {pod.vm} runs in pod {runs_in}, not in {pod.name}"
NO_POD_OF_VM: Final = "no pod runs {vm}"
VM_LEFT: Final = "VirtualMachine {pod.vm} has left pod {pod.name}"

# Binds

BIND_REFUSED: Final = "the API server refused the binding: {error}"
BIND_TIMED_OUT: Final = "bind timed out; reservation kept: {error}"
BIND_IN_DOUBT: Final = "binding conflict, and the pod cannot be read right now: {error}"

# The scheduler as a whole

NOT_READY: Final = "the scheduler has not listed the cluster yet"
NOT_LEADING: Final = "not the leader; leader is {leader}"
LEADER_UNKNOWN: Final = "unknown"
MISSING_KINDS: Final = "the cluster has not been listed yet; missing: {missing}"
ENDS: Final = "this scheduler is shutting down"
LOST_LEADERSHIP: Final = "this scheduler no longer leads; retry"
NO_LEASE: Final = "{call.method} {call.path} not sent: this process does not hold the Lease"
FAILED: Final = "internal error; see the scheduler log"

# Agents

BEARER_NEEDED: Final = "a bearer token is required"
NO_TOKEN: Final = "a bearer token of the agent's service account is required"  # noqa: S105 - a message
TOO_MANY_TOKENS: Final = "too many token reviews are pending"
NOT_REVIEWED: Final = "cannot review the token right now: {error}"
NOT_ITS_AGENT: Final = "{account} is not the agent of pod {pod}"
TOKENS_POD_UNKNOWN: Final = (
    "pod {caller.namespace}/{caller.pod}, which the token is bound to, is not known to the scheduler"
)
NOT_A_VM: Final = "pod.name: expected the pod of a VM, {pod} runs none"
OTHER_AGENT: Final = (
    "the agent in pod {pod} manages VM {vm}: run one agent per VM, or wait {left:.0f} s in case that one is gone"
)
NOT_STORED: Final = "the permit of {vm} could not be stored; retry: {why}"
WRITE_IN_PROGRESS: Final = "the permit is still being written; retry"


def bind_conflict(pod: object, node: str | None, *, exists: bool, error: object) -> str:
    """Refusal of a bind with a conflict: the pod runs on ``node``, or on none."""
    where = "is gone" if not exists else "is not bound" if node is None else f"runs on node {node}"
    return f"pod {pod} {where}: {error}"
