"""CPU and memory as objects spell them: ``{"cpu": "500m", "memory": "1Gi"}`` and the ``resources`` of a container."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from protocol.kubernetes.objects import Json, JsonObject, child, text
from protocol.units import Amount, Bytes, MilliCpu, QuantityError
from scheduler_plugin.groups.core.workload import ResourceList, SizedContainer

A = TypeVar("A", bound=Amount)


def read_amounts(found: JsonObject, path: str) -> ResourceList:
    """The amounts of one JSON object; other resources than CPU and memory are left out.

    Raises ``ValueError`` with the path of an amount that is no quantity.

    >>> read_amounts({"cpu": "500m", "nvidia.com/gpu": 1}, "requests")
    ResourceList(cpu=MilliCpu(value=500), memory=None)
    """
    cpu = _read(found.get("cpu"), MilliCpu.parse, f"{path}.cpu")
    return ResourceList(cpu, _read(found.get("memory"), Bytes.parse, f"{path}.memory"))


def _read(given: Any, parse: Callable[[Any], A], path: str) -> A | None:
    try:
        return None if given is None else parse(given)
    except QuantityError as error:
        raise ValueError(f"{path}: {error}") from None


def write_amounts(amounts: ResourceList) -> Json:
    """The same amounts as JSON.

    >>> write_amounts(ResourceList(cpu=MilliCpu(500)))
    {'cpu': '500m'}
    """
    return {resource: str(amount) for resource, amount in amounts}


def read_container(found: JsonObject, path: str) -> SizedContainer:
    """A container with its name and ``resources``. Raises ``ValueError``."""
    resources = child(found, "resources")
    return SizedContainer(
        text(found, "name"),
        read_amounts(child(resources, "requests"), f"{path}.resources.requests"),
        read_amounts(child(resources, "limits"), f"{path}.resources.limits"),
    )


def write_container(container: SizedContainer) -> Json:
    """The container's name and ``resources``, as far as they are given."""
    parts = {"requests": write_amounts(container.requests), "limits": write_amounts(container.limits)}
    return {"name": container.name, "resources": {name: amounts for name, amounts in parts.items() if amounts}}
