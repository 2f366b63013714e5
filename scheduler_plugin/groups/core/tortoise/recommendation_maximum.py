"""The greatest recent recommendation of a vertical recommender, the basis of all sizes and targets (S3.3)."""

from __future__ import annotations

from typing import TypeVar

from protocol.units import Amount
from scheduler_plugin.groups.core.workload import ContainerRecommendation, ResourceList

A = TypeVar("A", bound=Amount)


def maximum(old: A, target: A, upper: A) -> A:
    """The ``old`` maximum while it lies between ``target`` and ``upper`` bound, both exclusive; otherwise ``target``.

    Beyond ``upper`` the recommender itself is sure that it is too much.
    """
    return old if target < old < upper else target


def learned(old: ResourceList, said: ContainerRecommendation) -> ResourceList:
    """The maxima of one container after ``said``; what it leaves out stays as it was.

    Without an upper bound a maximum only rises: nothing says that it is too much.
    """
    maxima = old
    for resource, target in said.target:
        previous, upper = old[resource], said.upper[resource]
        highest = target if previous is None else maximum(previous, target, upper) if upper else max(previous, target)
        maxima = maxima.with_value(resource, highest.value)
    return maxima
