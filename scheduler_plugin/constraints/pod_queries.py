"""Which pods the terms and spread constraints of a pod select."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler_plugin.constraints.model import Labels, PodTerm
from scheduler_plugin.constraints.selectors import matches, selects, with_keys

NamespaceLabels = Mapping[str, Labels] | None
"""Labels by namespace; None if unknown."""


@dataclass(frozen=True, slots=True)
class PodQuery:
    """Pods that all ``terms`` of a pod in namespace ``owner`` select.

    The terms are resolved and have no topology key, so that equal selectors are equal. ``unknown`` is the result if it
    depends on unknown namespace labels.
    """

    terms: tuple[PodTerm, ...]
    owner: str
    unknown: bool = False
    counts_terminating: bool = True

    def selects(self, namespace: str, labels: Labels, namespaces: NamespaceLabels, *, is_terminating: bool) -> bool:
        """Return True if a pod with these labels in ``namespace`` is one of them."""
        if is_terminating and not self.counts_terminating:
            return False
        return all(
            is_about(term, self.owner, namespace, labels, namespaces, unknown=self.unknown) for term in self.terms
        )


def resolved(term: PodTerm, labels: Labels) -> PodTerm:
    """The term with its ``matchLabelKeys`` and ``mismatchLabelKeys`` resolved by the owner's labels."""
    if not (term.match_label_keys or term.mismatch_label_keys):
        return term
    selector = with_keys(term.selector, labels, term.match_label_keys, term.mismatch_label_keys)
    return PodTerm(term.topology_key, selector, term.namespaces, term.namespace_selector)


def is_about(  # noqa: PLR0913 - a term, two pods, and the namespaces that they are in
    term: PodTerm, owner: str, namespace: str, labels: Labels, namespaces: NamespaceLabels, *, unknown: bool
) -> bool:
    """Return True if the term of a pod in namespace ``owner`` selects a pod with these labels in ``namespace``.

    ``unknown`` is the result if that depends on unknown namespace labels.
    """
    return selects(term.selector, labels) and _covers(term, owner, namespace, namespaces, unknown=unknown)


def _covers(term: PodTerm, owner: str, namespace: str, namespaces: NamespaceLabels, *, unknown: bool) -> bool:
    if not term.namespaces and term.namespace_selector is None:
        return namespace == owner
    if namespace in term.namespaces:
        return True
    # An empty selector selects all namespaces, None selects none.
    if not term.namespace_selector:
        return term.namespace_selector is not None
    namespace_labels = None if namespaces is None else namespaces.get(namespace)
    # With unknown namespace labels nothing is excluded.
    return unknown if namespace_labels is None else matches(term.namespace_selector, namespace_labels)
