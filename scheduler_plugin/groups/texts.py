"""All texts of ``autoscale-groups``: conditions, Events, explanations and log lines. Pure.

Most are templates for ``str.format``, whose fields mypy checks. Messages on invalid fields are in the parsers, help
texts of metrics in ``telemetry``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocol.names import ANNOTATION_SWITCHOVER, LABEL_ENABLED
from scheduler_plugin.texts.explanations import named

# Why a group scales nothing

SCALES: Final = "scales {target}"
NOT_FOUND: Final = "{object} does not exist"
TARGET_LEAVING: Final = "{target} is being deleted"
TARGET_SHARED: Final = "{target} is also the target of {rivals}"
TARGET_SCALES_ITSELF: Final = "{target} scales itself (spec.scaling)"
TARGET_SCALED_BY_OTHERS: Final = "{target} is also {others}"
TARGET_OWNED: Final = "{target} is controlled by {owner}, which would revert every scaling"
SCALED_BY: Final = "scaled by {kind} {names}"
SIZED_BY: Final = "sized by {kind} {names}"
SIZING_MODE: Final = "{name} (updateMode {mode})"
AUTOSCALER_ELSEWHERE: Final = "{kind} {name} targets {subject}"
OWNED: Final = "{kind} {name} belongs to {owner}"
AUTOSCALER_KEPT: Final = "the HPA or VPA is not changed: {error}"
TOO_LARGE: Final = "its spec has more than {kib} KiB and could not be restored"
POD_UNREADABLE: Final = "cannot decode a pod of {target.desired.target}: {error}"
REPLICAS_CONTESTED: Final = "spec.scaling and {rivals} would both write the replicas: remove one"

# Databases in pods

SIZED_BY_AGENTS: Final = (
    f"node agents size pods labelled {LABEL_ENABLED}=true; this group sets only the number of replicas"
)
SIZED_BY_AGENTS_TOO: Final = (
    "node agents size pods of {target}, and a Tortoise would size them too: use an Hvpa, or remove the label"
    f" {LABEL_ENABLED} from the pods"
)

NO_ROOM: Final = (
    "{primary.name} has been denied {primary.desired} since {since:%H:%M} UTC because its node is full: {why}"
)
SWITCHOVER_WAITING: Final = (
    "a standby will be promoted once the primary has been denied for {minutes} of the last {window} minutes"
)
SWITCHOVER_NOT_ALLOWED: Final = (
    f'to promote a standby with room, annotate the Cluster with {ANNOTATION_SWITCHOVER}: "true"; writes are refused for'
    " about 8 s"
)
SWITCHOVER_NOT_HEALTHY: Final = "a standby will be promoted once the Cluster is healthy"
SWITCHOVER_TOO_SOON: Final = "the Cluster changed its primary within the last hour"
SWITCHOVER_NO_STANDBY: Final = "no ready standby has that size"
SWITCHOVER_PROMOTED: Final = "promoting {standby}, which has that size; writes are refused for about 8 s"

# Recommendations

NOTHING_YET: Final = "neither the HPA nor the VPA recommends anything yet"
VPA_SILENT: Final = "the VPA recommends nothing yet"
NO_VPAS: Final = "the cluster has no VerticalPodAutoscalers, so nothing recommends sizes"
INTERVALS_OVERLAP: Final = "for replica counts in both {one} and {other}, the interval listed first applies"
IGNORED: Final = "settings of the global configuration without effect: {names}"
OUT_OF_MEMORY: Final = "{kill.container} ran out of memory at {kill.at:%H:%M:%S} UTC"
FLOOR: Final = "floor of {size}, from the need at this hour on earlier days"
NO_FLOOR: Final = "no floor, from the need at this hour on earlier days"
AGENTS_SILENT: Final = "no agent reports the CPU load of its VM"
FROM_AGENTS: Final = "reported by the agents of the VMs"

# Pods that differ from their spec

JUST_CHANGED: Final = "the {kind} has just been changed"
OLD_TEMPLATE: Final = "{updated} of {ordered} pods have the latest template"
OTHER_NUMBER: Final = "{present} of {ordered} pods exist"
NOT_ALL_READY: Final = "{ready} of {ordered} pods are ready"
OVERWRITTEN: Final = "another writer or a webhook keeps overwriting its sizes"
PAUSED: Final = "it is not written until {time}"
WRITTEN_AGAIN: Final = "it has just been written again"
DISPUTE: Final = "{who} has overwritten {subject} {times} times: {again}; only one of the two may manage it"

# Why an Hvpa withholds a change

SIZES_FIRST: Final = "sizes grow first"
NOT_READY: Final = "until all replicas are ready"
REPLICAS_FIRST: Final = "replicas are removed first"
NO_MORE: Final = "no pod can have more"
UNTIL: Final = "until {time:%H:%M:%S} UTC"
UNTIL_WINDOW: Final = "until the maintenance window, {window}"
NO_WINDOW: Final = "there is no maintenance window"
SMALL_CHANGE: Final = "the change is less than {min_change}"
PODS_DIFFER: Final = "until the pods match their spec: {difference}"
MODE_OFF: Final = "update mode Off"
NEED: Final = "{need.container}/{need.resource}: needs {amount} in each of {replicas} replicas"
NEED_UNKNOWN: Final = "{subject}: its need is unknown, so no replica is removed"
HPA_SILENT: Final = "the HPA recommends nothing, so no replica is removed, and no size that it measures shrinks"

# What a Tortoise does, and why

UPDATE_MODE_OFF: Final = "updateMode is Off"
NO_EMERGENCY: Final = "updateMode Emergency has no effect: {why}"
NOTHING_HORIZONTAL: Final = "nothing scales horizontally"
MANY_UNKNOWN: Final = "the usual number of replicas is not known yet"
INITIALIZING: Final = "waiting for the first recommendation"
GATHERING_DATA: Final = "gathering data before anything is scaled"
EMERGENCY: Final = "emergency: maximum number of replicas, nothing shrinks"
BACK_TO_NORMAL: Final = "returning from an emergency, step by step"
WORKING: Final = "working"
BETWEEN: Final = "{phase}; between {bounds.min} and {bounds.max} replicas"
SIZE_CHANGE: Final = "{container} from {change.request} to {size}: {change.decision.reason}"
KILLED: Final = "{kill.container} ran out of memory in {pods} of {replicas} pods, last at {kill.at:%H:%M:%S} UTC: {why}"
NO_MEMORY_SIZE: Final = "it has neither request nor limit for memory"
MEMORY_OFF: Final = "autoscalingPolicy does not scale its memory"
MEMORY_GATHERING: Final = "data on its memory is still being gathered"
MEMORY_AT_MOST: Final = "its memory is at its maximum, {size}"
POLICY_OFF: Final = "its policy is Off"
FOLLOWS_NEED: Final = "the number of replicas follows the need"
ABOVE_REQUEST: Final = "the recommendation is above the request"
FAR_BELOW_REQUEST: Final = "the recommendation is far below the request"
CLOSE_TO_REQUEST: Final = "the recommendation is close to the request"
TOO_MANY_REPLICAS: Final = "there are as many replicas as preferred, so containers grow instead"
NEARLY_TOO_MANY: Final = "smaller containers might need more replicas than preferred"
FEWEST_REPLICAS: Final = "the replicas are at their minimum, so containers shrink instead"
FEWEST_AND_USED: Final = "the replicas are at their minimum, and they use what they request"
LITTLE_USED: Final = "other containers drive the number of replicas, and this one uses little"
LOWERED_RECENTLY: Final = "a container's request is lowered at most once an hour"

# Members of a VirtualMachineGroup

MEMBER_CREATED: Final = "created VM {vm}"
MEMBER_STAYS: Final = "VM {vm} is needed again and no longer drains"
MEMBER_DRAINS: Final = "draining VM {vm}: {why}"
MEMBER_DELETED: Final = "deleted VM {vm}: {why}"
NOT_CREATED: Final = "VM {vm} cannot be created: {why}"
NOT_SCALED: Final = "the API server refuses to scale the group to {replicas} replicas: {why}"
NOT_CHANGED: Final = "the API server refuses a change of the group: {why}"
FOREIGN_ENDPOINT: Final = "{object} does not belong to this group, so the read endpoint is not written"
PRIMARY_STARTS: Final = "the primary's database does not accept connections yet"
PRIMARY_TAKEN: Final = "a VirtualMachine {name} exists that does not belong to this group"
PRIMARY_LOST: Final = "VM {name} is gone, and a new one would be an empty database: delete the group to start over"
SERVING: Final = "{serving} of {desired} replicas serve"
PRIMARY_MOVED: Final = "the primary's address has changed"
SURPLUS: Final = "there are {replicas} replicas, and {desired} are desired"
INVALID_MARK: Final = "its draining mark has no valid time"

# Why a replica may be deleted, or not yet

NO_CLIENTS: Final = "its database is not running, so it has no clients"
NO_SESSION: Final = "it has no sessions left"
DRAINED_LONG: Final = "it has been draining for {timeout:g} s"
GRACE_OVER: Final = "the grace period of {grace:g} s and all transactions begun in it are over"
STILL_LISTED: Final = "the read endpoint still lists it"
ADDRESS_KNOWN: Final = "clients may still use its address"
SESSIONS_UNKNOWN: Final = "its number of sessions is unknown, because its agent does not respond"
SESSIONS: Final = "{sessions} sessions, {age:.0f} s of the grace period of {grace:g} s"
TRANSACTION_OPEN: Final = "a transaction that began within the grace period is still open"

# Why the read endpoint excludes a replica

LEAVES: Final = "it is leaving the group"
NOT_AVAILABLE: Final = "its database does not accept connections yet"
NO_ADDRESS: Final = "it has no address yet"
AGENT_SILENT: Final = "its agent does not report the state of its database"
NO_STANDBY: Final = "its database is not a standby"
NOT_STREAMING: Final = "it does not stream from the primary"
LAG_UNKNOWN: Final = "its replication lag is unknown"
TOO_FAR_BEHIND: Final = "its replication lag is more than {bound:g} s"

# Why a VirtualMachineGroup has this number of replicas

SCALED: Final = "{before} → {decision.replicas} replicas: {decision.reason}"
SCALED_TO_ZERO: Final = "scaled to zero: nothing is decided until there is a replica again"
OUT_OF_BOUNDS: Final = "{bounds.min} to {bounds.max} replicas are allowed"
NO_REPLICA_SERVES: Final = "no replica serves"
LOADS_UNKNOWN: Final = "no replica's load over the whole window is known yet"
LOAD_FITS: Final = "the load fits the current replicas"
DELAYED: Final = "{reason}; the delay of {delay:g} s is not over"
BUSY_ON: Final = " on {known} of {serving} replicas"
BUSY: Final = (
    "{busy:.1f} CPUs busy over {scaling.window:g} s{some}; target per replica: {scaling.utilization:.0%} of at most"
    " {scaling.max_cpu} CPUs"
)

# Log lines

READY: Final = "ready"
NOT_RESTORED: Final = "cannot restore an HPA or VPA that the group changed"
NOT_RECOMMENDED: Final = "cannot write a recommendation"

_MOST_RIVALS: Final = 3


def rivals(names: Sequence[str]) -> str:
    """Other groups with the same target, by name if they are few.

    Otherwise each change of one of N rivals would change N statuses, and the statuses together would have N² names.

    >>> rivals(["Hvpa a", "Hvpa b"]), rivals(["Hvpa a", "Hvpa b", "Hvpa c", "Hvpa d"])
    ('Hvpa a and Hvpa b', 'more than 3 other groups')
    """
    return " and ".join(names) if len(names) <= _MOST_RIVALS else f"more than {_MOST_RIVALS} other groups"


def not_resized(pods: Sequence[str], why: str) -> str:
    """Pods that cannot be resized, and why."""
    return f"{named(pods)} cannot be resized: {why}"


def other_size(pods: Sequence[str], total: int) -> str:
    """Pods, out of ``total``, whose size differs from the desired one."""
    return f"{len(pods)} of {total} pods have another size: {named(pods)}"
