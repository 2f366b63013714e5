"""Bounds of pods that have too many containers or amounts to be decoded.

Anyone may create such a pod, and the API server limits only its bytes. Without a bound nothing on its node is free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from protocol.kubernetes.objects import JsonObject
from protocol.names import RUNNER_CONTAINER
from protocol.units import Bytes, MilliCpu, Resources
from protocol.wire.wire_quantities import WireQuantity
from scheduler_plugin.cluster.pods.requests import counted_amount, without_overflow
from scheduler_plugin.cluster.pods.shapes import MAX_PARTS, Container

_CONTAINERS: Final = ("containers", "initContainers")
_STATUSES: Final = ("containerStatuses", "initContainerStatuses")


class _UnexpectedError(ValueError):
    """The pod does not have the form of the API."""


def most_requested(pod: JsonObject) -> Resources | None:
    """At least what kube-scheduler counts for a large pod: the sum of everything that it requests or has.

    None if the pod is not large, or has another form than in the API.
    """
    try:
        # Nothing that makes a pod large can change later, so no agent has a permit for a database in it.
        if not _is_large(pod):
            return None
        parts = list(_amounts(pod))
        # Few different amounts, many times: each is parsed once.
        cpus, mems = (Counter(part[name] for part in parts if name in part) for name in ("cpu", "memory"))
        cpu = sum(counted_amount(MilliCpu, "", _quantity(amount)).value * count for amount, count in cpus.items())
        mem = sum(counted_amount(Bytes, "", _quantity(amount)).value * count for amount, count in mems.items())
        return without_overflow(Resources(MilliCpu(cpu), Bytes(mem)))
    except (ValueError, TypeError):
        return None


def runners_of(pod: JsonObject) -> list[Container]:
    """The containers that may run a guest, of a pod that ``most_requested`` has read."""
    runners = (part for part in _list(_map(pod.get("spec")), "containers") if part.get("name") == RUNNER_CONTAINER)
    return [Container(RUNNER_CONTAINER, args=runner.get("args")) for runner in runners]


def _is_large(pod: JsonObject) -> bool:
    lists = [_list(_map(pod.get("spec")), name) for name in _CONTAINERS]
    return any(len(containers) > MAX_PARTS for containers in lists) or any(
        len(_map(_map(container.get("resources")).get(part))) > MAX_PARTS
        for containers in lists
        for container in containers
        for part in ("requests", "limits")
    )


def _amounts(pod: JsonObject) -> Iterator[JsonObject]:
    spec, status = _map(pod.get("spec")), _map(pod.get("status"))
    yield _map(spec.get("overhead"))
    has = [status, *(part for name in _STATUSES for part in _list(status, name))]
    yield from (_map(part.get("allocatedResources")) for part in has)
    wants = [spec, *(part for name in _CONTAINERS for part in _list(spec, name))]
    yield from (_map(_map(part.get("resources")).get("requests")) for part in (*wants, *has))


def _map(value: object) -> JsonObject:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _UnexpectedError
    return value


def _list(parent: JsonObject, name: str) -> list[JsonObject]:
    value = parent.get(name)
    if value is not None and not isinstance(value, list):
        raise _UnexpectedError
    return [_map(part) for part in value or ()]


def _quantity(amount: object) -> WireQuantity:
    if isinstance(amount, bool) or not isinstance(amount, int | float | str):
        raise _UnexpectedError
    return amount
