"""Context for constraints beside the ledger's facts: namespaces, and the nodes that volumes are tied to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.messages import ObjectName
from scheduler_plugin.constraints.judge import VolumeTerms
from scheduler_plugin.constraints.model import Labels, NodeTerm


@dataclass(frozen=True, slots=True)
class ConstraintContext:
    """``namespaces`` are their labels, None if they are not known.

    ``claims`` names the volume that each PersistentVolumeClaim is bound to; ``volumes`` are the alternatives of node
    affinity of those that have some. Unknown volumes constrain nothing. ``is_current``: the pods known are at
    most moments old.
    """

    namespaces: Mapping[ObjectName, Labels] | None = None
    claims: Mapping[ObjectName, str] = field(default_factory=dict)
    volumes: Mapping[ObjectName, tuple[NodeTerm, ...]] = field(default_factory=dict)
    is_current: bool = True

    @property
    def namespace_labels(self) -> dict[str, Labels] | None:
        """The labels by the namespace's name; None if they are not known."""
        return None if self.namespaces is None else {name.name: labels for name, labels in self.namespaces.items()}

    def terms_of(self, namespace: str, claims: tuple[str, ...]) -> VolumeTerms:
        """Node terms of the volumes of these claims."""
        # PersistentVolumes have no namespace.
        volumes = (ObjectName("", self.claims.get(ObjectName(namespace, claim), "")) for claim in claims)
        return tuple(terms for volume in volumes if (terms := self.volumes.get(volume)))


NOTHING_KNOWN = ConstraintContext()
