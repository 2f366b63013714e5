"""The rule for agents that are accepted without a token: the original autoscaler's have none (B.11). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler_plugin.ledger import PodFacts


@dataclass(frozen=True, slots=True)
class Tokenless:
    """Pods of ``namespaces`` that have all of ``labels``; neither is empty."""

    namespaces: frozenset[str]
    labels: Mapping[str, str]

    def admits(self, pod: PodFacts) -> bool:
        """Return True if ``pod`` is one of them."""
        labels = pod.traits.labels
        return pod.name.namespace in self.namespaces and all(labels.get(key) == self.labels[key] for key in self.labels)
