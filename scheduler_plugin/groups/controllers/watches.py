"""References between groups and objects, to find the groups to reconcile when an object changes, and pods of targets.

A change of an object only updates references and queues groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from protocol.kubernetes.objects import (
    Json,
    JsonObject,
    integer,
    is_terminating,
    labels_of,
    name_of,
    selects,
    text,
    uid_of,
)
from protocol.kubernetes.objects import texts as strings
from protocol.kubernetes.resources import HORIZONTAL_AUTOSCALERS, PODS, VERTICAL_AUTOSCALERS, VM_GROUPS, Resource
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.watches.kinds import FactChange
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.controllers.companions import original_of
from scheduler_plugin.groups.controllers.controller import Cache, GroupsContext, QueuedController
from scheduler_plugin.groups.controllers.policies import DesiredState, GroupFacts, GroupPolicy
from scheduler_plugin.groups.objects.autoscalers import REFERENCES, sizing_mode, target_of
from scheduler_plugin.groups.objects.pods import is_of_other, pod_selector
from scheduler_plugin.groups.objects.targets import OF_PODS, TARGET_KINDS, InvalidSpecError, TargetRef, oom_kills
from scheduler_plugin.groups.objects.vm_use import with_annotated_status
from scheduler_plugin.groups.objects.writes import is_owned_by
from scheduler_plugin.texts.explanations import named

Key = tuple[str, str, ObjectName]
"""API group, kind and name of an object."""

GroupKey = tuple[str, ObjectName]
"""Kind and name of a group."""

K = TypeVar("K")
V = TypeVar("V")


class Index(Generic[K, V]):
    """Sets of values by key. A value may be under several keys; keys without values are removed."""

    def __init__(self) -> None:
        self._at: dict[K, set[V]] = {}

    def at(self, key: K) -> Set[V]:
        """Values at ``key``."""
        return self._at.get(key, frozenset())

    def __iter__(self) -> Iterator[K]:
        """Keys with values."""
        return iter(self._at)

    def move(self, value: V, before: Iterable[K], after: Iterable[K]) -> None:
        """Move ``value`` from the keys ``before`` to ``after``."""
        for key in before:
            values = self._at.get(key, set())
            values.discard(value)
            if not values:
                self._at.pop(key, None)
        for key in after:
            self._at.setdefault(key, set()).add(value)


class _Reference(NamedTuple):
    created: str
    target: Key | None
    keys: frozenset[Key]


class References:
    """References of all groups, by group and by object."""

    def __init__(self) -> None:
        self._of_group: dict[GroupKey, _Reference] = {}
        self._by_object: Index[Key, GroupKey] = Index()

    def set(self, group: GroupKey, created: str, target: Key | None, others: Iterable[Key] = ()) -> None:
        """Replace the references of the group, which was created at ``created``."""
        self.drop(group)
        keys = frozenset(others) | (frozenset() if target is None else {target})
        self._of_group[group] = _Reference(created, target, keys)
        self._by_object.move(group, (), keys)

    def drop(self, group: GroupKey) -> None:
        """Remove a deleted group."""
        record = self._of_group.pop(group, None)
        self._by_object.move(group, () if record is None else record.keys, ())

    def target_of(self, group: GroupKey) -> Key | None:
        """The group's target, if known."""
        record = self._of_group.get(group)
        return None if record is None else record.target

    def targets_in(self, namespace: str) -> frozenset[Key]:
        """Targets of the namespace's groups."""
        targets = (record.target for record in self._of_group.values())
        return frozenset(key for key in targets if key is not None and key[2].namespace == namespace)

    def groups_at(self, key: Key) -> list[GroupKey]:
        """Groups that refer to the object."""
        return sorted(self._by_object.at(key), key=str)

    def scaling(self, key: Key | None, but: GroupKey | None = None) -> list[str]:
        """Kind and name of each group that scales the object, except ``but``, oldest first."""
        groups = () if key is None else self._by_object.at(key)
        # Oldest first, so that the message is stable.
        claims = sorted((self._of_group[group].created, *group) for group in groups if group != but)
        return [f"{kind} {name.name}" for _, kind, name in claims if self._of_group[kind, name].target == key]


def key_of(resource: Resource, name: ObjectName) -> Key:
    """Key of an object in references."""
    return resource.group, resource.kind, name


_ANY: Final = ("", "")  # stands for a label that all pods have; a real one has a key


class PodIndex:
    """Index of all cached pods. ``on_kill`` is called with a pod in which a container was OOM-killed."""

    def __init__(self, cache: Cache, on_kill: Callable[[JsonObject], None]) -> None:
        self._cache = cache
        self._on_kill = on_kill
        self._by_label: Index[tuple[str, str, str], ObjectName] = Index()
        cache.listen(PODS, self._changed)

    def of(self, target: JsonObject) -> list[Json]:
        """Pods of a Deployment, StatefulSet, ReplicaSet or Cluster, by name, without pods of other controllers."""
        selector, namespace = pod_selector(target), name_of(target).namespace
        labels = (_ANY, *strings(selector, "matchLabels").items())
        # A pod must have all labels, so search only those with the rarest one.
        names = min((self._by_label.at((namespace, *label)) for label in labels), key=len)
        pods = (self._cache.get(PODS, name) for name in sorted(names, key=str))
        selected = (pod for pod in pods if pod is not None and selects(selector, labels_of(pod)))
        return [pod for pod in selected if not is_of_other(pod, target, self._cache.get)]

    def _changed(self, change: FactChange[Json]) -> None:
        before, after = (
            set() if pod is None else {(change.name.namespace, *label) for label in (_ANY, *labels_of(pod).items())}
            for pod in (change.before, change.after)
        )
        self._by_label.move(change.name, before, after)
        # Only for new kills, because each event includes earlier ones.
        if change.after is not None and set(oom_kills(change.after)) - set(oom_kills(change.before or {})):
            self._on_kill(change.after)


REFERENCED_KINDS: Final = (*TARGET_KINDS.values(), HORIZONTAL_AUTOSCALERS, VERTICAL_AUTOSCALERS)
"""Kinds that a group may refer to."""

NO_VPAS: Final = ("SizesUnknown", "KindMissing", texts.NO_VPAS)


class GroupWatches:
    """Tracks references between the groups of all ``policies`` and the cluster's objects."""

    def __init__(
        self, context: GroupsContext, policies: Iterable[GroupPolicy], controllers: Mapping[str, QueuedController]
    ) -> None:
        self._context = context
        self._cache = cache = context.cache
        self._controllers = controllers
        self._references = References()
        self._autoscalers: Index[Key, tuple[Resource, ObjectName]] = Index()
        self._adopters: Index[GroupKey, tuple[Resource, ObjectName]] = Index()
        self.pods = PodIndex(cache, self._ran_out_of_memory)
        for policy in policies:
            cache.listen(policy.kind, partial(self._group_changed, policy))
        for kind in REFERENCED_KINDS:
            cache.listen(kind, partial(self._object_changed, kind))

    def facts(self, policy: GroupPolicy, group: JsonObject) -> GroupFacts:
        """Gather the facts on one group and its objects."""
        try:
            desired = policy.desired(group)
        except InvalidSpecError as error:
            return GroupFacts(group, fault=str(error))
        # Without the VPA CRD the group goes on, with a condition that says so.
        if desired.vpa is not None and self._cache.lacks(VERTICAL_AUTOSCALERS):
            desired = replace(desired, vpa=None, remarks=(*desired.remarks, NO_VPAS))
        name, kind = name_of(group), desired.target.resource
        companions: dict[Resource, JsonObject | None] = {}
        for resource, companion in desired.companions.items():
            autoscaler = self._cache.get(resource, ObjectName(name.namespace, companion.name))
            # For VMs our annotation takes precedence over the status.
            companions[resource] = (
                autoscaler if autoscaler is None or kind in OF_PODS else with_annotated_status(autoscaler)
            )
        target = self._cache.get(kind, ObjectName(name.namespace, desired.target.name))
        # The pods of VMs are sized with their VMs.
        pods = () if target is None or kind not in OF_PODS else self.pods.of(target)
        return GroupFacts(
            group,
            desired.adjusted_for_agents(pods),
            target=target,
            hpa=companions.get(HORIZONTAL_AUTOSCALERS),
            vpa=companions.get(VERTICAL_AUTOSCALERS),
            rivals=tuple(self._references.scaling(_key(desired.target, name.namespace), (policy.kind.kind, name))),
            others=tuple(self._other_writers(group, desired)),
            pods=tuple(pods),
            pause=timedelta(seconds=self._context.interval),
        )

    def desired(self, policy: GroupPolicy, group: JsonObject) -> DesiredState | None:
        """The desired objects of the group; None if it is invalid."""
        try:
            return policy.desired(group)
        except InvalidSpecError:
            return None

    def adopting_groups(self, kind: str) -> list[ObjectName]:
        """Groups of that kind, including deleted ones, that have changed an HPA or VPA which they do not own."""
        # From the records on the objects, so that groups that were deleted while no process ran are included.
        return [name for of_kind, name in self._adopters if of_kind == kind]

    def adopted_by(self, kind: str, name: ObjectName) -> list[tuple[Resource, JsonObject]]:
        """HPAs and VPAs that the group has changed and does not own."""
        changed = sorted(self._adopters.at((kind, name)), key=str)
        pairs = ((resource, self._cache.get(resource, object_name)) for resource, object_name in changed)
        return [(resource, obj) for resource, obj in pairs if obj is not None and not is_terminating(obj)]

    def replica_writers(self, kind: Resource, name: ObjectName) -> list[str]:
        """Groups and HPAs that scale the object."""
        key = key_of(kind, name)
        hpas = (hpa for hpa, _ in self._autoscalers_of(HORIZONTAL_AUTOSCALERS, key))
        return [*self._references.scaling(key), *(f"{HORIZONTAL_AUTOSCALERS.kind} {hpa}" for hpa in hpas)]

    def _other_writers(self, group: JsonObject, desired: DesiredState) -> Iterator[str]:
        """Describe foreign HPAs and VPAs that act on the group's target.

        Foreign HPAs matter only if the group has an HPA, foreign VPAs only if it writes sizes.
        """
        key = _key(desired.target, name_of(group).namespace)
        if desired.hpa is not None:
            hpas = self._foreign(HORIZONTAL_AUTOSCALERS, key, group, desired.hpa.name)
            if names := named([name for name, _ in hpas]):
                yield texts.SCALED_BY.format(kind=HORIZONTAL_AUTOSCALERS.kind, names=names)
        if desired.sizes:
            vpas = self._foreign(VERTICAL_AUTOSCALERS, key, group, "" if desired.vpa is None else desired.vpa.name)
            # A VPA with mode Off only recommends.
            modes = [texts.SIZING_MODE.format(name=name, mode=mode) for name, vpa in vpas if (mode := sizing_mode(vpa))]
            if modes:
                yield texts.SIZED_BY.format(kind=VERTICAL_AUTOSCALERS.kind, names=named(modes))

    def _foreign(self, kind: Resource, key: Key, group: JsonObject, own: str) -> Iterator[tuple[str, JsonObject]]:
        for name, autoscaler in self._autoscalers_of(kind, key):
            # Also by name, because the group does not own an adopted one.
            if name != own and not is_owned_by(autoscaler, group):
                yield name, autoscaler

    def _autoscalers_of(self, kind: Resource, key: Key) -> Iterator[tuple[str, JsonObject]]:
        """HPAs, or VPAs, that refer to the object and are not terminating."""
        names = sorted((name for of_kind, name in self._autoscalers.at(key) if of_kind is kind), key=str)
        for name in names:
            autoscaler = self._cache.get(kind, name)
            if autoscaler is not None and not is_terminating(autoscaler) and _target_key(kind, autoscaler) == key:
                yield name.name, autoscaler

    def _group_changed(self, policy: GroupPolicy, change: FactChange[Json]) -> None:
        kind, name = policy.kind.kind, change.name
        if is_status_only(change):  # usually our own write; reconciling now would skip the pause after a refusal
            return
        before = self._references.target_of((kind, name))
        if change.after is None or is_terminating(change.after):
            # A terminating group must not block another one with the same target.
            self._references.drop((kind, name))
        else:
            created = text(change.after, "metadata", "creationTimestamp")
            self._references.set((kind, name), created, *self._keys(policy, change.after))
        self._enqueue(kind, name)
        # Also the old target, because other groups may wait for it.
        for key in {before, self._references.target_of((kind, name))} - {None}:
            self._target_changed(key)

    def _object_changed(self, kind: Resource, change: FactChange[Json]) -> None:
        self._enqueue_all(key_of(kind, change.name))
        if kind not in REFERENCES:
            return
        autoscaler, sides = (kind, change.name), (change.before, change.after)
        # The record may name another group than before.
        before, after = ([] if obj is None else _adopting_groups(change.name, obj) for obj in sides)
        self._adopters.move(autoscaler, before, after)
        for holder in after:
            self._enqueue(*holder)
        old, new = ([] if obj is None else [_target_key(kind, obj)] for obj in sides)
        self._autoscalers.move(autoscaler, old, new)
        for key in {*old, *new}:
            self._target_changed(key)

    def _keys(self, policy: GroupPolicy, group: JsonObject) -> tuple[Key | None, list[Key]]:
        desired, namespace = self.desired(policy, group), name_of(group).namespace
        if desired is None:
            return None, []
        companions = [
            key_of(kind, ObjectName(namespace, companion.name)) for kind, companion in desired.companions.items()
        ]
        return _key(desired.target, namespace), companions

    def _ran_out_of_memory(self, pod: JsonObject) -> None:
        for key in self._references.targets_in(name_of(pod).namespace):
            target = self._cache.get(TARGET_KINDS[key[:2]], key[2])
            if target is not None and selects(pod_selector(target), labels_of(pod)):
                self._enqueue_all(key)

    def _target_changed(self, key: Key | None) -> None:
        """Queue the groups that refer to an object whose writers have changed."""
        self._enqueue_all(key)
        # A group that scales itself stops while others write its replicas.
        if key is not None and key[:2] == (VM_GROUPS.group, VM_GROUPS.kind):
            self._enqueue(VM_GROUPS.kind, key[2])

    def _enqueue_all(self, key: Key | None) -> None:
        for kind, name in () if key is None else self._references.groups_at(key):
            self._enqueue(kind, name)

    def _enqueue(self, kind: str, name: ObjectName) -> None:
        if (controller := self._controllers.get(kind)) is not None:
            controller.enqueue(name)


def _adopting_groups(name: ObjectName, autoscaler: JsonObject) -> list[GroupKey]:
    """The group in the record of an HPA or VPA, if it has one."""
    original = original_of(autoscaler)
    return [] if original is None else [(original.kind, ObjectName(name.namespace, original.name))]


def is_status_only(change: FactChange[Json]) -> bool:
    """Return True if neither the spec changed nor the deletion began. Usually this is our own write."""
    versions = [(uid_of(obj), integer(obj, "metadata", "generation")) for obj in (change.before, change.after) if obj]
    return len(versions) == 2 and versions[0] == versions[1] and not is_terminating(change.after or {})


def _target_key(kind: Resource, autoscaler: JsonObject) -> Key:
    return _key(target_of(autoscaler, kind), name_of(autoscaler).namespace)


def _key(reference: TargetRef, namespace: str) -> Key:
    return reference.group, reference.kind, ObjectName(namespace, reference.name)
