"""Owner references of pods and migrations (pure).

An object is deleted with its owners. The target pod of a migration passes from the migration to the VM.
"""

from __future__ import annotations

from protocol.kubernetes.objects import Json, items, name_of, text, uid_of
from protocol.kubernetes.resources import MIGRATIONS, Resource


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
