"""Owner references of pods and migrations (pure).

An object is deleted with its owners. The target pod of a migration passes from the migration to the VM. No owner waits
for what it owns: finalizers see to that, and clusters that ask for the right to block an owner's deletion need not.
"""

from __future__ import annotations

from protocol.kubernetes.objects import Json, items, name_of, text, uid_of
from protocol.kubernetes.resources import MIGRATIONS, Resource


def owner_reference(kind: Resource, owner: Json, *, controller: bool = True) -> Json:
    """The reference that makes ``owner`` an owner; the one that runs the object where it is its ``controller``."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": name_of(owner).name,
        "uid": uid_of(owner),
        "controller": controller,
        "blockOwnerDeletion": False,
    }


def is_owned_by(found: Json, owner: Json) -> bool:
    """Return True if ``owner`` is among the owners of ``found``."""
    return any(text(each, "uid") == uid_of(owner) for each in items(found, "metadata", "ownerReferences"))


def migration_of(pod: Json) -> str:
    """The name of the migration that owns ``pod``; empty if none does."""
    owners = [each for each in items(pod, "metadata", "ownerReferences") if each.get("controller") is True]
    return next((text(each, "name") for each in owners if text(each, "kind") == MIGRATIONS.kind), "")
