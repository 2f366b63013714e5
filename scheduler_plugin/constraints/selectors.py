"""Label selectors, nodeSelector, node affinity of pods and volumes, taints and tolerations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from scheduler_plugin.constraints.model import (
    Labels,
    NodeTerm,
    NodeTraits,
    PodConstraints,
    Requirement,
    Requirements,
    Selector,
    Taint,
    Toleration,
    Weighted,
)


def _compares(requirement: Requirement, value: str | None, holds: Callable[[int, int], bool]) -> bool:
    """Gt and Lt: integers on both sides, and one value."""
    if value is None or len(requirement.values) != 1:
        return False
    try:
        # A label that is not an integer matches neither.
        return holds(int(value), int(requirement.values[0]))
    except ValueError:
        return False


_OPERATORS: Final[dict[str, Callable[[Requirement, str | None], bool]]] = {
    "In": lambda requirement, value: value is not None and value in requirement.values,
    "NotIn": lambda requirement, value: value is None or value not in requirement.values,
    "Exists": lambda _, value: value is not None,
    "DoesNotExist": lambda _, value: value is None,
    "Gt": lambda requirement, value: _compares(requirement, value, int.__gt__),
    "Lt": lambda requirement, value: _compares(requirement, value, int.__lt__),
}


def matches(requirements: Requirements, labels: Labels) -> bool:
    """Return True if all requirements hold; unknown operators do not hold."""
    for requirement in requirements:
        holds = _OPERATORS.get(requirement.operator)
        if holds is None or not holds(requirement, labels.get(requirement.key)):
            return False
    return True


def selects(selector: Selector, labels: Labels) -> bool:
    """Return True if the selector matches the labels; None matches nothing."""
    return selector is not None and matches(selector, labels)


def with_keys(selector: Selector, labels: Labels, same: tuple[str, ...], different: tuple[str, ...] = ()) -> Selector:
    """The selector with ``matchLabelKeys`` and ``mismatchLabelKeys`` resolved by the owner's labels."""
    if selector is None or not (same or different):
        return selector
    # As in the API server, keys missing on the owner are ignored.
    shared = [Requirement(key, "In", (labels[key],)) for key in same if key in labels]
    others = [Requirement(key, "NotIn", (labels[key],)) for key in different if key in labels]
    return (*selector, *shared, *others)


def term_matches(term: NodeTerm, name: str, node: NodeTraits) -> bool:
    """Return True if the term matches the node; an empty term matches none."""
    # Kubernetes: an empty nodeSelectorTerm matches nothing, unlike an empty label selector.
    if not term.labels and not term.fields:
        return False
    return matches(term.labels, node.labels) and matches(term.fields, {"metadata.name": name})


def any_matches(terms: Iterable[NodeTerm], name: str, node: NodeTraits) -> bool:
    """Return True if one of the terms matches."""
    return any(term_matches(term, name, node) for term in terms)


def node_matches(constraints: PodConstraints, name: str, node: NodeTraits) -> bool:
    """Return True if nodeSelector and required node affinity match."""
    if not matches(constraints.node_selector, node.labels):
        return False
    return constraints.node_terms is None or any_matches(constraints.node_terms, name, node)


def preferred_weight(terms: Iterable[Weighted[NodeTerm]], name: str, node: NodeTraits) -> int:
    """Sum of the weights of matching preferred terms."""
    return sum(preference.weight for preference in terms if term_matches(preference.term, name, node))


FORBIDDING: Final = frozenset({"NoSchedule", "NoExecute"})
DISCOURAGING: Final = "PreferNoSchedule"


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Return True if the toleration covers the taint. Unknown operators count as covering it."""
    if toleration.effect not in ("", taint.effect):
        return False
    if toleration.key not in ("", taint.key):
        return False
    # An empty key is valid with Exists only.
    if toleration.operator in ("", "Equal"):
        return toleration.key == taint.key and toleration.value == taint.value
    return True


def untolerated(taints: Iterable[Taint], tolerations: tuple[Toleration, ...]) -> Taint | None:
    """The first taint that excludes the pod; None if none does."""
    for taint in taints:
        if taint.effect in FORBIDDING and not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None


def discouragements(taints: Iterable[Taint], tolerations: tuple[Toleration, ...]) -> int:
    """Number of PreferNoSchedule taints that the pod does not tolerate, by tolerations of that effect or of all
    effects.
    """
    # As in kube-scheduler's scoring.
    relevant = [toleration for toleration in tolerations if toleration.effect in ("", DISCOURAGING)]
    return sum(
        1
        for taint in taints
        if taint.effect == DISCOURAGING and not any(tolerates(toleration, taint) for toleration in relevant)
    )
