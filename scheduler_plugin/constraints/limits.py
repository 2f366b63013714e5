"""Limits of constraints. Anyone may write megabytes of them into a pod or VirtualMachine, and the planner compares them
with all pods and nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Final

from scheduler_plugin.constraints.model import PodConstraints, PodTerm, Selector

MAX_PARTS: Final = 1000
"""Maximum number of terms, requirements, values and tolerations of one object: they are compared with all nodes."""

MAX_POD_PARTS: Final = 100
"""Maximum number of terms, spreads and their requirements that refer to pods: they are compared with all pods."""


def are_too_many(constraints: PodConstraints) -> bool:
    """Return True if the constraints of a VM exceed a limit."""
    terms = [
        *constraints.affinity,
        *constraints.anti_affinity,
        *(preference.term for preference in constraints.preferred_pods),
    ]
    of_spreads = [spread.selector for spread in constraints.spreads]
    pod_parts = _pod_parts(terms) + len(of_spreads) + sum(map(_requirements, of_spreads))
    nodes = [*(constraints.node_terms or ()), *(preference.term for preference in constraints.preferred_nodes)]
    parts = _parts(terms) + len(nodes) + len(constraints.tolerations) + _values(constraints.node_selector)
    parts += sum(map(_values, chain(of_spreads, *((term.labels, term.fields) for term in nodes))))
    parts += sum(len(spread.match_label_keys) for spread in constraints.spreads)
    return pod_parts > MAX_POD_PARTS or parts > MAX_PARTS


def are_too_many_terms(terms: tuple[PodTerm, ...]) -> bool:
    """Return True if the anti-affinity terms of a placed pod exceed a limit."""
    return _pod_parts(terms) > MAX_POD_PARTS or _parts(terms) > MAX_PARTS


def _pod_parts(terms: Iterable[PodTerm]) -> int:
    return sum(1 + _requirements(term.selector) + _requirements(term.namespace_selector) for term in terms)


def _parts(terms: Iterable[PodTerm]) -> int:
    return sum(
        len(term.namespaces)
        + len(term.match_label_keys)
        + len(term.mismatch_label_keys)
        + _values(term.selector)
        + _values(term.namespace_selector)
        for term in terms
    )


def _requirements(selector: Selector) -> int:
    return len(selector or ())


def _values(selector: Selector) -> int:
    return sum(1 + len(requirement.values) for requirement in selector or ())
