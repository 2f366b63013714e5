"""Which resource of which container is scaled how (S3.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from scheduler_plugin.groups.core.tortoise.autoscaler import Autoscaler, ContainerTarget, ResourceTarget
from scheduler_plugin.groups.core.workload import RESOURCES, Resource, SizedContainer

Place = tuple[str, Resource]
"""One resource of one container, by the container's name."""


class Scaling(StrEnum):
    """Scaling of one resource of one container."""

    OFF = "Off"
    HORIZONTAL = "Horizontal"
    VERTICAL = "Vertical"


Policies = Mapping[Place, Scaling]
"""How each resource of each container is scaled."""


def effective(
    given: Policies | None, containers: Iterable[SizedContainer], attached: Autoscaler | None
) -> dict[Place, Scaling]:
    """The policy of every resource of ``containers``: as ``given``, or else by the HPA that is ``attached``."""
    return {
        # Without a request or a limit there is no size to start from.
        (container.name, resource): _policy(given, container, resource, attached)
        if container.sizes[resource]
        else Scaling.OFF
        for container in containers
        for resource in RESOURCES
    }


def _policy(
    given: Policies | None, container: SizedContainer, resource: Resource, attached: Autoscaler | None
) -> Scaling:
    if given is not None:
        # What a policy does not name is not scaled at all.
        return given.get((container.name, resource), Scaling.OFF)
    if attached is None:
        # Without an HPA, CPU is horizontal and the rest vertical.
        return Scaling.HORIZONTAL if resource == "cpu" else Scaling.VERTICAL
    scaled = any(_scales(metric, container.name, resource) for metric in attached.metrics)
    return Scaling.HORIZONTAL if scaled else Scaling.VERTICAL


def _scales(metric: object, container: str, resource: Resource) -> bool:
    """Return True if an HPA's metric is of that resource of that container, or of that resource of all of them."""
    match metric:
        case ContainerTarget(name, what, _):
            return (name, what) == (container, resource)
        case ResourceTarget(resource=what):
            return what == resource
        case _:
            return False


def horizontal(policies: Policies) -> tuple[Place, ...]:
    """Resources scaled horizontally, in the order of the containers."""
    return tuple(place for place, policy in policies.items() if policy is Scaling.HORIZONTAL)
