"""A call of the Cluster Autoscaler as plain values: groups, numbers of new nodes, and pods (S2.2).

Every option is valid, because the autoscaler has already applied limits of groups and node selectors, and removed pods
that do not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.ranking.prices import Needs


@dataclass(frozen=True, slots=True)
class PodNeeds:
    """A pending pod: a key that identifies it, and its requests."""

    key: str
    needs: Needs


@dataclass(frozen=True, slots=True)
class NodeShape:
    """A node that a group would add. ``price_keys`` are from its labels, most specific first."""

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

    ``problems`` are the reasons why groups cannot be ranked. Such a group has no shape, or some of its pods are
    missing.
    """

    options: tuple[ScaleUpOption, ...]
    shapes: Mapping[str, NodeShape]
    problems: Mapping[str, str]
