"""``metadata.managedFields``: which client wrote which requests and limits of a container through ``pods/resize`` last.

The API server maintains it: a client's entry loses a field once another client changes that field.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from protocol.names import RUNNER_CONTAINER

RESIZE: Final = "resize"

# managedFields names list elements by their merge key, as JSON without blanks.
_RUNNER: Final = f'k:{{"name":"{RUNNER_CONTAINER}"}}'


class _Resources(msgspec.Struct, frozen=True):
    requests: dict[str, object] = msgspec.field(default_factory=dict, name="f:requests")
    limits: dict[str, object] = msgspec.field(default_factory=dict, name="f:limits")


class _Container(msgspec.Struct, frozen=True):
    resources: _Resources = msgspec.field(default=_Resources(), name="f:resources")


class _Spec(msgspec.Struct, frozen=True):
    containers: dict[str, _Container] = msgspec.field(default_factory=dict, name="f:containers")


class _Fields(msgspec.Struct, frozen=True):
    spec: _Spec = msgspec.field(default=_Spec(), name="f:spec")


class ManagedFields(msgspec.Struct, frozen=True):
    """Fields that one client wrote last, as far as they concern the requests of the guest's container."""

    manager: str = ""
    subresource: str = ""
    fieldsV1: _Fields = _Fields()  # noqa: N815 - the name in the API


def resized_by(manager: str, entries: Sequence[ManagedFields]) -> frozenset[str]:
    """The resources whose requests in the container ``neonvm-runner`` the client wrote last, by ``pods/resize``.

    >>> runner = {"f:resources": {"f:requests": {"f:cpu": {}}}}
    >>> fields = {"f:spec": {"f:containers": {'k:{"name":"neonvm-runner"}': runner}}}
    >>> found = msgspec.convert({"manager": "a", "subresource": "resize", "fieldsV1": fields}, ManagedFields)
    >>> resized_by("a", [found]), resized_by("b", [found])
    (frozenset({'cpu'}), frozenset())
    """
    return frozenset(
        key.removeprefix("f:") for resources in _written_by(manager, entries) for key in resources.requests
    )


def limited_by(manager: str, entries: Sequence[ManagedFields]) -> frozenset[str]:
    """The resources whose limits in the container ``neonvm-runner`` the client wrote last, by ``pods/resize``.

    >>> limits = {"f:limits": {"f:cpu": {}}}
    >>> fields = {"f:spec": {"f:containers": {'k:{"name":"neonvm-runner"}': {"f:resources": limits}}}}
    >>> entry = {"manager": "autoscale-scheduler", "subresource": "resize", "fieldsV1": fields}
    >>> limited_by("autoscale-scheduler", msgspec.convert([entry], list[ManagedFields]))
    frozenset({'cpu'})
    """
    return frozenset(key.removeprefix("f:") for resources in _written_by(manager, entries) for key in resources.limits)


def _written_by(manager: str, entries: Sequence[ManagedFields]) -> Iterator[_Resources]:
    for entry in entries:
        runner = entry.fieldsV1.spec.containers.get(_RUNNER)
        # The same client may have written other fields through the main resource.
        if runner is not None and (entry.manager, entry.subresource) == (manager, RESIZE):
            yield runner.resources
