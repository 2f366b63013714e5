"""The part of an HPA that a Tortoise manages (S3.1), and the scaling policy per container and resource (S3.4)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from protocol.kubernetes.objects import text
from scheduler_plugin.groups.core.tortoise.configuration import INITIAL_TARGET
from scheduler_plugin.groups.core.workload import RESOURCES, Resource, SizedContainer


@dataclass(frozen=True, slots=True)
class ContainerTarget:
    """A ``ContainerResource`` metric.

    ``utilisation`` is in percent; None if the target is an amount, and ``content`` is the API's metric.
    """

    container: str
    resource: Resource
    utilisation: int | None
    content: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResourceTarget:
    """A ``Resource`` metric, over all containers.

    ``utilisation`` is in percent, None for other targets. ``content`` is the API's metric.
    """

    resource: str
    utilisation: int | None = None
    content: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OtherMetric:
    """A metric of any other type; ``content`` is the API's metric."""

    content: Mapping[str, object]

    @property
    def external(self) -> str:
        """Name of an ``External`` metric; empty for others."""
        return text(self.content, "external", "metric", "name") if self.content.get("type") == "External" else ""


Metric = ContainerTarget | ResourceTarget | OtherMetric


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """The managed part of an HPA: ``min`` <= ``max`` replicas, and metrics."""

    min: int
    max: int
    metrics: tuple[Metric, ...] = ()

    def target(self, container: str, resource: Resource) -> int | None:
        """Target utilization of a container's resource in percent; None if none."""
        targets = [metric for metric in self.metrics if isinstance(metric, ContainerTarget)]
        by_place = {(metric.container, metric.resource): metric.utilisation for metric in reversed(targets)}
        return by_place.get((container, resource))

    def with_target(self, container: str, resource: Resource, utilisation: int) -> Autoscaler:
        """Set the target utilization of an existing metric."""
        metrics: list[Metric] = []
        for metric in self.metrics:
            is_same = isinstance(metric, ContainerTarget) and (metric.container, metric.resource) == (
                container,
                resource,
            )
            metrics.append(ContainerTarget(container, resource, utilisation) if is_same else metric)
        return replace(self, metrics=tuple(metrics))

    def managing(
        self, places: Collection[tuple[str, Resource]], others: Collection[tuple[str, Resource]] = ()
    ) -> Autoscaler:
        """Ensure exactly one ``ContainerResource`` metric for each of ``places``, and none for ``others``.

        New metrics come last.
        """
        missing = list(places)
        replaced = {resource for _, resource in (*places, *others)}
        metrics: list[Metric] = []
        for metric in self.metrics:
            match metric:
                case ContainerTarget(container, resource) if (container, resource) in missing:
                    missing.remove((container, resource))
                    metrics.append(metric)
                # A duplicate, or the container was removed or scales vertically now.
                case ContainerTarget(container, resource) if (container, resource) in (*places, *others):
                    continue
                # Replaced by metrics of its containers.
                case ResourceTarget(resource, utilisation) if utilisation is not None and resource in replaced:
                    continue
                # Keep others, such as injected sidecars'.
                case _:
                    metrics.append(metric)
        return replace(self, metrics=(*metrics, *self._begun(missing)))

    def _begun(self, places: Collection[tuple[str, Resource]]) -> list[Metric]:
        """New metrics, with the target of the ``Resource`` metric that they replace."""
        targets = {metric.resource: metric.utilisation for metric in self.metrics if isinstance(metric, ResourceTarget)}
        return [
            ContainerTarget(container, resource, utilisation)
            for container, resource in places
            # A `Resource` metric with an amount as target stays: it cannot be converted to a utilization.
            if (utilisation := targets.get(resource, INITIAL_TARGET)) is not None
        ]

    def without(self, external: re.Pattern[str]) -> Autoscaler:
        """Remove ``External`` metrics whose names match."""
        return replace(
            self,
            metrics=tuple(
                metric
                for metric in self.metrics
                if not (isinstance(metric, OtherMetric) and metric.external and external.search(metric.external))
            ),
        )


Place = tuple[str, Resource]
"""One resource of one container, by the container's name."""


class Scaling(StrEnum):
    """Scaling of one resource of one container."""

    OFF = "Off"
    HORIZONTAL = "Horizontal"
    VERTICAL = "Vertical"


Policies = Mapping[Place, Scaling]
"""Scaling of each resource of each container."""


def effective(
    policies: Policies | None, containers: Iterable[SizedContainer], attached: Autoscaler | None
) -> dict[Place, Scaling]:
    """The policy of every resource of ``containers``, from ``policies`` or else from the metrics of the HPA."""
    return {
        # Without a size there is nothing to start from.
        (container.name, resource): _policy(policies, container, resource, attached)
        if container.sizes[resource]
        else Scaling.OFF
        for container in containers
        for resource in RESOURCES
    }


def _policy(
    policies: Policies | None, container: SizedContainer, resource: Resource, attached: Autoscaler | None
) -> Scaling:
    if policies is not None:
        # Resources without a policy are off.
        return policies.get((container.name, resource), Scaling.OFF)
    if attached is None:
        # Default: CPU is horizontal, the rest vertical.
        return Scaling.HORIZONTAL if resource == "cpu" else Scaling.VERTICAL
    for metric in attached.metrics:
        match metric:
            case ContainerTarget(name, what) if (name, what) == (container.name, resource):
                return Scaling.HORIZONTAL
            case ResourceTarget(what) if what == resource:
                return Scaling.HORIZONTAL
    return Scaling.VERTICAL


def horizontal(policies: Policies) -> tuple[Place, ...]:
    """Horizontally scaled resources, in the order of the containers."""
    return tuple(place for place, policy in policies.items() if policy is Scaling.HORIZONTAL)
