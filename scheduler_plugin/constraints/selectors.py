"""Requirements and selectors against labels, as Kubernetes evaluates them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from scheduler_plugin.constraints.model import Labels, Requirement, Requirements, Selector


def _compares(requirement: Requirement, value: str | None, holds: Callable[[int, int], bool]) -> bool:
    """Gt and Lt: both sides are integers, and there is one value to compare with."""
    if value is None or len(requirement.values) != 1:
        return False
    try:
        # A label that is no integer satisfies neither Gt nor Lt.
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


def meets(requirements: Requirements, labels: Labels) -> bool:
    """Return True if all requirements hold; one with an unknown operator does not."""
    for requirement in requirements:
        holds = _OPERATORS.get(requirement.operator)
        if holds is None or not holds(requirement, labels.get(requirement.key)):
            return False
    return True


def selects(selector: Selector, labels: Labels) -> bool:
    """Return True if a label selector selects what has these labels; None selects nothing."""
    return selector is not None and meets(selector, labels)


def with_keys(selector: Selector, labels: Labels, same: tuple[str, ...], different: tuple[str, ...] = ()) -> Selector:
    """The selector with ``matchLabelKeys`` and ``mismatchLabelKeys`` filled in from the owner's labels."""
    if selector is None or not (same or different):
        return selector
    # Keys that the owner does not have are ignored, as the API server does when it fills them in.
    shared = [Requirement(key, "In", (labels[key],)) for key in same if key in labels]
    others = [Requirement(key, "NotIn", (labels[key],)) for key in different if key in labels]
    return (*selector, *shared, *others)
