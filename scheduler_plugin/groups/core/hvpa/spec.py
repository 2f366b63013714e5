"""What one Hvpa asks for: bounds, mode, and what holds scaling back in each direction."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from protocol.units import Seconds
from scheduler_plugin.groups.core.hvpa.effective import EffectiveIntervals
from scheduler_plugin.groups.core.hvpa.modes import HvpaMode, Interval, Mixed
from scheduler_plugin.groups.core.hvpa.rules import NO_PARAMS, MaintenanceWindow, ResourceChangeParams
from scheduler_plugin.groups.core.running_pods import PodsMemory
from scheduler_plugin.groups.core.workload import ONE_REPLICA, RESOURCES, UNBOUNDED, ReplicaBounds, Resource, SizeBounds

ANY_CONTAINER: Final = "*"
"""The name of the policy for containers that have none of their own."""


class UpdateMode(StrEnum):
    """Update mode: recommendations are applied always, never, or within the maintenance window."""

    AUTO = "Auto"
    OFF = "Off"
    MAINTENANCE_WINDOW = "MaintenanceWindow"


@dataclass(frozen=True, slots=True)
class DirectionRules:
    """Limits on scaling in one direction. ``delay`` is in seconds after the last scaling in that direction."""

    mode: UpdateMode = UpdateMode.AUTO
    delay: Seconds = Seconds(0.0)
    min_change: ResourceChangeParams = NO_PARAMS


@dataclass(frozen=True, slots=True)
class AxisRules:
    """The rules for growing and for shrinking along one axis."""

    up: DirectionRules = field(default=DirectionRules())
    down: DirectionRules = field(default=DirectionRules())


@dataclass(frozen=True, slots=True)
class ContainerPolicy:
    """Sizing policy of one container. ``controls_limits`` is off if limits must stay as they are."""

    name: str = ANY_CONTAINER
    bounds: SizeBounds = UNBOUNDED
    resources: tuple[Resource, ...] = RESOURCES
    controls_limits: bool = True
    is_off: bool = False


@dataclass(frozen=True, slots=True)
class HvpaSpec:
    """Everything that the policy needs of an Hvpa.

    ``desired_by_utilization`` says that the HPA measures use against requests: a larger replica then needs fewer.
    ``settle``: seconds for which less must have been enough before effective intervals shrink anything.
    """

    replicas: ReplicaBounds = ONE_REPLICA
    mode: HvpaMode = HvpaMode.EFFECTIVE_INTERVALS
    intervals: tuple[Interval, ...] = ()
    mixed: Mixed = field(default=Mixed())
    effective: EffectiveIntervals = field(default=EffectiveIntervals())
    containers: tuple[ContainerPolicy, ...] = ()
    horizontal: AxisRules = field(default=AxisRules())
    vertical: AxisRules = field(default=AxisRules())
    window: MaintenanceWindow | None = None
    limit_gap: ResourceChangeParams = NO_PARAMS
    desired_by_utilization: tuple[Resource, ...] = ()
    settle: Seconds = Seconds(0.0)

    def policy(self, container: str) -> ContainerPolicy:
        """The policy of that container: its own, that of ``*``, or none in particular."""
        # Reversed, so that the first policy of a name wins.
        named = {policy.name: policy for policy in reversed(self.containers)}
        return named.get(container) or named.get(ANY_CONTAINER) or ContainerPolicy()


@dataclass(frozen=True, slots=True)
class PastTarget:
    """A vertical target, in thousandths of a vCPU or bytes, and the number of replicas whose use explains it."""

    container: str
    resource: Resource
    target: int
    replicas: int


@dataclass(frozen=True, slots=True)
class PastReplicas:
    """This many replicas from ``since`` (an aware time) on."""

    since: datetime
    replicas: int


@dataclass(frozen=True, slots=True)
class Shrinking:
    """Less of ``subject`` has been enough ``since`` (an aware time); ``highest`` is the maximum need then."""

    subject: str
    since: datetime
    highest: int


@dataclass(frozen=True, slots=True)
class ScalingTimes:
    """Persistent memory: when the workload was last scaled up and down, by either axis (aware times).

    ``targets`` and ``counts`` are for effective intervals: what a VPA recommended, and beside how many replicas. Counts
    fall from entry to entry. ``shrinking`` are the wishes for less that wait, at most one for each subject. ``pods`` is
    what is remembered of the pods as they are.
    """

    last_up: datetime | None = None
    last_down: datetime | None = None
    targets: tuple[PastTarget, ...] = ()
    counts: tuple[PastReplicas, ...] = ()
    shrinking: tuple[Shrinking, ...] = ()
    pods: PodsMemory = field(default=PodsMemory())
