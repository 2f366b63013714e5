"""Decodes pods into facts for the ledger.

A pod runs a VM only if the VM, or a migration as its controller, owns it by UID. Labels prove nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Final, Literal

import msgspec

from protocol.field_errors import field_message
from protocol.kubernetes.objects import JsonObject, child, flag, items, name_of, text, texts, uid_of
from protocol.kubernetes.resources import MIGRATIONS
from protocol.messages import ObjectName
from protocol.names import (
    LABEL_ENABLED,
    LABEL_MAKE_ROOM,
    LABEL_VM_NAME,
    RUNNER_CONTAINER,
    VM_GROUP,
    VM_KIND,
)
from protocol.pod_database import is_pod_database
from protocol.runtime.kubernetes.watches.kinds import Watched
from protocol.units import ZERO, Resources
from protocol.virtual_machine import InvalidObjectError, parse_virtual_machine
from protocol.vm_arguments import SPEC_FLAG, ArgumentsError, unpacked, value_of
from scheduler_plugin.cluster.pods.databases import read_database
from scheduler_plugin.cluster.pods.large import most_requested, runners_of
from scheduler_plugin.cluster.pods.requests import counted_requests, deferred, other_requests, runner_requests
from scheduler_plugin.cluster.pods.shapes import (
    MAX_PARTS,
    Container,
    Metadata,
    Owner,
    Pod,
    PodMetadata,
    PodSpec,
    PodStatus,
)
from scheduler_plugin.cluster.scheduling_fields import placed_traits, pod_traits, prefers
from scheduler_plugin.cluster.scheduling_shapes import Affinity, Placed, PreferringSpec, Volume
from scheduler_plugin.constraints.model import PLAIN_POD, HostPort, PodTraits, Toleration
from scheduler_plugin.ledger.facts import PodFacts
from scheduler_plugin.texts import explanations

_LONGEST_REMEMBERED: Final = 4096
"""Characters. Longer arguments are not cached: anyone may create pods with megabytes of them."""


class _RunnerSpec(msgspec.Struct, frozen=True):
    guest: dict[str, object]


_SPEC: Final = msgspec.json.Decoder(_RunnerSpec)


def boots_with(containers: list[Container]) -> Resources:
    """Size with which the guest of these containers boots; zero if unknown."""
    # Only our controller's pods have ``args``. NeonVM's use ``command`` and boot with the VM's minimum memory.
    runner = next((container for container in containers if container.name == RUNNER_CONTAINER), None)
    words = [] if runner is None or not isinstance(runner.args, list) else runner.args
    dump = value_of([word for word in words if isinstance(word, str)], SPEC_FLAG)
    if not dump:
        return ZERO
    return _use.__wrapped__(dump) if len(dump) > _LONGEST_REMEMBERED else _use(dump)


@lru_cache(1024)
def _use(dump: str) -> Resources:
    try:
        guest = _SPEC.decode(unpacked(dump)).guest
        # The parser needs a whole object.
        return parse_virtual_machine({"metadata": {"namespace": "", "name": ""}, "spec": {"guest": guest}}).use
    except (ArgumentsError, InvalidObjectError, msgspec.DecodeError, ValueError, RecursionError):
        return ZERO


TERMINAL: Final = frozenset({"Succeeded", "Failed"})
"""Phases after which a pod needs nothing."""


def read_pod(obj: JsonObject) -> PodFacts:
    """Decode a Pod. Raises ``ValueError``."""
    try:
        pod = msgspec.convert(obj, Pod)
        facts = pod_facts(pod)
    except (ValueError, RecursionError) as error:
        raise ValueError(field_message(error)) from None
    # Constraints of other pods treat a terminating pod differently.
    is_terminating, others = bool(text(obj, "metadata", "deletionTimestamp")), other_requests(pod.spec)
    traits = pod_traits(
        texts(obj, "metadata", "labels"), child(obj, "spec"), is_terminating=is_terminating, others=others
    )
    # Avoid the copy for most pods.
    facts = (
        facts
        if traits is PLAIN_POD and not is_terminating
        else replace(facts, traits=traits, is_terminating=is_terminating)
    )
    return _with_database(facts, pod, obj) if _may_have_database(facts, pod.metadata) else facts


def _may_have_database(facts: PodFacts, meta: Metadata) -> bool:
    # Fast path for most pods.
    return (meta.labels or {}).get(LABEL_ENABLED) == "true" and facts.vm is None and not facts.finished


def _with_database(facts: PodFacts, pod: Pod, obj: JsonObject) -> PodFacts:
    """The facts with the pod's postgres if it has opted in."""
    if not is_pod_database(obj):
        return facts
    try:
        database = read_database(obj)
        _, overhead = counted_requests(pod.metadata, pod.spec, pod.status or PodStatus(), database.container)
    except InvalidObjectError as error:
        # An ordinary pod.
        return replace(facts, resize_problem=str(error))
    # A deferred resize counts like a denial of a VM.
    return replace(facts, vm=database.name, vm_uid=facts.uid, overhead=overhead, make_room=True, database=database)


def pod_at_most(obj: JsonObject, reason: str) -> PodFacts:
    """Facts of a Pod that cannot be decoded for ``reason``, from its readable parts.

    Its need is unknown, unless it is only too large. Never raises.
    """
    name = name_of(obj)
    owners = [_owner_at_most(owner) for owner in items(obj, "metadata", "ownerReferences")]
    meta = PodMetadata(name.name, name.namespace, uid_of(obj), texts(obj, "metadata", "labels"), owners)
    spec = PodSpec(nodeName=text(obj, "spec", "nodeName"), schedulerName=text(obj, "spec", "schedulerName"))
    facts = pod_facts(Pod(meta, spec, PodStatus(text(obj, "status", "phase"))))
    if (most := most_requested(obj)) is not None:
        runners = runners_of(obj)
        boots = ZERO if facts.vm is None or facts.migration is not None else boots_with(runners)
        bounded = replace(facts, requests=most, unreadable=reason, has_runner=facts.vm is None or bool(runners))
        return replace(bounded, overhead=ZERO if facts.vm is None else most, boots_with=boots)
    # Its containers are unknown, so one may be the runner.
    return replace(facts, unreadable=reason, has_runner=True, is_bounded=False)


def _owner_at_most(obj: JsonObject) -> Owner:
    kind, name, uid, version = (text(obj, key) for key in ("kind", "name", "uid", "apiVersion"))
    return Owner(kind, name, uid, version, flag(obj, "controller"))


def pod_facts(pod: Pod, traits: PodTraits = PLAIN_POD) -> PodFacts:
    """Facts of a pod. Raises ``ValueError``."""
    meta, status = pod.metadata, pod.status or PodStatus()
    vm, vm_uid, migration, migration_uid = _run_by(meta)
    requests, overhead = counted_requests(meta, pod.spec, status)
    return PodFacts(
        uid=meta.uid,
        name=ObjectName(meta.namespace, meta.name),
        requests=requests,
        vm=vm,
        node=pod.spec.nodeName or None,
        finished=status.phase in TERMINAL,
        migration=migration,
        scheduler=pod.spec.schedulerName or "",
        vm_uid=vm_uid,
        migration_uid=migration_uid,
        # Only a VM's pod has a part outside the guest.
        overhead=ZERO if vm is None else overhead,
        unschedulable="" if pod.spec.nodeName else _unschedulable(status),
        deferred=deferred(pod, status, requests) if vm is None else ZERO,
        make_room=vm is None and (meta.labels or {}).get(LABEL_MAKE_ROOM) == "true",
        traits=traits,
        has_runner=vm is None or any(container.name == RUNNER_CONTAINER for container in pod.spec.containers),
        runner=None if vm is None else runner_requests(meta, pod.spec, status),
        # A migration's target does not boot: its guest arrives at its present size.
        boots_with=ZERO if vm is None or migration is not None else boots_with(pod.spec.containers),
        # A host-network pod shares its node's address.
        addresses=() if pod.spec.hostNetwork else _addresses(status),
    )


def _addresses(status: PodStatus) -> tuple[str, ...]:
    if status.phase in TERMINAL:
        return ()
    # Dual-stack: podIPs has one per family, the first equal to podIP.
    addresses = (status.podIP, *(ip.ip for ip in status.podIPs or ()))
    return tuple(dict.fromkeys(address for address in addresses if address))


def _unschedulable(status: PodStatus) -> str:
    for condition in status.conditions or ():
        if (condition.type, condition.status, condition.reason) == ("PodScheduled", "False", "Unschedulable"):
            return condition.message or explanations.FOUND_NO_NODE_YET
    return ""


def _run_by(meta: Metadata) -> tuple[ObjectName | None, str, ObjectName | None, str]:
    """The VM that the pod runs, and the migration whose target it is, each with UID.

    The VM owns a target only after the migration succeeded; before that the target's label names the VM. A source has
    the migration as an owner too, but not as its controller.
    """
    # By group: another group may have the same kind. The group is empty if ``apiVersion`` was not read.
    owners = [
        reference
        for reference in meta.ownerReferences or ()
        if reference.apiVersion.partition("/")[0] in ("", VM_GROUP)
    ]
    for owner in owners:
        if owner.kind == MIGRATIONS.kind and owner.controller:
            vm = (meta.labels or {}).get(LABEL_VM_NAME)
            migration = ObjectName(meta.namespace, owner.name)
            return ObjectName(meta.namespace, vm) if vm else None, "", migration, owner.uid
    for owner in owners:
        # The API server accepts any owner. A name with a slash is a database in a pod, which owns no pods.
        if owner.kind == VM_KIND and "/" not in owner.name:
            return ObjectName(meta.namespace, owner.name), owner.uid, None, ""
    return None, "", None, ""


class _WatchedMetadata(PodMetadata, frozen=True):
    deletionTimestamp: str | None = None  # noqa: N815 - the name in the API


class _WatchedContainer(Container, frozen=True):
    ports: list[HostPort] | None = None


class _WatchedSpec(PodSpec, frozen=True):
    containers: Annotated[list[_WatchedContainer], msgspec.Meta(max_length=MAX_PARTS)] = msgspec.field(  # type: ignore[assignment]  # read only
        default_factory=list
    )
    volumes: list[Volume] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    affinity: Affinity | None = None


class _WatchedPod(Pod, frozen=True):
    metadata: _WatchedMetadata
    spec: _WatchedSpec


class _WatchedEvent(msgspec.Struct, frozen=True):
    # Other types fail to decode and take the general path.
    type: Literal["ADDED", "MODIFIED"]
    # ``object`` is a builtin.
    pod: _WatchedPod = msgspec.field(name="object")


class _HeaderMetadata(msgspec.Struct, frozen=True):
    name: str
    namespace: str
    uid: str
    resourceVersion: str  # noqa: N815 - the name in the API


class _HeaderPod(msgspec.Struct, frozen=True):
    metadata: _HeaderMetadata
    spec: PreferringSpec


_POD: Final = msgspec.json.Decoder(Pod)
_WATCHED: Final = msgspec.json.Decoder(_WatchedEvent)
_HEADER: Final = msgspec.json.Decoder(_HeaderPod)


class PodHeader(msgspec.Struct, frozen=True, gc=False):
    """Version and name of a pod, and whether it has preferences (see ``prefers``)."""

    name: ObjectName
    uid: str
    version: str
    has_preferences: bool


def pod_header(body: bytes | msgspec.Raw) -> PodHeader | None:
    """Name, version and preferences of a pod in a request; None if it cannot be decoded."""
    try:
        pod = _HEADER.decode(body)
    except (ValueError, RecursionError):
        return None
    meta = pod.metadata
    return PodHeader(ObjectName(meta.namespace, meta.name), meta.uid, meta.resourceVersion, prefers(pod.spec))


def decode_pod(body: bytes | msgspec.Raw) -> PodFacts:
    """Decode a Pod without the traits that only constraints of other pods use. Raises ``ValueError``."""
    try:
        return pod_facts(_POD.decode(body))
    except (ValueError, RecursionError) as error:
        raise ValueError(field_message(error)) from None


_OPTED_IN: Final = f'"{LABEL_ENABLED}":"true"'.encode()
_OF_VM: Final = f'"{LABEL_VM_NAME}":'.encode()


def decode_watched_pod(line: bytes) -> Watched[PodFacts] | None:
    """Decode an added or changed Pod from a watch line; None for other lines, for pods that may have a database, or on
    errors.
    """
    # Only the general path reads annotations. A text search is much cheaper than decoding the line twice.
    if _OPTED_IN in line and _OF_VM not in line:
        return None
    try:
        # Must equal the result of read_pod: both fill one cache.
        pod = _WATCHED.decode(line).pod
        meta, spec = pod.metadata, pod.spec
        ports = [port for container in spec.containers for port in container.ports or ()]
        is_terminating, others = bool(meta.deletionTimestamp), other_requests(spec)
        placed = Placed(spec.volumes, spec.tolerations, spec.affinity)
        traits = placed_traits(meta.labels or {}, placed, ports, is_terminating=is_terminating, others=others)
        facts = pod_facts(pod, traits)
        # The text search depends on the server's JSON spacing and may miss the label.
        if _may_have_database(facts, meta):
            return None
        # Avoid the copy for most pods.
        facts = replace(facts, is_terminating=True) if is_terminating else facts
    except (ValueError, RecursionError):
        return None
    return Watched(facts.name, meta.uid, meta.resourceVersion, facts)
