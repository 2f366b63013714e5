"""A group's status beside its policy's memory: conditions, what was kept back, what ``/scale`` shows, sizes of pods."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from protocol.kubernetes.conditions import condition, stamped
from protocol.kubernetes.objects import Json, JsonObject, items, text, whole
from protocol.kubernetes.timestamps import timestamp
from scheduler_plugin.groups.core.workload import SizedContainer, WithheldChange
from scheduler_plugin.groups.objects.amounts import read_container, write_container
from scheduler_plugin.groups.objects.group_status import ABLE
from scheduler_plugin.groups.objects.targets import TargetFields, selector_of
from scheduler_plugin.groups.policies.facts import ScalableTarget
from scheduler_plugin.groups.policies.policy import DesiredObjects, PolicyDecision

ACTIVE: Final = "ScalingActive"
LIMITED: Final = "ScalingLimited"
WRITABLE: Final = "TargetWritable"
"""False once a write was refused for good; it goes when a scaling has been carried out."""
RESIZABLE: Final = "PodsResizable"
"""False while the API refuses the resize of a running pod."""
AS_ORDERED: Final = "PodsAsOrdered"
"""False while pods differ in number, readiness or size from what the group ordered."""

CONTESTED: Final = "Contested"
"""True while another writer keeps overwriting what the group writes."""

SIZED: Final = "lastSized"
"""When sizes were last changed, in the template or of running pods."""


def mirror(found: ScalableTarget) -> Json:
    """Status of the group for ``/scale``: an HPA that recommends to it reads pods and replicas there."""
    # A VM has no selector for an HPA to read.
    if found.kind.shape is TargetFields.VM:
        return {"replicas": found.template.replicas}
    return {"replicas": found.template.replicas, "targetSelector": selector_of(found.target)}


def kept_sizes(status: JsonObject, found: ScalableTarget) -> tuple[SizedContainer, ...]:
    """Sizes that running pods were resized to, as long as the template is as it was then."""
    if not found.arrangement.in_place:
        return ()
    try:
        sizes = tuple(read_container(container, "status.sizes") for container in items(status, "sizes", "inPlace"))
        template = tuple(read_container(container, "status.sizes") for container in items(status, "sizes", "template"))
    except ValueError:
        return ()
    # A template changed since then makes pods of other sizes, so the old ones no longer count.
    return sizes if template == found.template.containers else ()


def merged_sizes(old: tuple[SizedContainer, ...], new: tuple[SizedContainer, ...]) -> tuple[SizedContainer, ...]:
    """``old`` with what ``new`` gives, by name."""
    merged = {container.name: container for container in old}
    for container in new:
        before = merged.get(container.name, SizedContainer(container.name))
        merged[container.name] = SizedContainer(
            container.name, container.requests.over(before.requests), container.limits.over(before.limits)
        )
    return tuple(merged[name] for name in sorted(merged))


def written_sizes(sizes: tuple[SizedContainer, ...], template: tuple[SizedContainer, ...]) -> Json:
    """Sizes that running pods were resized to, and from which template, as fields of the status."""
    if not sizes:
        return {}
    pair = (("inPlace", sizes), ("template", template))
    return {"sizes": {name: [write_container(container) for container in containers] for name, containers in pair}}


def shown(kept: WithheldChange) -> Json:
    """A wish that did not go through, for people (S1.11)."""
    return {
        "subject": kept.subject,
        "wanted": str(kept.wanted),
        "kept": None if kept.kept is None else str(kept.kept),
        "rule": kept.rule.value,
        "message": kept.message,
    }


def conditions(
    group: JsonObject, arrangement: DesiredObjects, ruling: PolicyDecision, fights: Sequence[str] = ()
) -> list[Json]:
    """The conditions of a group that is scaled. ``fights`` says who keeps overwriting what the group writes."""
    withheld = ruling.decision.kept
    active = ("False", "NoRecommendation", ruling.waits_for) if ruling.waits_for else ("True", "Recommended", "")
    limited = (
        ("True", withheld[0].rule.value, f"{withheld[0].subject}: {withheld[0].message}")
        if withheld
        else ("False", "AsWanted", "")
    )
    return [
        condition(group, ABLE, "True", "TargetFound", f"scales {arrangement.target}"),
        condition(group, ACTIVE, *active),
        condition(group, LIMITED, *limited),
        *([condition(group, AS_ORDERED, "False", "PodsDiffer", ruling.pods_differ)] if ruling.pods_differ else []),
        *(
            condition(group, kind, "True", reason, message)
            for kind, reason, message in (*arrangement.remarks, *ruling.remarks)
        ),
        *([condition(group, CONTESTED, "True", "Overwritten", "; ".join(fights))] if fights else []),
        # A decision says nothing about writes, so their conditions are carried over.
        *(
            existing
            for existing in items(group, "status", "conditions")
            if text(existing, "type") in _kept_conditions(arrangement)
        ),
    ]


def _kept_conditions(arrangement: DesiredObjects) -> tuple[str, ...]:
    """The types of the conditions about writes."""
    return (WRITABLE, RESIZABLE) if arrangement.in_place else (WRITABLE,)


def whole_status(group: JsonObject, status: Json, conditions: list[Json], now: datetime) -> Json:
    """``status`` with those conditions, for the generation of the group that was looked at."""
    generation = whole(group, "metadata", "generation")
    body: Json = {**status, "observedGeneration": generation, "conditions": conditions}
    return stamped(body, timestamp(now.timestamp()))
