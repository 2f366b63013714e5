"""The checks that kube-scheduler makes itself before it asks an extender: a small, pure part of them.

``refusal`` answers for one pod and node in kube-scheduler's words; the extender checks whether there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from protocol.kubernetes.objects import Json, child, flag, items, labels_of, text, texts

# PreferNoSchedule only lowers a node's score.
_TAINTS_THAT_REFUSE: Final = frozenset({"NoSchedule", "NoExecute"})
# A cordoned node may lack this taint until the node lifecycle controller has written it, so `spec.unschedulable` is
# judged as if the taint were there.
_UNSCHEDULABLE_TAINT: Final[Json] = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def refusal(pod: Json, node: Json) -> str | None:
    """The reason why ``node`` cannot take ``pod``; None if it can."""
    for check in (_not_ready, _unschedulable, _untolerated, _not_selected):
        if reason := check(pod, node):
            return reason
    return None


def _not_ready(_: Json, node: Json) -> str | None:
    ready = [
        text(condition, "status")
        for condition in items(node, "status", "conditions")
        if text(condition, "type") == "Ready"
    ]
    # A node that has not reported the condition yet is not ready either.
    return None if ready == ["True"] else "node(s) were not ready"


def _unschedulable(pod: Json, node: Json) -> str | None:
    if flag(node, "spec", "unschedulable") and not _tolerated(_UNSCHEDULABLE_TAINT, pod):
        return "node(s) were unschedulable"
    return None


def _untolerated(pod: Json, node: Json) -> str | None:
    for taint in items(node, "spec", "taints"):
        if text(taint, "effect") in _TAINTS_THAT_REFUSE and not _tolerated(taint, pod):
            return f"node(s) had untolerated taint {{{text(taint, 'key')}: {text(taint, 'value')}}}"
    return None


def _tolerated(taint: Json, pod: Json) -> bool:
    return any(_tolerates(toleration, taint) for toleration in items(pod, "spec", "tolerations"))


def _tolerates(toleration: Json, taint: Json) -> bool:
    key, effect = text(toleration, "key"), text(toleration, "effect")
    # An empty effect tolerates all effects.
    if effect and effect != text(taint, "effect"):
        return False
    if text(toleration, "operator") == "Exists":
        # An empty key with `Exists` tolerates every taint.
        return not key or key == text(taint, "key")
    return key == text(taint, "key") and text(toleration, "value") == text(taint, "value")


def _not_selected(pod: Json, node: Json) -> str | None:
    labels = labels_of(node)
    wanted = texts(pod, "spec", "nodeSelector")
    affinity = child(pod, "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    terms = items(affinity, "nodeSelectorTerms")
    selected = all(labels.get(key) == value for key, value in wanted.items())
    # Terms are alternatives; the expressions within a term must all match.
    if selected and (not affinity or any(_term_matches(term, node, labels) for term in terms)):
        return None
    return "node(s) didn't match Pod's node affinity/selector"


def _term_matches(term: Json, node: Json, labels: Mapping[str, str]) -> bool:
    by_label, by_field = items(term, "matchExpressions"), items(term, "matchFields")
    name = {"metadata.name": text(node, "metadata", "name")}
    checks = [*((expression, labels) for expression in by_label), *((expression, name) for expression in by_field)]
    # An empty term matches no node, although `all` of nothing is true.
    return bool(checks) and all(_expression_matches(expression, facts) for expression, facts in checks)


def _expression_matches(expression: Json, facts: Mapping[str, str]) -> bool:
    actual = facts.get(text(expression, "key"))
    values = expression.get("values")
    wanted = [str(value) for value in values] if isinstance(values, list) else []
    # An unknown operator matches nothing, so that no pod is placed against a rule that was not understood.
    return _OPERATORS.get(text(expression, "operator"), _never)(actual, wanted)


def _never(_found: str | None, _wanted: list[str]) -> bool:
    return False


def _compare(found: str | None, wanted: list[str], larger: bool) -> bool:
    try:
        return (int(found or "") > int(wanted[0])) if larger else (int(found or "") < int(wanted[0]))
    # If a value is missing or not a number, the expression does not match, as in kube-scheduler.
    except (ValueError, IndexError):
        return False


_OPERATORS: Final[Mapping[str, Callable[[str | None, list[str]], bool]]] = {
    "In": lambda actual, wanted: actual is not None and actual in wanted,
    # A label that is missing counts as not in the list.
    "NotIn": lambda actual, wanted: actual is None or actual not in wanted,
    "Exists": lambda actual, _: actual is not None,
    "DoesNotExist": lambda actual, _: actual is None,
    "Gt": lambda actual, wanted: _compare(actual, wanted, larger=True),
    "Lt": lambda actual, wanted: _compare(actual, wanted, larger=False),
}
