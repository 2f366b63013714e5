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
POD_PENDING: Final = ("PodPending", "waiting for the pod to run")
RUNNER_UNKNOWN: Final = ("RunnerUnreachable", "{fault}")
GUEST_LOST: Final = ("GuestLost", "{message}, and was lost there")
UNKNOWN_MACHINE: Final = (
    "UnknownMachine",
    "pod {pod} has no record of the machine that it runs; delete the pod to recreate it",
)
GUEST_BOOTS: Final = (BOOTING, "the guest is booting")
GUEST_RUNS: Final = ("GuestRuns", "")
RESIZE_REFUSED: Final = ("ResizeRefused", "{fault}")
BEING_MOVED: Final = ("GuestRuns", "the guest is being migrated")
ACCELERATED: Final = ("Accelerated", "{why}")
EMULATED: Final = ("Emulated", "{why}")
SPEC_CHANGED: Final = (
    "SpecChanged",
    "the running machine differs from the spec: {differences}; delete pod {pod} to restart",
)
DIFFERENCE: Final = "{what} is {actual}, the spec says {spec}"
RESIZE_STALLED: Final = (
    "GuestDoesNotFollow",
    "{resources} not reached: requested {desired}, the guest has {actual}; retrying",
)
POD_LIMITS: Final = (
    "PodLimits",
    "pod {pod}: {problems}; raise spec.podResources.limits or the LimitRange, then delete pod {pod} to restart",
)
CPU_LIMITED: Final = "its CPU limit of {limit} caps the guest below its maximum of {most}"
MEMORY_TOO_LOW: Final = (
    "its memory limit of {limit} is less than the {least} that the guest boots with plus {qemu} for"
    " QEMU: it may be OOM-killed"
)
MEMORY_LIMITED: Final = (
    "its memory limit of {limit}, minus {qemu} for QEMU, caps the guest at {usable}, below its maximum of {most}"
)

SLEEPS: Final = ("Asleep", "asleep with {sessions} open; the next packet from a client wakes it")
WAKES: Final = ("Waking", "waking: {why}")
WAITS_FOR_PERMIT: Final = ("Waking", "waking: {why}; waiting for a permit for {use}")
WAKE_FAILED: Final = ("WakeFailed", "{fault}")
CANNOT_WAKE: Final = ("CannotWake", "asleep, but clients cannot wake it: {fault}")

# Reasons to wake, or not to sleep

CLIENT_PACKET: Final = "a client sent a packet"
ORDER_REMOVED: Final = "the order to sleep was removed"
MIGRATION_WAITS: Final = "a migration is waiting for it"
MOVED_ASLEEP: Final = "it was migrated"
NOT_ENABLED: Final = "autoscaling is not enabled for the VM"
IS_STANDBY: Final = "the VM is a standby"
SLEEP_TOO_LONG: Final = "asleep for 20 days, the longest that TCP connections survive"
LOST_ASLEEP: Final = "its pod ended while it was asleep"

# Events of a VM

FELL_ASLEEP: Final = ("Asleep", "asleep with {sessions} open; {mebibytes} MiB of memory saved")
SLEEP_REFUSED: Final = ("SleepRefused", "staying awake: {why}")
WOKE: Final = ("Awake", "awake after {seconds:.2f} s: {why}")
RESTARTED_ASLEEP: Final = ("Restarted", "booting from disk, sessions lost: {why}")
VM_ENDED: Final = "the VM has ended: {why}"
NO_ADDRESS: Final = "NoAddress"
RECONCILE_FAILED: Final = "FailedReconcile"

# Reasons why a migration is refused or waits

VM_UNUSABLE: Final = "the VM is invalid: {error}"
BANDWIDTH_UNUSABLE: Final = "spec.maxBandwidth: {error}"
NO_VM: Final = ("VMGone", "VM {vm} not found")
ALREADY_MIGRATING: Final = ("AlreadyMigrating", "migration {rival} of the VM is already under way")
VM_NOT_RUNNING: Final = ("VMNotRunning", "only a running VM can be migrated; its phase is {phase}")
GUEST_NOT_RUNNING: Final = ("VMNotRunning", "only a running VM can be migrated; its guest: {role}")
GUEST_UNKNOWN: Final = ("GuestUnknown", "no response from the runner of {pod}")
NOT_MOVABLE: Final = ("NotMovable", "{migration_obstacle}")
WAITING: Final = "Waiting"
WAITS_FOR: Final = (WAITING, "waiting for {what}")
WAITS_FOR_ANSWER: Final = (WAITING, "waiting for a response from {pods}")
UNSCHEDULABLE: Final = "Unschedulable"
TARGET_UNSCHEDULABLE: Final = "the target pod cannot be scheduled: {why}"
CLEANUP_PENDING: Final = "migration {migration} to clean up {leftover}"
WAKING: Final = "the VM to wake"
LAST_MIGRATION: Final = "the VM's last migration to end; its phase is {phase}"

# Progress and outcome of a migration

WAITS_FOR_PLACE: Final = ("Preparing", "waiting for a node to migrate pod {pod} to")
PREPARING: Final = ("Preparing", "preparing the target on {node}")
TRANSFERRING: Final = ("Transferring", "migrating to {node}")
MIGRATED: Final = ("Migrated", "migrated from {source} to {target}{figures}")
FIGURES: Final = " in {total} ms, downtime {downtime} ms, {mebibytes} MiB sent"
NOT_BEGUN: Final = ("TimedOut", "not started within {time} s, waiting for {what}")
NOT_DONE: Final = ("TimedOut", "not completed within {time} s{waited}")
NOT_SCHEDULED: Final = "the target pod was not scheduled"
CANCELLED: Final = "Cancelled"
MOVE_CANCELLED: Final = (CANCELLED, "the migration was cancelled")
WAKES_HERE: Final = (CANCELLED, "the VM was needed, and can wake on its node")
MIGRATION_DELETED: Final = (CANCELLED, "the migration was deleted")
VM_DELETED: Final = ("VMGone", "the VM was deleted")
RUNS_ELSEWHERE: Final = ("SourceLost", "the VM now runs in pod {pod}")
LEFT_SOURCE: Final = ("SourceLost", "the VM no longer runs in pod {pod}")
SOURCE_ENDED: Final = ("SourceLost", "the guest in pod {pod} has ended{message}")
TARGET_GONE: Final = ("TargetLost", "pod {pod} is gone")
TARGET_POD_ENDED: Final = ("TargetLost", "pod {pod} has ended: {message}")
TARGET_LEAVES: Final = ("TargetLost", "pod {pod} is being deleted")
TARGET_ENDED: Final = ("TargetLost", "the guest ended on the target")
RESTARTED: Final = ("RuntimeRestarted", "the guest was lost when its runtime restarted")
POD_ON: Final = "pod {pod} on {node}"

# Events of a migration, on it and on its VM; the outcome has the condition's text

MIGRATION_MESSAGE: Final = "{migration}: {message}"
MIGRATION_STARTED: Final = ("Migrating", "migrating the guest from {ends}")
MIGRATION_FAILED_INTERNALLY: Final = "FailedMove"

# Errors of runners and their QEMUs, and of connections to them

RUNNER_TIMED_OUT: Final = "{who}: its runner does not respond"
RUNNER_UNREACHABLE: Final = "{who}: its runner cannot be reached: {error!r}"
RUNNER_REFUSES: Final = "{who}: its runner refused {path}: {complaint}"
RESPONSE_TOO_LARGE: Final = "{who}: the response of its runner to {path} is too large"
RESPONSE_COMPRESSED: Final = "{who}: its runner sent a compressed response to {path}"
RESPONSE_INVALID: Final = "{who}: invalid response from its runner: {error}"
RUNNER_CPU_UNKNOWN: Final = "{who}: its runner reported an invalid CPU: {error}"
RUNNER_PHASE_UNKNOWN: Final = "{who}: its runner reported an unknown phase {phase!r}"
MIGRATION_UNSUPPORTED: Final = "{who}: its runner does not support migration"
OLD_RUNNER: Final = (
    "its pod was created by NeonVM's own controller or an older release, and its ports are not"
    " authenticated; it can be migrated after its next start"
)
OPEN_RUNNER_AWAKE: Final = (
    "its pod was created by NeonVM's own controller or an older release; it can sleep after its next start"
)
OLD_RUNNER_AWAKE: Final = "its runner is from an older release; it can sleep after its next start"
QEMU_ENDED: Final = "{who}: its QEMU has ended"
QEMU_UNREACHABLE: Final = "{who}: cannot connect to its QEMU: {error!r}"
QEMU_CPUS_UNKNOWN: Final = "{who}: invalid CPU list from its QEMU: {error}"
CPUS_NOT_PLUGGED: Final = "{who}: {count} CPUs are plugged in, {requested} were requested"
MEMORY_OUT_OF_RANGE: Final = "{who}: memory must be between {low} and {high}, not {use}"
SOCKET_NOT_PASSABLE: Final = "{who}: socket {name} cannot be passed to another node"
FAILURES_IN_POD: Final = "{who}: failures of its QEMU are reported by the pod"
OTHER_ACCELERATOR: Final = "one of the nodes runs guests on KVM, the other emulates them"
ADDRESSES_TAKEN: Final = "all {count} addresses of the flat network are taken"
REQUEST_UNREADABLE: Final = "invalid certificate signing request: {error}"
REQUEST_UNSIGNED: Final = "the signature of the certificate signing request is invalid"
REQUEST_FOR_OTHER_KEY: Final = "the certificate signing request is not for an EC key"
IMPOSTOR: Final = "{address} did not prove that it is the runner of that pod"
HTTP_INVALID: Final = "invalid response to {method} {path}: {error}"
HTTP_TOO_LARGE: Final = "too large"
TIMED_OUT: Final = "timed out"
INTERNAL_ERROR: Final = "internal error of the controller: {error!r}"

# The Lease and certificates

NO_LEASE: Final = "this process does not hold the Lease"
LEASE_ENDED: Final = "the Lease expired before the response came"
NO_CERTIFICATE: Final = "no certificate for runner pods yet"
MANIFESTS_MISSING: Final = "Secret {secret} not found: apply the manifests"
REVIEW_FAILED: Final = "TokenReview of the pod's token failed: {error}"

# Log lines; the object of each is in the entry's fields

POLL_INTERNAL_ERROR: Final = "internal error while polling a guest; retrying"
MIGRATION_INTERNAL_ERROR: Final = "internal error during a migration; retrying"
CERTIFICATES_NOT_KEPT: Final = "cannot maintain the certificates of runner pods"
POLICY_NOT_KEPT: Final = "cannot maintain the NetworkPolicy for the ports of runner pods"
FAILED_AT_END: Final = "a component failed while stopping after the Lease was lost"
