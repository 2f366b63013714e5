"""Owner references of pods and migrations (pure).

Kubernetes deletes an object with its last owner. The target pod of a migration first belongs to the migration, then to
the VM.
"""

from __future__ import annotations

from protocol.kubernetes.objects import Json, items, name_of, text, uid_of
from protocol.kubernetes.resources import MIGRATIONS, Resource


def owner_reference(kind: Resource, owner: Json, *, controller: bool = True) -> Json:
    """A reference to ``owner``; ``controller`` marks the owner that manages the object."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": name_of(owner).name,
        "uid": uid_of(owner),
        "controller": controller,
        # Finalizers already delay the owner's deletion. True would require the permission to update the owner's
        # finalizers in some clusters.
        "blockOwnerDeletion": False,
    }


def is_owned_by(dependent: Json, owner: Json) -> bool:
    """Return True if ``owner`` is one of the owners of ``dependent``."""
    return any(text(reference, "uid") == uid_of(owner) for reference in items(dependent, "metadata", "ownerReferences"))


def migration_of(pod: Json) -> str:
    """The name of the migration whose target is ``pod``; empty if there is none."""
    # A migration also owns its source pod, but is not its controller.
    owners = [
        reference for reference in items(pod, "metadata", "ownerReferences") if reference.get("controller") is True
    ]
    return next((text(reference, "name") for reference in owners if text(reference, "kind") == MIGRATIONS.kind), "")
