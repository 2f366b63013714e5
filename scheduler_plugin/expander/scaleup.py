"""A call of the Cluster Autoscaler as plain values: groups, numbers of new nodes, and pods (S2.2).

The autoscaler has already applied group limits and node selectors and removed pods that do not fit, so every option is
valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.ranking.prices import Needs


@dataclass(frozen=True, slots=True)
class PodNeeds:
    """A pending pod: what identifies it, and what it requests."""

    key: str
    needs: Needs


@dataclass(frozen=True, slots=True)
class NodeShape:
    """A node that a group would add. ``price_keys`` are from its labels, most specific first; empty if none."""

    price_keys: tuple[str, ...]
    offers: Needs


@dataclass(frozen=True, slots=True)
class ScaleUpOption:
    """One group, the number of nodes (>= 0) to add, and the pods that would fit."""

    group: str
    nodes: int
    pods: tuple[PodNeeds, ...]


@dataclass(frozen=True, slots=True)
class ScaleUp:
    """One call: the options, and the shape of a new node of each group.

    ``problems`` are the reasons why groups cannot be ranked; such a group lacks its shape or some of its pods.
    """

    options: tuple[ScaleUpOption, ...]
    shapes: Mapping[str, NodeShape]
    problems: Mapping[str, str]
