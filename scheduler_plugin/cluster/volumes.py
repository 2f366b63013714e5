"""Namespaces, PersistentVolumeClaims and PersistentVolumes, as far as they decide where a VM may go (S4.8).

A cluster may lack or forbid each of these kinds; unknown objects tie no VM to any node.
"""

from __future__ import annotations

from typing import Final

from protocol.kubernetes.objects import JsonObject, child, text, texts
from protocol.runtime.kubernetes.watches.kinds import Kind
from scheduler_plugin.cluster.scheduling_fields import volume_terms
from scheduler_plugin.constraints.model import Labels, NodeTerm


def read_namespace(obj: JsonObject) -> Labels:
    """A namespace's labels."""
    return texts(obj, "metadata", "labels")


def read_claim(obj: JsonObject) -> str:
    """The name of the volume that the claim is bound to; empty if it is not bound."""
    # Pods name claims and only volumes have a node affinity, so this is the link between the two.
    return text(obj, "spec", "volumeName")


def read_volume(obj: JsonObject) -> tuple[NodeTerm, ...]:
    """The alternatives of the volume's node affinity; none if every node reaches it."""
    return volume_terms(child(obj, "spec").get("nodeAffinity"))


NAMESPACES: Final = Kind("namespaces", "/api/v1/namespaces", read_namespace, is_optional=True, may_be_forbidden=True)
CLAIMS: Final = Kind(
    "persistentvolumeclaims", "/api/v1/persistentvolumeclaims", read_claim, is_optional=True, may_be_forbidden=True
)
VOLUMES: Final = Kind(
    "persistentvolumes", "/api/v1/persistentvolumes", read_volume, is_optional=True, may_be_forbidden=True
)
