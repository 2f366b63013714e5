"""Which groups refer to which objects: which to reconcile when one changes, and which scale the same target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from protocol.kubernetes.resources import Resource
from protocol.messages import ObjectName

Key = tuple[str, str, ObjectName]
"""API group, kind and name of an object."""


@dataclass(frozen=True, order=True, slots=True)
class Claimant:
    """A group that scales a target, ordered by age."""

    created: str
    kind: str
    namespace: str
    name: str

    @property
    def object_name(self) -> ObjectName:
        """Its name."""
        return ObjectName(self.namespace, self.name)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class References:
    """The references of all groups, by group and by object."""

    def __init__(self) -> None:
        self._of_group: dict[tuple[str, ObjectName], tuple[Claimant, Key | None, frozenset[Key]]] = {}
        self._by_object: dict[Key, set[tuple[str, ObjectName]]] = {}
        self._autoscalers: dict[Key, set[Key]] = {}
        self._written_by: dict[Key, Key] = {}

    def set(self, group: Claimant, target: Key | None, others: Iterable[Key] = ()) -> None:
        """Replace the references of the group."""
        # A group whose target has changed must not stay listed at the old one.
        self.drop(group.kind, group.object_name)
        group_key = (group.kind, group.object_name)
        keys = frozenset(others) | (frozenset() if target is None else {target})
        self._of_group[group_key] = (group, target, keys)
        for key in keys:
            self._by_object.setdefault(key, set()).add(group_key)

    def drop(self, kind: str, name: ObjectName) -> None:
        """The group is gone."""
        record = self._of_group.pop((kind, name), None)
        for key in () if record is None else record[2]:
            of_key = self._by_object[key]
            of_key.discard((kind, name))
            # Empty sets would pile up for every object that ever was a target.
            if not of_key:
                del self._by_object[key]

    def target_of(self, kind: str, name: ObjectName) -> Key | None:
        """Target of the group, if known."""
        record = self._of_group.get((kind, name))
        return None if record is None else record[1]

    def targets_in(self, namespace: str) -> frozenset[Key]:
        """Targets of a namespace's groups."""
        targets = (target for _, target, _ in self._of_group.values())
        return frozenset(key for key in targets if key is not None and key[2].namespace == namespace)

    def groups_at(self, key: Key) -> list[tuple[str, ObjectName]]:
        """Kind and name of every group that refers to the object."""
        return sorted(self._by_object.get(key, ()), key=str)

    def rivals(self, kind: str, name: ObjectName) -> list[str]:
        """Kind and name of every other group that scales the same target, the oldest first."""
        record = self._of_group.get((kind, name))
        if record is None or record[1] is None:
            return []
        return [str(claimant) for claimant in self._claimants(record[1]) if claimant != record[0]]

    def targeting(self, key: Key) -> list[str]:
        """Kind and name of every group that scales the object, the oldest first."""
        return [str(claimant) for claimant in self._claimants(key)]

    def _claimants(self, key: Key) -> list[Claimant]:
        claims = (self._of_group[group] for group in self._by_object.get(key, ()))
        # Oldest first, by the order of `Claimant`: the message names the same rivals at each look.
        return sorted(claimant for claimant, target, _ in claims if target == key)

    def note_autoscaler(self, autoscaler: Key, target: Key | None) -> None:
        """Update the target of an HPA or a VPA; None if it is gone."""
        before = self._written_by.pop(autoscaler, None)
        if before is not None:
            self._autoscalers[before].discard(autoscaler)
            if not self._autoscalers[before]:
                del self._autoscalers[before]
        if target is not None:
            self._written_by[autoscaler] = target
            self._autoscalers.setdefault(target, set()).add(autoscaler)

    def autoscalers_at(self, key: Key, kind: Resource) -> list[ObjectName]:
        """Every HPA, or every VPA, that is about the object."""
        return sorted((name for _, of_kind, name in self._autoscalers.get(key, ()) if of_kind == kind.kind), key=str)


def key_of(resource: Resource, name: ObjectName) -> Key:
    """Key by which an object is referred to."""
    return resource.group, resource.kind, name
