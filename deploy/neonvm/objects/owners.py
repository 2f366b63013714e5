"""Owner references of pods and migrations (pure).

An object is deleted with its owners. The target pod of a migration passes from the migration to the VM.
"""

from __future__ import annotations

from collections.abc import Callable

from deploy.kube.informer import Informer, ObjectChange
from protocol.kubernetes.objects import Json, items, name_of, text, uid_of
from protocol.kubernetes.resources import MIGRATIONS, Resource
from protocol.messages import ObjectName


def owner_reference(kind: Resource, owner: Json, *, controller: bool = True) -> Json:
    """The reference that makes ``owner`` an owner; the one that manages the object if it is its ``controller``."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": name_of(owner).name,
        "uid": uid_of(owner),
        "controller": controller,
        # No owner waits for what it owns: finalizers see to that. True would need the right to update the owner's
        # finalizers in some clusters.
        "blockOwnerDeletion": False,
    }


def is_owned_by(found: Json, owner: Json) -> bool:
    """Return True if ``owner`` is among the owners of ``found``."""
    return any(text(reference, "uid") == uid_of(owner) for reference in items(found, "metadata", "ownerReferences"))


def migration_of(pod: Json) -> str:
    """The name of the migration that owns ``pod``; empty if none does."""
    # A migration also owns the pod that its guest leaves, but without controlling it.
    owners = [
        reference for reference in items(pod, "metadata", "ownerReferences") if reference.get("controller") is True
    ]
    return next((text(reference, "name") for reference in owners if text(reference, "kind") == MIGRATIONS.kind), "")


class ByVm:
    """The objects of one kind, by VM. ``vm_of`` names the VM of an object, empty if it has none. ``on_change`` gets the
    name of every VM with a changed object.
    """

    def __init__(self, found: Informer, vm_of: Callable[[Json], str], on_change: Callable[[ObjectName], None]) -> None:
        self._informer = found
        self._vm_of = vm_of
        self._on_change = on_change
        self._names: dict[ObjectName, set[ObjectName]] = {}
        found.listen(self._changed)

    def of(self, vm: ObjectName) -> list[Json]:
        """The objects of ``vm``, the oldest first."""
        objects = [cached for name in self._names.get(vm, ()) if (cached := self._informer.get(name)) is not None]
        # By age and then by name, so that every leader sees the same order.
        return sorted(objects, key=lambda cached: (text(cached, "metadata", "creationTimestamp"), name_of(cached).name))

    def _changed(self, change: ObjectChange) -> None:
        # A relabelled object concerns two VMs: the one it has left and the one it belongs to.
        for version in (change.before, change.after):
            if version is not None and (vm := self._vm_of(version)):
                self._note(ObjectName(change.name.namespace, vm), change)

    def _note(self, vm: ObjectName, change: ObjectChange) -> None:
        names = self._names.setdefault(vm, set())
        if change.after is not None and self._vm_of(change.after) == vm.name:
            names.add(change.name)
        else:
            names.discard(change.name)
        if not names:
            # VMs come and go; without this the index would grow for ever.
            del self._names[vm]
        self._on_change(vm)
