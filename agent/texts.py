"""Texts of ``autoscaler-agent``: Kubernetes Events, refusals, errors of peers and log lines. Pure.

Texts with braces are templates for ``str.format``. The sentences of ``/explain`` are next to the rules that they
explain, help texts next to their flags and metrics.
"""

from __future__ import annotations

from typing import Final

# Events of a database

OUT_OF_MEMORY: Final = (
    "the kernel OOM-killed {count} processes; the database grows as far as its bounds and its node allow"
)
WOKEN_FOR_NOTHING: Final = (
    "woken for nothing: {by}, then no client activity for {seconds:.0f} s; ordering it to sleep again. Point health "
    "checks and scrapes at the agent's metrics, which do not wake the VM"
)
RESIZE_REFUSED: Final = "growth to {target} was refused: {reason}; no room is reserved for it until the next try"

# Refusals

NO_SUCH_VM: Final = "unknown VM or pod: {vm}"
VMS_UNKNOWN: Final = "VMs not listed yet\n"
VMS_UNREAD: Final = "waiting for the first read of {vms}\n"
PERMIT_WITH_ZERO: Final = "permit with a zero amount: {permit}"
PERMIT_TOO_LARGE: Final = "the permit ({permit}) is above the request ({requested})"
PERMIT_TOO_SMALL: Final = "the permit ({permit}) is below the size in use ({in_use})"
NEEDS_VERSION_2: Final = "LoadReport needs protocol version 2"
UNKNOWN_MESSAGE: Final = "unknown message type"

# Errors of peers

NO_ANSWER: Final = "{who} did not respond within {seconds:g} s"
UNREACHABLE: Final = "{who} cannot be reached: {kind}: {error}"
API_SERVER: Final = "the API server at {url}"
API_REFUSES: Final = "the API server returned {status} for {method} {path}{message}"
API_UNREADABLE: Final = "the API server's {what}: {error}"
NO_OBJECT: Final = "response is not a JSON object"
BAD_LIST: Final = "list cannot be decoded"
TOO_LARGE: Final = "an object has more than {most} bytes"
BAD_EVENT: Final = "watch event cannot be decoded"
PATCH_ALTERED: Final = "the API server stored {stored} instead of {target}; an admission webhook may have changed it"
ORDER_ALTERED: Final = "the API server did not store the order; an admission webhook may have changed it"
OBJECT_DELETED: Final = "{kind} {name} was deleted"
OBJECT_UNREADABLE: Final = "the {kind} cannot be decoded: {reason}"
POD_REPLACED: Final = "{pod} was replaced by another pod of that name"
FORBIDDEN_PATCH: Final = "cannot patch resource"
NO_DATABASE_STATUS: Final = "database status is not available for a database in a pod"
CREDENTIAL_UNREADABLE: Final = "cannot read token file {file}: {error}"
CREDENTIAL_EMPTY: Final = "token file {file} is empty"

SCHEDULER: Final = "the scheduler at {url}"
SCHEDULER_SAYS: Final = "the scheduler returned {status}"
SCHEDULER_SAYS_TOO_MUCH: Final = "the scheduler's response exceeds {most} bytes"
SCHEDULER_UNREADABLE: Final = "cannot decode the scheduler's response: {error}"
REQUEST_UNDECODABLE: Final = "the scheduler cannot decode this agent's request"
AGENT_REJECTED: Final = "the scheduler rejected this agent's token"
POD_NOT_AUTHORIZED: Final = "the scheduler does not authorize this agent for this pod"
POD_UNKNOWN: Final = "the scheduler does not know this pod"
OTHER_AGENT: Final = "the scheduler serves another agent of this database"
NOT_READY: Final = "the scheduler is not ready"

METRICS: Final = "the guest's metrics at {url}"
METRICS_STATUS: Final = "the guest's metrics at {url} returned {status}"
METRICS_TOO_LONG: Final = "the guest's metrics page exceeds {most} bytes"
METRICS_INCOMPLETE: Final = "the metrics say nothing about {missing}, so the size does not shrink"
NO_CGROUP: Final = "no cgroup found for container {container} of pod {pod}"
CGROUP_UNREADABLE: Final = "cannot read the pod's cgroups: {error}"
CGROUP_MALFORMED: Final = "cannot parse a file of the pod's cgroups: {error}"
SHRINK_NOT_TRIED: Final = "cannot run the trial: {error}"
RECLAIMER_ENDED: Final = "the reclaimer closed the connection"
DATABASE: Final = "the guest's database at {url}"
DATABASE_UNREADABLE: Final = "the guest's database at {url}: {error}"
DATABASE_SAYS_TOO_MUCH: Final = "the guest's database status exceeds {most} bytes"
DATABASE_SILENT: Final = "no database status from the guest: {reason}"
MONITOR_FAILED: Final = "the guest's monitor at {url}: {error}"
MONITOR_UNREACHABLE: Final = "the guest's monitor at {url} cannot be reached: {kind}"
MONITOR_GREETING_MALFORMED: Final = "malformed greeting from the guest's monitor: {error}"
MONITOR_GREETING_TIMED_OUT: Final = "no greeting from the guest's monitor within {seconds:g} s"
MONITOR_ENDED: Final = "the connection to the guest's monitor closed{why}"
MONITOR_MALFORMED: Final = "malformed message from the guest's monitor: {error}"
MONITOR_SEND_TIMED_OUT: Final = "sending to the guest's monitor timed out after {seconds:g} s"
MONITOR_ANSWER_TIMED_OUT: Final = "no response within {seconds:g} s"
MONITOR_RATE_EXCEEDED: Final = "the guest's monitor exceeds {rate:g} messages per second"
TOO_MANY_FRAMES: Final = "too many frames"
TOO_MANY_PONGS: Final = "too many unread pongs"

# Log lines; the fields of the entry say which VM or pod

POLICY_APPLIED: Final = "policy applied"
POLICY_REFUSED: Final = "policy rejected; keeping the previous one"
SETTINGS_IN_PART: Final = "some settings were ignored"
PODS_NOT_READ: Final = "cannot list the pods of this node"
CRASHED: Final = "a VM's agent crashed; restarting it"
PERMITTED: Final = "permit received"
PARTLY_PERMITTED: Final = "permit below the request"
NO_PERMIT: Final = "request to the scheduler failed"
RESIZED: Final = "resized"
NOT_RESIZED: Final = "not resized"
RESIZE_OBJECTION: Final = "the kubelet deferred or refused a resize"
SLEEP_ORDERED: Final = "ordered to sleep"
SLEEP_NOT_ORDERED: Final = "cannot write the order to sleep"
SLEEP_REFUSED: Final = "the guest refused to sleep"
ASLEEP: Final = "asleep"
WAKING: Final = "waking"
AWAKE: Final = "awake again"
RESTORED: Final = "resourceVersion went backwards: the cluster was restored from a backup"
VM_READ_AGAIN: Final = "the object can be read again"
VM_NOT_READ: Final = "cannot read the object"
NO_METRICS: Final = "scrape failed"
METRICS_UNUSABLE: Final = "the metrics are incomplete"
METRICS_BACK: Final = "scrapes succeed again"
OOM_KILLED: Final = "the kernel OOM-killed processes"
MONITOR_JOINED: Final = "connected to the guest's monitor"
MONITOR_LOST: Final = "lost the connection to the guest's monitor"
MONITOR_REFUSED_SHRINK: Final = "the guest's monitor refused a shrink"
TRIALS_READY: Final = "ready to test the pod with less memory"
TRIALS_UNAVAILABLE: Final = "cannot test the pod with less memory"
TRIAL_FAILED: Final = "the test of the pod with less memory failed"

# The reclaimer

RECLAIMER_SERVES: Final = "the reclaimer is ready"
PEER_REFUSED: Final = "connection refused: the peer is neither the agent nor root, or too many connections are open"
FOREIGN_RECORDS: Final = "not a folder owned by this program's user"
NOT_RELEASED: Final = "cannot restore a pod's memory limit"
HELD_ALREADY: Final = "another connection already holds this pod"
OTHER_POD: Final = "this connection already holds another pod"
NO_POD_GROUP: Final = "no cgroup found for pod {pod}"
HOLD_TOO_LOW: Final = "cannot hold the pod at {size} bytes: it needs {least}, headroom included"
