"""A question of the Cluster Autoscaler in plain values: groups that can grow, by how many nodes, for which pods (S2.2).

The autoscaler has already applied group limits and node selectors and left out pods that do not fit: every option is
possible as it is.
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
    """A node that a group would add. ``price_keys`` are those of its labels, most specific first; empty if none."""

    price_keys: tuple[str, ...]
    offers: Needs


@dataclass(frozen=True, slots=True)
class ScaleUpOption:
    """One group, the number of nodes (>= 0) it would gain, and the pods that would then fit."""

    group: str
    nodes: int
    pods: tuple[PodNeeds, ...]


@dataclass(frozen=True, slots=True)
class ScaleUp:
    """One question: the options, and what a new node of each group looks like.

    ``problems`` has the reason why a group cannot be judged; the group then lacks its shape or some of its pods.
    """

    options: tuple[ScaleUpOption, ...]
    shapes: Mapping[str, NodeShape]
    problems: Mapping[str, str]
