"""Decodes samples and migrations of a cluster: API objects, the scheduler's ``/nodes``, explanations of agents."""

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
    items,
    labels_of,
    name_of,
    shortened,
    text,
    uid_of,
    version_of,
    whole,
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
    """A cluster at ``at``.

    ``vms``: VirtualMachines and opted-in pods as JSON; ``nodes``: the scheduler's ``/nodes`` response, None if none;
    ``price_keys``: of each node, by its labels; ``migrations``: VirtualMachineMigrations as JSON.
    """

    at: Millis
    vms: Sequence[JsonObject]
    nodes: JsonObject | None = None
    price_keys: Mapping[str, tuple[str, ...]] = {}
    migrations: Sequence[JsonObject] = ()


class VmStatus(msgspec.Struct, frozen=True, gc=False):
    """The scheduler's report of one VM, summed over its two pods during a migration."""

    reserved: Size
    permit: Size | None
    denied: Size
    migrating: bool


def keys_of_nodes(nodes: Iterable[JsonObject]) -> dict[str, tuple[str, ...]]:
    """Price keys of each Node that has any.

    >>> keys_of_nodes([{"metadata": {"name": "n1", "labels": {"node.kubernetes.io/instance-type": "m5"}}}])
    {'n1': ('m5',)}
    """
    keys_by_node = {name_of(node).name: price_keys(labels_of(node)) for node in nodes}
    return {node: keys for node, keys in keys_by_node.items() if keys}


def standings(nodes: JsonObject | None) -> dict[str, VmStatus]:
    """Status of each VM (``namespace/name``) in the scheduler's ``/nodes``, without unreadable pods."""
    by_vm: dict[str, VmStatus] = {}
    for pod in (pod for node in items(nodes or {}, "nodes") for pod in items(node, "pods")):
        vm, standing = text(pod, "vm"), _standing(pod)
        if vm and standing is not None:
            # Two pods during a migration.
            by_vm[vm] = _together(by_vm[vm], standing) if vm in by_vm else standing
    return by_vm


def _standing(pod: Json) -> VmStatus | None:
    reserved, denied = size_at(pod, "reserved"), size_at(pod, "denied")
    if reserved is None:
        return None
    return VmStatus(reserved, size_at(pod, "permit"), denied or Size(0, 0), flag(pod, "migrating"))


def _together(one: VmStatus, other: VmStatus) -> VmStatus:
    return VmStatus(
        # Both nodes reserve for it; permits and denials are the VM's.
        one.reserved + other.reserved,
        one.permit or other.permit,
        Size(max(one.denied.cpu, other.denied.cpu), max(one.denied.mem, other.denied.mem)),
        migrating=True,
    )


class VmReader:
    """Decodes samples of VMs. ``labels`` are the recorded label keys."""

    def __init__(self, labels: Sequence[str] = ()) -> None:
        self._labels = tuple(sorted(set(labels)))
        self._known: dict[ObjectName, tuple[str, tuple[VmRecord, Size]]] = {}

    def samples(
        self, look: ClusterSample, accounts: Mapping[ObjectName, Account], oldest: Millis
    ) -> Iterator[tuple[VmRecord, Row, VmStatus | None]]:
        """Each readable VM, its amounts in the order of ``VM_COLUMNS``, and the scheduler's status.

        Explanations before ``oldest`` do not count.
        """
        of_scheduler = standings(look.nodes)
        current: dict[ObjectName, tuple[str, tuple[VmRecord, Size]]] = {}
        for obj in look.vms:
            name, version = database_name(obj), version_of(obj)
            previous = self._known.get(name)
            # Parsing is expensive: skip unchanged versions.
            parsed = previous[1] if previous is not None and version and previous[0] == version else self._read(obj)
            if parsed is not None:
                current[name] = version, parsed
                standing, account = of_scheduler.get(str(name)), accounts.get(name)
                # An old explanation says nothing about the present need.
                fresh = account if account is not None and account.at >= oldest else None
                yield parsed[0], _amounts(parsed[1], standing, fresh), standing
        # Replaced, to drop deleted VMs.
        self._known = current

    def _read(self, obj: JsonObject) -> tuple[VmRecord, Size] | None:
        try:
            vm = parse_database(obj)
        # No sample of an unreadable VM.
        except InvalidObjectError:
            return None
        labels = tuple((key, vm.labels[key][:_LONGEST_LABEL]) for key in self._labels if key in vm.labels)
        least, most = Size.of(vm.bounds.min), Size.of(vm.bounds.max)
        group = vm.labels.get(LABEL_GROUP, "")
        asleep = vm.phase == ASLEEP
        facts = VmRecord(vm.name, shortened(vm.node or ""), group, least, most, labels, uid_of(obj), asleep)
        # A sleeping VM's spec has the size that it wakes with.
        return facts, Size(0, 0) if asleep else Size.of(vm.use)


def _amounts(size: Size, standing: VmStatus | None, account: Account | None) -> tuple[int | None, ...]:
    need = None if account is None else account.need
    permit, reserved = (None, None) if standing is None else (standing.permit, standing.reserved)
    pairs = (size, need, permit, reserved)
    used = (None, None) if account is None else (account.used_cpu, account.used_mem)
    # Order of VM_COLUMNS.
    amounts: list[int | None] = []
    for pair in pairs:
        amounts += (None, None) if pair is None else (pair.cpu, pair.mem)
    return (*amounts, *used)


def node_samples(look: ClusterSample) -> Iterator[tuple[NodeRecord, Row]]:
    """Each node that the scheduler knows, in ``NODE_COLUMNS``; ``used`` are the sizes of its VMs."""
    for node in items(look.nodes or {}, "nodes"):
        name = text(node, "name")
        total, reserved = size_at(node, "total"), size_at(node, "reserved")
        # Otherwise the node would look empty.
        if not name or total is None or reserved is None:
            continue
        uses = [size for size in (size_at(pod, "use") for pod in items(node, "pods")) if size is not None]
        used = sum(uses, Size(0, 0))
        mark = size_at(node, "watermark")
        marks = (None, None) if mark is None else (mark.cpu, mark.mem)
        facts = NodeRecord.of(name, look.price_keys.get(name, ()))
        yield facts, (total.cpu, total.mem, reserved.cpu, reserved.mem, used.cpu, used.mem, *marks)


_ENDED: Final = frozenset({"Succeeded", "Failed"})


def read_move(at: Millis, migration: JsonObject, before: MoveRecord | None) -> MoveRecord:
    """A migration seen at ``at``, and earlier as ``before``; an ended one keeps its end.

    >>> seen = {"metadata": {"namespace": "d", "name": "m"}, "spec": {"vmName": "db"}, "status": {"phase": "Running"}}
    >>> move = read_move(5, seen, None)
    >>> str(move.vm), move.phase, move.since, read_move(9, seen, move).until
    ('d/db', 'Running', 5, 9)
    """
    name, phase = name_of(migration), _text_at(migration, "status", "phase") or "Pending"
    # The same object tells the caller that nothing is new.
    if before is not None and before.phase in _ENDED and before.phase == phase:
        return before
    # Its creation, unless the API server's clock is ahead.
    began = min([at, *_times([text(migration, "metadata", "creationTimestamp")])])
    annotations, downtime = annotations_of(migration), whole(migration, "status", "info", "downtimeMs")
    since = began if before is None else before.since
    return MoveRecord(
        name=name,
        vm=ObjectName(name.namespace, _text_at(migration, "spec", "vmName")),
        source=_text_at(migration, "status", "sourceNode"),
        # The status has the target only with a target pod; the order has it from the start.
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
    """Last change of its conditions, if any: a recorder may see the end much later."""
    changed = _times(text(condition, "lastTransitionTime") for condition in items(migration, "status", "conditions"))
    # Clocks differ: between start and observation.
    return min(seen, max([since, *changed])) if changed else seen


def _times(texts: Iterable[str]) -> list[Millis]:
    return [int(moment * SECOND) for moment in map(parse_timestamp, texts) if moment is not None]


_NUMBERS: Final = re.compile(r"[0-9.]+")
_LONGEST: Final = 300
_MOST_SENTENCES: Final = 12
_MOST_CORES: Final = 1e6


class Account(msgspec.Struct, frozen=True, gc=False):
    """An agent's explanation at ``at``: need, the guest's use, and decisions in sentences."""

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
    def gist(self) -> tuple[object, ...]:
        """Key that changes with a new decision."""
        # Numbers in the sentence change with every measurement: compare its words; relevant numbers are separate.
        words = _NUMBERS.sub("#", self.sentences[0]) if self.sentences else ""
        return self.size, self.permit, self.denied, self.migrating, words


def read_account(at: Millis, obj: JsonObject) -> Account:
    """Decode an agent's ``/explain`` response; missing parts are None.

    >>> account = read_account(5, {"because": "idle", "metrics": {"cores_busy": 0.25, "mem_used": "1Mi"}})
    >>> account.used_cpu, account.used_mem, account.sentences
    (250, 1024, ('idle',))
    """
    metrics = child(obj, "metrics")
    return Account(
        at=at,
        need=size_at(obj, "goal"),
        used_cpu=_cores(metrics.get("cores_busy")),
        used_mem=_kib(text(metrics, "mem_used")),
        sentences=_sentences(obj),
        size=size_at(obj, "size", "ordered"),
        permit=size_at(obj, "permit"),
        denied=bool(child(obj, "denied")),
        migrating=flag(obj, "migrating"),
    )


def decision_of(vm: ObjectName, before: Account | None, account: Account) -> DecisionRecord | None:
    """The new decision since the last explanation; None if there is none."""
    if not account.sentences or (before is not None and before.gist == account.gist):
        return None
    return DecisionRecord(account.at, vm, "agent", account.sentences, account.size, account.denied)


def _sentences(obj: JsonObject) -> tuple[str, ...]:
    headline = text(obj, "because")
    parts = [
        f"{text(part, 'name')} needs {rounded_memory(text(part, 'need'))}: {text(part, 'because')}"
        for part in items(obj, "parts")
    ]
    guard = text(obj, "shrink_guard")
    sentences = [headline, *parts, *([f"Policy: {guard}"] if guard else [])]
    # Texts are truncated, never interpreted.
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
