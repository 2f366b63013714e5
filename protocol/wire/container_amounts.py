"""Parses CPU and memory in the requests, limits and status of a container, as in the Kubernetes API, and counts the
requests of a pod. Pure.

Errors are ``ValueError`` with the path of the field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, Self, TypeVar

from protocol.units import Bytes, MilliCpu, Resources
from protocol.wire.wire_quantities import WireQuantity, cpu_from_wire, mem_from_wire


class _Addable(Protocol):
    def __add__(self, other: Self, /) -> Self: ...


R = TypeVar("R", bound=_Addable)


def counted(
    containers: Iterable[R], inits: Iterable[tuple[R, bool]], zero: R, largest: Callable[[R, R], R]
) -> tuple[R, R]:
    """A pod's container requests as kube-scheduler counts them, and the sidecars' part. ``inits`` are its init
    containers in order, each with True for a sidecar.

    >>> counted([1, 2], [(5, False), (1, True), (3, False)], 0, max)
    (5, 1)
    """
    sidecars = starting = zero
    for requests, is_sidecar in inits:
        # An init container runs with the sidecars started before it, and ends before the next container starts.
        together = sidecars + requests
        starting = largest(starting, together)
        sidecars = together if is_sidecar else sidecars
    running = sidecars
    for requests in containers:
        running = running + requests
    return largest(running, starting), sidecars


def amounts(path: str, fields: Mapping[str, object]) -> Resources:
    """CPU and memory in ``fields``; zero if missing.

    >>> str(amounts("requests", {"cpu": "500m"}))
    '500m cpu, 0'
    """
    cpu, mem = limits(path, fields)
    return Resources(cpu or MilliCpu(0), mem or Bytes(0))


def limits(path: str, fields: Mapping[str, object]) -> tuple[MilliCpu | None, Bytes | None]:
    """CPU and memory in ``fields``; None if missing.

    >>> limits("limits", {"cpu": "500m"})
    (MilliCpu(value=500), None)
    """
    cpu, mem = _quantity(fields, "cpu"), _quantity(fields, "memory")
    return (
        None if cpu is None else cpu_from_wire(f"{path}.cpu", cpu),
        None if mem is None else mem_from_wire(f"{path}.memory", mem),
    )


def _quantity(fields: Mapping[str, object], name: str) -> WireQuantity | None:
    amount = fields.get(name)
    # A bool is an int in Python.
    return amount if isinstance(amount, int | float | str) and not isinstance(amount, bool) else None
