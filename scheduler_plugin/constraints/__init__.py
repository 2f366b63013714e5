"""Constraints by which kube-scheduler judges nodes, so that VMs only move to where their pods may go (S4.8). Pure."""

from scheduler_plugin.constraints.cluster_view import ClusterView, PlacedPod
from scheduler_plugin.constraints.judge import Candidate, Judge, NodeConstraints, Shape, VolumeTerms
from scheduler_plugin.constraints.model import (
    PLAIN_NODE,
    PLAIN_POD,
    PODS,
    UNCONSTRAINED,
    Asked,
    HostPort,
    Labels,
    NodeTerm,
    NodeTraits,
    PodConstraints,
    PodTerm,
    PodTraits,
    Requirement,
    Spread,
    Taint,
    Toleration,
    Weighted,
)
from scheduler_plugin.constraints.surroundings import NOTHING_KNOWN, ConstraintContext

__all__ = [
    "NOTHING_KNOWN",
    "PLAIN_NODE",
    "PLAIN_POD",
    "PODS",
    "UNCONSTRAINED",
    "Asked",
    "Candidate",
    "ClusterView",
    "ConstraintContext",
    "HostPort",
    "Judge",
    "Labels",
    "NodeConstraints",
    "NodeTerm",
    "NodeTraits",
    "PlacedPod",
    "PodConstraints",
    "PodTerm",
    "PodTraits",
    "Requirement",
    "Shape",
    "Spread",
    "Taint",
    "Toleration",
    "VolumeTerms",
    "Weighted",
]
