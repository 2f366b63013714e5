"""Taints and tolerations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from scheduler_plugin.constraints.model import Taint, Toleration

FORBIDDING: Final = frozenset({"NoSchedule", "NoExecute"})
DISCOURAGING: Final = "PreferNoSchedule"


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Return True if the toleration covers the taint. An operator that is not known here counts as covering it."""
    if toleration.effect not in ("", taint.effect):
        return False
    if toleration.key not in ("", taint.key):
        return False
    # An empty key is valid with Exists only.
    if toleration.operator in ("", "Equal"):
        return toleration.key == taint.key and toleration.value == taint.value
    return True


def untolerated(taints: Iterable[Taint], tolerations: tuple[Toleration, ...]) -> Taint | None:
    """The first taint that keeps the pod away; None if none does."""
    for taint in taints:
        if taint.effect in FORBIDDING and not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None


def discouragements(taints: Iterable[Taint], tolerations: tuple[Toleration, ...]) -> int:
    """The number of PreferNoSchedule taints that the pod does not tolerate; only tolerations of that effect or of all
    count.
    """
    # As kube-scheduler scores soft taints.
    relevant = [toleration for toleration in tolerations if toleration.effect in ("", DISCOURAGING)]
    return sum(
        1
        for taint in taints
        if taint.effect == DISCOURAGING and not any(tolerates(toleration, taint) for toleration in relevant)
    )
