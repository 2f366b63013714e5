"""Events, refusals, faults of others and log lines of ``autoscaler-agent``. Pure.

A text without a choice is a template for ``str.format``. The sentences of ``/explain`` stand with the rules that they
explain, and help texts with their flags and metrics.
"""

from __future__ import annotations

from typing import Final

# Events of a VM

OUT_OF_MEMORY: Final = "the guest's kernel killed {count} processes for lack of memory; the VM grows as far as it may"
RESIZE_REFUSED: Final = "refused to grow to {target}, no room is kept for it meanwhile: {reason}"

# Refusals

NO_SUCH_VM: Final = "no such database here: {vm}"
VMS_UNKNOWN: Final = "the VMs to look after are not known yet\n"
VMS_UNREAD: Final = "not read yet: {vms}\n"
PERMIT_WITH_ZERO: Final = "the permit has a zero: {permit}"
PERMIT_TOO_LARGE: Final = "the permit ({permit}) is above the request ({requested})"
PERMIT_TOO_SMALL: Final = "the permit ({permit}) is below what the VM uses ({in_use})"
OF_VERSION_2: Final = "LoadReport is of version 2"
UNKNOWN_MESSAGE: Final = "the type of this message is not known"

# Faults of others

NO_ANSWER: Final = "{who} did not answer within {seconds:g} s"
UNREACHABLE: Final = "{who} cannot be reached: {kind}: {error}"
API_SERVER: Final = "the API server at {url}"
API_REFUSES: Final = "the API server answers {status} to {method} {path}{message}"
API_UNREADABLE: Final = "the API server's {what}: {error}"
NO_OBJECT: Final = "response is not a JSON object"
BAD_LIST: Final = "list cannot be decoded"
BAD_EVENT: Final = "watch event cannot be decoded"
OBJECT_DELETED: Final = "{kind} {name} was deleted"
OBJECT_UNREADABLE: Final = "the {kind} cannot be decoded: {reason}"
POD_REPLACED: Final = "another pod has taken the place of {pod}"
NO_RIGHT: Final = "cannot patch resource"
NO_DATABASE_VIEW: Final = "databases in pods report nothing to the agent"
CREDENTIAL_UNREADABLE: Final = "the token file {file} cannot be read: {error}"
CREDENTIAL_EMPTY: Final = "the token file {file} is empty"

SCHEDULER: Final = "the scheduler at {url}"
SCHEDULER_SAYS: Final = "the scheduler answers {status}"
SCHEDULER_SAYS_TOO_MUCH: Final = "the scheduler's answer has more than {most} bytes"
SCHEDULER_UNREADABLE: Final = "the scheduler's answer cannot be decoded: {error}"
NOT_UNDERSTOOD: Final = "the scheduler does not understand this agent"
NOT_ACCEPTED: Final = "the scheduler does not accept this agent's token"
NOT_ITS_POD: Final = "the scheduler does not let this agent speak for this pod"
POD_UNKNOWN: Final = "the scheduler does not know this pod"
OTHER_AGENT: Final = "the scheduler answers another agent of this VM"
NOT_READY: Final = "the scheduler is not ready"

METRICS: Final = "the guest's metrics at {url}"
METRICS_SAY: Final = "the guest's metrics at {url} answer {status}"
METRICS_TOO_LONG: Final = "the guest's metrics have more than {most} bytes"
NO_CGROUP: Final = "no control group of container {container} in pod {pod}"
CGROUP_UNREADABLE: Final = "the pod's control groups cannot be read: {error}"
CGROUP_MALFORMED: Final = "malformed control group: {error}"
SHRINK_NOT_TRIED: Final = "less memory could not be tried: {error}"
RECLAIMER_ENDED: Final = "the reclaimer ended the connection"
DATABASE: Final = "the guest's database at {url}"
DATABASE_UNREADABLE: Final = "the guest's database at {url}: {error}"
DATABASE_SAYS_TOO_MUCH: Final = "the guest's database says more than {most} bytes"
DATABASE_SILENT: Final = "the guest's database does not answer: {reason}"
MONITOR_FAILED: Final = "the guest's monitor at {url}: {error}"
MONITOR_UNREACHABLE: Final = "the guest's monitor at {url} cannot be reached: {kind}"
MONITOR_GREETS_BADLY: Final = "the guest's monitor greets with {error}"
MONITOR_DID_NOT_GREET: Final = "the guest's monitor did not greet within {seconds:g} s"
MONITOR_ENDED: Final = "the conversation with the guest's monitor ended{why}"
MONITOR_MALFORMED: Final = "malformed message from the guest's monitor: {error}"
MONITOR_DID_NOT_READ: Final = "the guest's monitor did not read for {seconds:g} s"
MONITOR_DID_NOT_ANSWER: Final = "the guest's monitor did not answer within {seconds:g} s"
MONITOR_SAYS_TOO_MUCH: Final = "the guest's monitor sends more than {rate:g} messages a second"
TOO_MANY_FRAMES: Final = "too many frames"
PINGS_NOT_READ: Final = "answers to pings are not read"

# Log lines; what each is about stands in the fields of the entry

POLICY_IN_FORCE: Final = "policy in force"
POLICY_REFUSED: Final = "policy refused; the last good one stays"
SETTINGS_IN_PART: Final = "settings in force in part"
PODS_NOT_READ: Final = "the pods of this node cannot be read"
CRASHED: Final = "an agent crashed and restarts"
PERMITTED: Final = "permitted"
LESS_PERMITTED: Final = "less permitted than asked for"
NO_PERMIT: Final = "the scheduler gave no permit"
RESIZED: Final = "resized"
NOT_RESIZED: Final = "the VM was not resized"
OBJECTED: Final = "the kubelet objects to a resize"
RESTORED: Final = "the VM's object is an older one: the store was restored"
VM_READ_AGAIN: Final = "the VM can be read again"
VM_NOT_READ: Final = "the VM cannot be read"
NO_METRICS: Final = "no metrics"
METRICS_BACK: Final = "metrics are back"
KILLED: Final = "the guest killed processes for lack of memory"
MONITOR_JOINED: Final = "the guest's monitor answers"
MONITOR_GONE: Final = "the guest's monitor is gone"
MONITOR_KEEPS: Final = "the guest's monitor keeps its memory"

# The reclaimer

RECLAIMER_SERVES: Final = "the reclaimer serves"
PEER_REFUSED: Final = "a connection was refused: neither the agent nor root, or too many"
FOREIGN_RECORDS: Final = "expected a folder of this program's own"
NOT_RELEASED: Final = "a hold could not be released"
HELD_ALREADY: Final = "another connection holds this pod"
OTHER_POD: Final = "a connection holds one pod only"
NO_POD_GROUP: Final = "no control group of a pod with the UID {pod}"
HOLD_TOO_LOW: Final = "{size} bytes are too few: {least} bytes cannot be reclaimed, or must stay free"
