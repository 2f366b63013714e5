"""Decodes API objects, the scheduler's ``/nodes`` and explanations of agents as samples, decisions and migrations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Final

import msgspec

from protocol.guest.sleep import ASLEEP
from protocol.kubernetes.objects import (
    Json,
    JsonObject,
    annotations_of,
    child,
    flag,
    integer,
    items,
    labels_of,
    name_of,
    shortened,
    text,
    uid_of,
    version_of,
)
from protocol.kubernetes.timestamps import parse_timestamp
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_REASON, ANNOTATION_TARGET_NODE, LABEL_GROUP
from protocol.ranking.prices import price_keys
from protocol.units import Bytes, QuantityError
from protocol.virtual_machine import InvalidObjectError
from scheduler_plugin.databases import database_name, parse_database
from scheduler_plugin.history.core.samples import (
    SECOND,
    Amount,
    DecisionRecord,
    Millis,
    MoveRecord,
    NodeRecord,
    Row,
    Size,
    VmRecord,
    size_at,
)
from scheduler_plugin.texts.amounts import rounded_memory

_LONGEST_LABEL = 256


class ClusterSample(msgspec.Struct, frozen=True, gc=False):
    """The state of a cluster at the time ``at``.

    ``vms`` are VirtualMachines and opted-in pods, ``migrations`` VirtualMachineMigrations. ``nodes`` is the scheduler's
    ``/nodes`` response, None without one. ``price_keys`` are the price keys of each node.
    """

    at: Millis
    vms: Sequence[JsonObject]
    nodes: JsonObject | None = None
    price_keys: Mapping[str, tuple[str, ...]] = {}
    migrations: Sequence[JsonObject] = ()


class VmStatus(msgspec.Struct, frozen=True, gc=False):
    """The scheduler's report of one VM. During a migration it covers both pods."""

    reserved: Size
    permit: Size | None
    denied: Size
    migrating: bool


def node_price_keys(nodes: Iterable[JsonObject]) -> dict[str, tuple[str, ...]]:
    """Price keys of each Node that has any.

    >>> node_price_keys([{"metadata": {"name": "n1", "labels": {"node.kubernetes.io/instance-type": "m5"}}}])
    {'n1': ('m5',)}
    """
    keys_by_node = {name_of(node).name: price_keys(labels_of(node)) for node in nodes}
    return {node: keys for node, keys in keys_by_node.items() if keys}


def vm_statuses(nodes: JsonObject | None) -> dict[str, VmStatus]:
    """Status of each VM (``namespace/name``) in the scheduler's ``/nodes``, without unreadable pods."""
    by_vm: dict[str, VmStatus] = {}
    for pod in (pod for node in items(nodes or {}, "nodes") for pod in items(node, "pods")):
        vm, status = text(pod, "vm"), _status(pod)
        if vm and status is not None:
            # A migrating VM has two pods.
            by_vm[vm] = _merged(by_vm[vm], status) if vm in by_vm else status
    return by_vm


def _status(pod: Json) -> VmStatus | None:
    reserved, denied = size_at(pod, "reserved"), size_at(pod, "denied")
    if reserved is None:
        return None
    return VmStatus(reserved, size_at(pod, "permit"), denied or Size(0, 0), flag(pod, "migrating"))


def _merged(one: VmStatus, other: VmStatus) -> VmStatus:
    return VmStatus(
        # Both nodes reserve room for it; permits and denials are the VM's.
        one.reserved + other.reserved,
        one.permit or other.permit,
        Size(max(one.denied.cpu, other.denied.cpu), max(one.denied.mem, other.denied.mem)),
        migrating=True,
    )


class VmReader:
    """Decodes samples of VMs. ``labels`` are the keys of labels to record."""

    def __init__(self, labels: Sequence[str] = ()) -> None:
        self._labels = tuple(sorted(set(labels)))
        self._cached: dict[ObjectName, tuple[str, tuple[VmRecord, Size]]] = {}

    def samples(
        self, sample: ClusterSample, explanations: Mapping[ObjectName, AgentExplanation], oldest: Millis
    ) -> Iterator[tuple[VmRecord, Row, VmStatus | None]]:
        """Yield each readable VM, its amounts in the order of ``VM_COLUMNS``, and the scheduler's report of it.

        Explanations from before ``oldest`` are ignored.
        """
        of_scheduler = vm_statuses(sample.nodes)
        current: dict[ObjectName, tuple[str, tuple[VmRecord, Size]]] = {}
        for obj in sample.vms:
            name, version = database_name(obj), version_of(obj)
            previous = self._cached.get(name)
            # Parsing is expensive, so reuse the result for an unchanged version.
            parsed = previous[1] if previous is not None and version and previous[0] == version else self._read(obj)
            if parsed is not None:
                current[name] = version, parsed
                status, explanation = of_scheduler.get(str(name)), explanations.get(name)
                # An old explanation does not show the present need.
                fresh = explanation if explanation is not None and explanation.at >= oldest else None
                yield parsed[0], _amounts(parsed[1], status, fresh), status
        # Replaced, to drop deleted VMs.
        self._cached = current

    def _read(self, obj: JsonObject) -> tuple[VmRecord, Size] | None:
        try:
            vm = parse_database(obj)
        # Unreadable VMs are left out.
        except InvalidObjectError:
            return None
        labels = tuple((key, vm.labels[key][:_LONGEST_LABEL]) for key in self._labels if key in vm.labels)
        least, most = Size.of(vm.bounds.min), Size.of(vm.bounds.max)
        group = vm.labels.get(LABEL_GROUP, "")
        asleep = vm.phase == ASLEEP
        facts = VmRecord(vm.name, shortened(vm.node or ""), group, least, most, labels, uid_of(obj), asleep)
        # A sleeping VM's spec has the size that it wakes with.
        return facts, Size(0, 0) if asleep else Size.of(vm.use)


def _amounts(size: Size, status: VmStatus | None, explanation: AgentExplanation | None) -> tuple[int | None, ...]:
    need = None if explanation is None else explanation.need
    permit, reserved = (None, None) if status is None else (status.permit, status.reserved)
    pairs = (size, need, permit, reserved)
    used = (None, None) if explanation is None else (explanation.used_cpu, explanation.used_mem)
    # Order of VM_COLUMNS.
    amounts: list[int | None] = []
    for pair in pairs:
        amounts += (None, None) if pair is None else (pair.cpu, pair.mem)
    return (*amounts, *used)


def node_samples(sample: ClusterSample) -> Iterator[tuple[NodeRecord, Row]]:
    """Yield each node in the scheduler's response, with its amounts in the order of ``NODE_COLUMNS``."""
    for node in items(sample.nodes or {}, "nodes"):
        name = text(node, "name")
        total, reserved = size_at(node, "total"), size_at(node, "reserved")
        # Otherwise the node would look empty.
        if not name or total is None or reserved is None:
            continue
        uses = [size for size in (size_at(pod, "use") for pod in items(node, "pods")) if size is not None]
        used = sum(uses, Size(0, 0))
        mark = size_at(node, "watermark")
        marks = (None, None) if mark is None else (mark.cpu, mark.mem)
        facts = NodeRecord.of(name, sample.price_keys.get(name, ()))
        yield facts, (total.cpu, total.mem, reserved.cpu, reserved.mem, used.cpu, used.mem, *marks)


_ENDED: Final = frozenset({"Succeeded", "Failed"})


def read_move(at: Millis, migration: JsonObject, before: MoveRecord | None) -> MoveRecord:
    """Decode a migration at the time ``at``. ``before`` is its earlier record; an ended one does not change.

    >>> seen = {"metadata": {"namespace": "d", "name": "m"}, "spec": {"vmName": "db"}, "status": {"phase": "Running"}}
    >>> move = read_move(5, seen, None)
    >>> str(move.vm), move.phase, move.since, read_move(9, seen, move).until
    ('d/db', 'Running', 5, 9)
    """
    name, phase = name_of(migration), _text_at(migration, "status", "phase") or "Pending"
    # The identical object tells the caller that nothing has changed.
    if before is not None and before.phase in _ENDED and before.phase == phase:
        return before
    # Its creation time, unless the API server's clock is ahead.
    began = min([at, *_times([text(migration, "metadata", "creationTimestamp")])])
    annotations, downtime = annotations_of(migration), integer(migration, "status", "info", "downtimeMs")
    since = began if before is None else before.since
    return MoveRecord(
        name=name,
        vm=ObjectName(name.namespace, _text_at(migration, "spec", "vmName")),
        source=_text_at(migration, "status", "sourceNode"),
        # The status has the target only once there is a target pod; the annotation has it from the start.
        target=_text_at(migration, "status", "targetNode") or shortened(annotations.get(ANNOTATION_TARGET_NODE, "")),
        phase=phase,
        since=since,
        until=_ended(migration, since, at) if phase in _ENDED else at,
        reason=shortened(annotations.get(ANNOTATION_REASON, "")),
        # Zero is a valid downtime.
        downtime=downtime if "downtimeMs" in child(migration, "status", "info") else None,
    )


def _text_at(migration: JsonObject, *path: str) -> str:
    return shortened(text(migration, *path))


def _ended(migration: JsonObject, since: Millis, seen: Millis) -> Millis:
    """End of a migration: the last change of its conditions, because a recorder may observe the end much later."""
    changed = _times(text(condition, "lastTransitionTime") for condition in items(migration, "status", "conditions"))
    # Clocks differ, so keep it between start and observation.
    return min(seen, max([since, *changed])) if changed else seen


def _times(texts: Iterable[str]) -> list[Millis]:
    return [int(moment * SECOND) for moment in map(parse_timestamp, texts) if moment is not None]


_NUMBERS: Final = re.compile(r"[0-9.]+")
_LONGEST: Final = 300
_MOST_SENTENCES: Final = 12
_MOST_CORES: Final = 1e6
_OLDEST_METRICS: Final = 300.0
"""Older metrics of a guest, in seconds, do not show its present need and use."""


class AgentExplanation(msgspec.Struct, frozen=True, gc=False):
    """An agent's explanation at ``at``: need, use of the guest, and sentences on its decisions."""

    at: Millis
    need: Size | None
    used_cpu: Amount | None
    used_mem: Amount | None
    sentences: tuple[str, ...]
    size: Size | None
    permit: Size | None
    denied: bool
    migrating: bool

    @property
    def decision_key(self) -> tuple[object, ...]:
        """A key that changes with each new decision."""
        # Ignore numbers in the sentence, which change with every measurement; relevant ones are separate.
        words = _NUMBERS.sub("#", self.sentences[0]) if self.sentences else ""
        return self.size, self.permit, self.denied, self.migrating, words


def read_explanation(at: Millis, obj: JsonObject) -> AgentExplanation:
    """Decode an agent's ``/explain`` response; missing amounts are None.

    >>> explanation = read_explanation(5, {"because": "idle", "metrics": {"cores_busy": 0.25, "mem_used": "1Mi"}})
    >>> explanation.used_cpu, explanation.used_mem, explanation.sentences
    (250, 1024, ('idle',))
    """
    age = child(obj, "metrics").get("age_seconds")
    is_old = isinstance(age, (int, float)) and age > _OLDEST_METRICS
    metrics = {} if is_old else child(obj, "metrics")
    return AgentExplanation(
        at=at,
        need=None if is_old else size_at(obj, "goal"),
        used_cpu=_cores(metrics.get("cores_busy")),
        used_mem=_kib(text(metrics, "mem_used")),
        sentences=_sentences(obj),
        size=size_at(obj, "size", "ordered"),
        permit=size_at(obj, "permit"),
        denied=bool(child(obj, "denied")),
        migrating=flag(obj, "migrating"),
    )


def new_decision(
    vm: ObjectName, before: AgentExplanation | None, explanation: AgentExplanation
) -> DecisionRecord | None:
    """The decision that is new since the last explanation; None if there is none."""
    if not explanation.sentences or (before is not None and before.decision_key == explanation.decision_key):
        return None
    return DecisionRecord(explanation.at, vm, "agent", explanation.sentences, explanation.size, explanation.denied)


def _sentences(obj: JsonObject) -> tuple[str, ...]:
    headline = text(obj, "because")
    parts = [
        f"{text(part, 'name')} needs {rounded_memory(text(part, 'need'))}: {text(part, 'because')}"
        for part in items(obj, "parts")
    ]
    guard = text(obj, "shrink_guard")
    sentences = [headline, *parts, *([f"Policy: {guard}"] if guard else [])]
    # The texts are truncated, but not interpreted.
    return tuple(sentence[:_LONGEST] for sentence in sentences if sentence)[:_MOST_SENTENCES]


def _cores(value: object) -> Amount | None:
    # A bool is an int, and NaN fails the comparison.
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < _MOST_CORES:
        return None
    # Rounded first, or 0.1 + 0.2 vCPUs would be 301 milli-vCPUs.
    return ceil(round(value * 1000, 6))


def _kib(quantity: str) -> Amount | None:
    try:
        return -(-Bytes.parse(quantity).value // 1024)
    except QuantityError:
        return None
