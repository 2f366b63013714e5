"""Conditions, Events, refusals and log lines of ``neonvm-controller``. Pure."""

from __future__ import annotations

from typing import Final

from protocol.names import BOOTING

Reasoned = tuple[str, str]
"""A reason in CamelCase, and a message or its template."""


def reasoned(text: Reasoned, **values: object) -> Reasoned:
    """The text with its ``values``.

    >>> reasoned(POD_GONE, pod="db-1")
    ('PodGone', 'pod db-1 is gone')
    """
    return text[0], text[1].format(**values)


# Conditions of a VM

INVALID_SPEC: Final = "InvalidSpec"
POD_GONE: Final = ("PodGone", "pod {pod} is gone")
POD_PENDING: Final = ("PodPending", "the pod does not run yet")
GUEST_LOST: Final = ("GuestLost", "{story}, and was lost there")
UNKNOWN_MACHINE: Final = (
    "UnknownMachine",
    "pod {pod} does not say which machine it runs: delete it, and it is made again",
)
GUEST_BOOTS: Final = (BOOTING, "the guest boots")
GUEST_RUNS: Final = ("GuestRuns", "")
RESIZE_REFUSED: Final = ("ResizeRefused", "{fault}")
BEING_MOVED: Final = ("GuestRuns", "the guest is being moved")
ACCELERATED: Final = ("Accelerated", "{why}")
EMULATED: Final = ("Emulated", "{why}")
SPEC_CHANGED: Final = (
    "SpecChanged",
    "the running machine differs from the spec: {differences}; delete pod {pod} to restart",
)
DIFFERENCE: Final = "{what} is {has}, the spec says {wanted}"
GUEST_DOES_NOT_FOLLOW: Final = (
    "GuestDoesNotFollow",
    "{resources}: {want} was ordered; the guest has {has} and comes no nearer; the order is repeated",
)
POD_LIMITS: Final = (
    "PodLimits",
    "pod {pod}: {problems}; raise spec.podResources.limits or the LimitRange, then delete pod {pod} to restart",
)
CPU_LIMITED: Final = "its CPU limit of {limit} keeps the guest below its maximum of {most}"
MEMORY_TOO_LOW: Final = (
    "its memory limit of {limit} is less than the {least} with which the guest boots and {qemu} for QEMU: the kubelet"
    " may kill it"
)
MEMORY_LIMITED: Final = (
    "its memory limit of {limit}, less {qemu} for QEMU, keeps the guest at {usable} and below its maximum of {most}"
)

# Events of a VM

VM_ENDED: Final = "the VM has ended: {why}"
NO_ADDRESS: Final = "NoAddress"
RECONCILE_FAILED: Final = "FailedReconcile"

# Why a migration is refused or waits

VM_UNUSABLE: Final = "the VM is not usable: {error}"
BANDWIDTH_UNUSABLE: Final = "spec.maxBandwidth: {error}"
NO_VM: Final = ("VMGone", "there is no VM {vm}")
ALREADY_MIGRATING: Final = ("AlreadyMigrating", "{rival} is moving the VM already")
VM_NOT_RUNNING: Final = ("VMNotRunning", "the VM must run to be moved; it is {phase}")
GUEST_NOT_RUNNING: Final = ("VMNotRunning", "the VM must run to be moved; its guest: {role}")
GUEST_UNKNOWN: Final = ("GuestUnknown", "nothing answers about the guest in {pod}")
NOT_MOVABLE: Final = ("NotMovable", "{hindrance}")
WAITING: Final = "Waiting"
WAITS_FOR: Final = (WAITING, "waits for {what}")
WAITS_FOR_ANSWER: Final = (WAITING, "waits for an answer about the guest in {pods}")
UNSCHEDULABLE: Final = "Unschedulable"
NO_PLACE: Final = "no node takes the target pod: {why}"
REMAINS: Final = "what migration {migration} has left: {leftover}"
LAST_MOVE: Final = "the end of the VM's last move: its phase is {phase}"

# The course of a migration

WAITS_FOR_PLACE: Final = ("Preparing", "waits for a place for the guest of pod {pod}")
PREPARING: Final = ("Preparing", "the target gets ready on {node}")
TRANSFERRING: Final = ("Transferring", "the guest moves to {node}")
MIGRATED: Final = ("Migrated", "moved from {source} to {target}{figures}")
FIGURES: Final = " in {total} ms, standing still for {downtime} ms, {mebibytes} MiB sent"
NOT_BEGUN: Final = ("TimedOut", "not begun within {time} s: it waited for {what}")
NOT_DONE: Final = ("TimedOut", "not done within {time} s{waited}")
GOT_NO_NODE: Final = "the target pod got no node"
CANCELLED: Final = "Cancelled"
MOVE_CANCELLED: Final = (CANCELLED, "the move was cancelled")
MIGRATION_DELETED: Final = (CANCELLED, "the migration was deleted")
VM_DELETED: Final = ("VMGone", "the VM was deleted")
RUNS_ELSEWHERE: Final = ("SourceLost", "the VM runs in pod {pod} by now")
LEFT_SOURCE: Final = ("SourceLost", "the VM runs in pod {pod} no more")
SOURCE_ENDED: Final = ("SourceLost", "the guest in pod {pod} has ended{message}")
TARGET_GONE: Final = ("TargetLost", "pod {pod} is gone")
TARGET_POD_ENDED: Final = ("TargetLost", "pod {pod} has ended: {message}")
TARGET_LEAVES: Final = ("TargetLost", "pod {pod} is being deleted")
TARGET_ENDED: Final = ("TargetLost", "the guest has ended in the target")
RESTARTED: Final = ("RuntimeRestarted", "the runtime was restarted, and the guest was lost with it")
POD_ON: Final = "pod {pod} on {node}"

# Events of a migration, on it and on its VM; how it ended is the condition's text

OF_MIGRATION: Final = "{migration}: {story}"
MOVES_FROM: Final = ("Migrating", "the guest moves from {ends}")
MOVE_FAILED: Final = "FailedMove"

# Refusals by runners of other pods, and about them

RUNNER_SILENT: Final = "{who}: its runner does not answer"
RUNNER_UNREACHABLE: Final = "{who}: its runner cannot be reached: {error!r}"
RUNNER_REFUSES: Final = "{who}: its runner refused {path}: {complaint}"
RUNNER_SAYS_TOO_MUCH: Final = "{who}: its runner says too much at {path}"
RUNNER_PACKS: Final = "{who}: its runner packs what it says at {path}"
RUNNER_UNREADABLE: Final = "{who}: its runner gave no usable answer: {error}"
RUNNER_CPU_UNKNOWN: Final = "{who}: its runner cannot say its CPU: {error}"
RUNNER_PHASE_UNKNOWN: Final = "{who}: its runner says {phase!r}"
RUNNER_KEEPS_GUEST: Final = "{who}: its runner lets no guest go"
OLD_RUNNER: Final = (
    "its pod was made by NeonVM's controller or by an older release, and its ports let everyone in; its guest can move"
    " after its next start"
)
QEMU_ENDED: Final = "{who}: its QEMU has ended"
QEMU_UNREACHABLE: Final = "{who}: its QEMU cannot be reached: {error!r}"
QEMU_CPUS_UNKNOWN: Final = "{who}: its QEMU cannot say its CPUs: {error}"
NOT_PLUGGED_IN: Final = "{who}: {wanted} CPUs were to be plugged in, and {count} are"
MEMORY_OUT_OF_RANGE: Final = "{who}: memory must be between {low} and {high}, not {use}"
SOCKET_STAYS: Final = "{who}: the socket {name} cannot leave this node"
POD_SAYS: Final = "{who}: whether it has failed is what its pod says"
OTHER_ACCELERATOR: Final = "one of the nodes has an accelerator that works and the other emulates its guests"
ADDRESSES_TAKEN: Final = "all {count} addresses of the flat network are taken"
REQUEST_UNREADABLE: Final = "a signing request that cannot be read: {error}"
REQUEST_UNSIGNED: Final = "a signing request that its own key has not signed"
REQUEST_FOR_OTHER_KEY: Final = "a signing request for another kind of key"
IMPOSTOR: Final = "what answers at {address} has not proven that it is the runner of that pod"
ANSWER_UNREADABLE: Final = "the answer to {method} {path} cannot be read: {error}"
ANSWER_TOO_LONG: Final = "it is too long"
NO_ANSWER_IN_TIME: Final = "no answer in time"
OWN_FAULT: Final = "a fault of the controller: {error!r}"

# The Lease and certificates

NO_LEASE: Final = "this process does not hold the Lease"
LEASE_ENDED: Final = "the Lease ended before the answer came"
NO_CERTIFICATE: Final = "there is no certificate for runner pods yet"
MANIFESTS_MISSING: Final = "there is no Secret {secret}: apply the manifests"
REVIEW_FAILED: Final = "the API server does not review the pod's token: {error}"

# Log lines; what each is about stands in the fields of the entry

GUEST_NOT_FOLLOWED: Final = "a guest could not be followed"
MOVE_FAULT: Final = "a fault of this program has ended its part in a move"
CERTIFICATES_NOT_KEPT: Final = "the certificates of runner pods cannot be kept"
POLICY_NOT_KEPT: Final = "cannot keep the NetworkPolicy around the ports of runner pods"
FAILED_AT_END: Final = "a part failed while it ended, after the Lease was lost"
