"""What the containers should request, and what of that is written now (S3.4, S3.5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from protocol.units import Amount
from scheduler_plugin.groups.core.tortoise.configuration import DOWN_INTERVAL, GROWTH_INTERVAL, Configuration
from scheduler_plugin.groups.core.tortoise.container_size import Numbers, Ratios, Sized, SizeFacts, container_size
from scheduler_plugin.groups.core.tortoise.phases import Phase
from scheduler_plugin.groups.core.tortoise.scaling_policy import Place, horizontal
from scheduler_plugin.groups.core.tortoise.tortoise_memory import Memory, Spec
from scheduler_plugin.groups.core.workload import (
    NOTHING,
    Bounds,
    Container,
    Kept,
    Resource,
    ResourceList,
    Rule,
    Workload,
)


@dataclass(frozen=True, slots=True)
class Resize:
    """What one resource of one container requests, and what it should."""

    place: Place
    request: Amount
    sized: Sized

    @property
    def shrinks(self) -> bool:
        """Whether it should request less."""
        return self.sized.size < self.request.value


def watched(
    memory: Memory, configuration: Configuration, replicas: int, least: int | None, now: datetime
) -> tuple[bool, Memory]:
    """Whether containers grow now because there are too many replicas; and since when there are.

    Not while the HPA's minimum is what keeps so many: larger containers would not change that.
    """
    if replicas < configuration.preferred_max_replicas or not horizontal(memory.policies):
        return False, replace(memory, too_many_since=None)
    if least is None or replicas <= least:
        return False, memory
    since = memory.too_many_since
    if since is not None and now - since < GROWTH_INTERVAL:
        return False, memory
    return since is not None, replace(memory, too_many_since=now)


def resizes(spec: Spec, workload: Workload, memory: Memory, found: Sizing) -> Iterator[Resize]:
    """Every resource that may be sized now, in the order of the containers."""
    if memory.phase not in (Phase.WORKING, Phase.PARTLY_WORKING):
        return
    for container in workload.containers:
        recommended = memory.recommended.get(container.name, NOTHING)
        for resource, request in container.requests:
            place, most = (container.name, resource), recommended[resource]
            if memory.works(place) and request and most is not None:
                facts = _facts(place, request, most, spec, found)
                sized = container_size(memory.policies[place], facts, found.numbers, found.ratios)
                yield Resize(place, request, sized)


@dataclass(frozen=True, slots=True)
class Sizing:
    """What all containers of one workload are sized by: the numbers, the HPA's targets, and the ratios."""

    numbers: Numbers
    targets: dict[Place, int | None]
    ratios: Ratios

    @classmethod
    def of(cls, configuration: Configuration, numbers: Numbers, targets: dict[Place, int | None]) -> Sizing:
        """With the configuration's ratios."""
        ratios = Ratios(configuration.buffer_ratio_on_vertical_resource, configuration.max_allowed_scaling_down_ratio)
        return cls(numbers, targets, ratios)


def _facts(place: Place, request: Amount, most: Amount, spec: Spec, found: Sizing) -> SizeFacts:
    container, resource = place
    least, highest = bounds_of(spec.sizes.get(container, Bounds()), spec.configuration.sizes, resource)
    return SizeFacts(
        request.value, most.value, least, highest, found.targets.get(place), several=len(found.targets) > 1
    )


def bounds_of(own: Bounds, cluster: Bounds, resource: Resource) -> tuple[int, int]:
    """The least and the most of one resource: the narrower of the container's and the cluster's; the most wins."""
    lows = [each.value for each in (own.least[resource], cluster.least[resource]) if each is not None]
    highs = [each.value for each in (own.most[resource], cluster.most[resource]) if each is not None]
    return min(max(lows), *highs), min(highs)


def written(
    changes: Iterable[Resize], memory: Memory, now: datetime
) -> tuple[tuple[Container, ...], list[Kept], Memory]:
    """The requests to write now, what is kept instead, and when something was last lowered.

    Upwards at once; downwards at most once in ``DOWN_INTERVAL``.
    """
    waits = memory.shrunk_at is not None and now - memory.shrunk_at < DOWN_INTERVAL
    found: dict[str, ResourceList] = {}
    kept: list[Kept] = []
    lowered = False
    for each in changes:
        container, resource = each.place
        delayed = each.shrinks and waits
        if each.sized.size != each.request.value and not delayed:
            found[container] = found.get(container, NOTHING).with_value(resource, each.sized.size)
            lowered = lowered or each.shrinks
        kept += _kept(each, delayed=delayed)
    remembered = replace(memory, shrunk_at=now) if lowered else memory
    return tuple(Container(name, requests) for name, requests in found.items()), kept, remembered


def _kept(each: Resize, *, delayed: bool) -> list[Kept]:
    size = type(each.request)
    subject, wanted = "/".join(each.place), size(each.sized.wanted)
    if delayed:
        message = "a container's request is lowered at most once an hour"
        return [Kept(subject, size(each.sized.size), each.request, Rule.DELAY, message)]
    if each.sized.size != each.sized.wanted:
        return [Kept(subject, wanted, size(each.sized.size), Rule.BOUNDS, each.sized.because)]
    return []
