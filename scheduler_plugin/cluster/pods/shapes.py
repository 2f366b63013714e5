"""Pods of the Kubernetes API, with the fields that the ledger uses.

Fields are spelled as in the API; all except names are optional.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from protocol.kubernetes.managed_fields import ManagedFields
from protocol.wire.wire_quantities import WireQuantity

MAX_PARTS: Final = 1000
"""Maximum number of containers or amounts of an object; decoding more would block the event loop."""

Amounts = Annotated[dict[str, WireQuantity], msgspec.Meta(max_length=MAX_PARTS)]


class Owner(msgspec.Struct, frozen=True):
    """An owner reference."""

    kind: str
    name: str
    uid: str = ""
    apiVersion: str = ""  # noqa: N815 - the name in the API
    controller: bool | None = None


class Metadata(msgspec.Struct, frozen=True):
    """The fields read of any object's metadata."""

    name: str
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    ownerReferences: list[Owner] | None = None  # noqa: N815 - the name in the API
    resourceVersion: str = ""  # noqa: N815 - the name in the API
    generation: int = 0


class PodMetadata(Metadata, frozen=True):
    """The fields read of a pod's metadata."""

    managedFields: list[ManagedFields] | None = None  # noqa: N815 - the name in the API


class Requests(msgspec.Struct, frozen=True):
    """Requests of a container."""

    requests: Amounts | None = None


class ContainerResources(msgspec.Struct, frozen=True):
    """Requests and limits of a container."""

    requests: Amounts | None = None
    limits: Amounts | None = None


class ResizePolicy(msgspec.Struct, frozen=True):
    """Resize policy of a container."""

    restartPolicy: str = ""  # noqa: N815 - the name in the API


class Container(msgspec.Struct, frozen=True):
    """The fields read of a container."""

    name: str = ""
    resources: ContainerResources | None = None
    resizePolicy: Annotated[list[ResizePolicy], msgspec.Meta(max_length=MAX_PARTS)] | None = None  # noqa: N815 - the name in the API
    restartPolicy: str | None = None  # noqa: N815 - the name in the API
    # Untyped, so that malformed arguments do not hide the container.
    args: object = None


Containers = Annotated[list[Container], msgspec.Meta(max_length=MAX_PARTS)]


class PodSpec(msgspec.Struct, frozen=True):
    """The fields read of a pod's spec."""

    containers: Containers = msgspec.field(default_factory=list)
    initContainers: Containers | None = None  # noqa: N815 - the name in the API
    overhead: Amounts | None = None
    resources: Requests | None = None
    nodeName: str | None = None  # noqa: N815 - the name in the API
    schedulerName: str | None = None  # noqa: N815 - the name in the API
    hostNetwork: bool | None = None  # noqa: N815 - the name in the API


class Condition(msgspec.Struct, frozen=True):
    """One of a pod's conditions."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    # 0 if the kubelet is too old to report it.
    observedGeneration: int = 0  # noqa: N815 - the name in the API


class ResourceStatus(msgspec.Struct, frozen=True):
    """Resources that the kubelet has allocated to a container or pod, and those it actually has."""

    name: str = ""
    allocatedResources: Amounts | None = None  # noqa: N815 - the name in the API
    resources: Requests | None = None


Statuses = Annotated[list[ResourceStatus], msgspec.Meta(max_length=MAX_PARTS)]
Conditions = Annotated[list[Condition], msgspec.Meta(max_length=MAX_PARTS)]


class Ip(msgspec.Struct, frozen=True):
    """One of a pod's addresses."""

    ip: str = ""


class PodStatus(msgspec.Struct, frozen=True):
    """The fields read of a pod's status."""

    phase: str | None = None
    qosClass: str | None = None  # noqa: N815 - the name in the API
    podIP: str | None = None  # noqa: N815 - the name in the API
    podIPs: Annotated[list[Ip], msgspec.Meta(max_length=MAX_PARTS)] | None = None  # noqa: N815 - the name in the API
    conditions: Conditions | None = None
    containerStatuses: Statuses | None = None  # noqa: N815 - the name in the API
    initContainerStatuses: Statuses | None = None  # noqa: N815 - the name in the API
    allocatedResources: Amounts | None = None  # noqa: N815 - the name in the API
    resources: Requests | None = None
    observedGeneration: int = 0  # noqa: N815 - the name in the API


class Pod(msgspec.Struct, frozen=True):
    """The fields read of a pod."""

    metadata: PodMetadata
    spec: PodSpec
    status: PodStatus | None = None
