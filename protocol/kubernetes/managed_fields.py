"""``metadata.managedFields``: the client that last wrote a container's requests or limits through ``pods/resize``.

The API server maintains it: a client's entry loses a field when another client changes that field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from protocol.names import RUNNER_CONTAINER

RESIZE: Final = "resize"

RUNNER_KEY: Final = f'k:{{"name":"{RUNNER_CONTAINER}"}}'
"""The runner's container: managedFields identifies list elements by their merge key, as JSON without spaces."""


class _Resources(msgspec.Struct, frozen=True):
    requests: dict[str, object] = msgspec.field(default_factory=dict, name="f:requests")
    limits: dict[str, object] = msgspec.field(default_factory=dict, name="f:limits")


class _Container(msgspec.Struct, frozen=True):
    resources: _Resources = msgspec.field(default=_Resources(), name="f:resources")


class _PodSpec(msgspec.Struct, frozen=True):
    containers: dict[str, _Container] = msgspec.field(default_factory=dict, name="f:containers")


class _Fields(msgspec.Struct, frozen=True):
    spec: _PodSpec = msgspec.field(default=_PodSpec(), name="f:spec")


class ManagedFields(msgspec.Struct, frozen=True):
    """The fields last written by one client; only resources of containers are decoded."""

    manager: str = ""
    subresource: str = ""
    fieldsV1: _Fields = _Fields()  # noqa: N815 - the name in the API


def resized_by(
    manager: str, entries: Sequence[ManagedFields], part: Literal["requests", "limits"] = "requests"
) -> frozenset[str]:
    """The resources of the container ``neonvm-runner`` whose requests (or limits) the client last wrote through
    ``pods/resize``.

    >>> runner = {"f:resources": {"f:requests": {"f:cpu": {}}}}
    >>> fields = {"f:spec": {"f:containers": {'k:{"name":"neonvm-runner"}': runner}}}
    >>> entry = msgspec.convert({"manager": "a", "subresource": "resize", "fieldsV1": fields}, ManagedFields)
    >>> resized_by("a", [entry]), resized_by("a", [entry], "limits"), resized_by("b", [entry])
    (frozenset({'cpu'}), frozenset(), frozenset())
    """
    # The same client may have written other fields through the main resource.
    ours = (entry for entry in entries if (entry.manager, entry.subresource) == (manager, RESIZE))
    runners = (entry.fieldsV1.spec.containers.get(RUNNER_KEY, _Container()).resources for entry in ours)
    return frozenset(key.removeprefix("f:") for resources in runners for key in getattr(resources, part))
