"""The life of a Tortoise, and of each resource that it scales (S3.6)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from scheduler_plugin.groups.core.tortoise.autoscaler import Place, Policies, Scaling


class TortoiseMode(StrEnum):
    """``spec.updateMode``. Off: changes are only reported."""

    OFF = "Off"
    AUTO = "Auto"
    EMERGENCY = "Emergency"


class Phase(StrEnum):
    """``status.tortoisePhase``."""

    INITIALIZING = "Initializing"
    GATHERING_DATA = "GatheringData"
    PARTLY_WORKING = "PartlyWorking"
    WORKING = "Working"
    EMERGENCY = "Emergency"
    BACK_TO_NORMAL = "BackToNormal"

    @property
    def learns(self) -> bool:
        """True if present observations reflect the need."""
        # Replicas and sizes do not reflect the need during an emergency, nor on the way back.
        return self not in (Phase.EMERGENCY, Phase.BACK_TO_NORMAL)


class ResourceState(StrEnum):
    """State of one resource of one container."""

    OFF = "Off"
    GATHERING_DATA = "GatheringData"
    WORKING = "Working"


@dataclass(frozen=True, slots=True)
class ResourcePhase:
    """The state of one resource of one container, and since when."""

    state: ResourceState
    since: datetime


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Inputs that decide about a phase beside the past.

    ``ready``: there are recommendations to work with. ``metrics_missing``: for longer than the grace period.
    ``out_of_memory``: containers were killed for lack of memory within it, which more replicas or memory can answer.
    """

    mode: TortoiseMode
    has_horizontal: bool
    ready: bool = True
    metrics_missing: bool = False
    out_of_memory: bool = False

    @property
    def is_emergency(self) -> bool:
        """True if as many replicas as ever should run now."""
        is_alarming = self.metrics_missing or self.out_of_memory
        return self.mode is TortoiseMode.EMERGENCY or (self.mode is TortoiseMode.AUTO and is_alarming)


def is_missing(since: datetime | None, grace: timedelta, now: datetime) -> bool:
    """Return True if metrics that are missing ``since`` then (None: they are present) have been missing too long."""
    return since is not None and now - since >= grace


def is_within(at: datetime, grace: timedelta, now: datetime) -> bool:
    """Return True if what happened ``at`` that time is shorter ago than ``grace``; a node's clock may be ahead by as
    much.
    """
    return abs(now - at) < grace


def has_passed(span: timedelta, since: datetime | None, now: datetime) -> bool:
    """Return True if ``span`` has passed since then; a time in the future is another clock's and proves nothing."""
    return since is None or since > now or now - since >= span


_MAY_RAISE_ALARM: Final = frozenset({Phase.PARTLY_WORKING, Phase.WORKING, Phase.BACK_TO_NORMAL})
"""The phases in which it is known how many replicas are many."""


def next_phase(phase: Phase | None, states: Collection[ResourceState], seen: Circumstances) -> Phase:
    """The phase that follows ``phase`` (None: the Tortoise is new)."""
    following = _next(phase, states, seen)
    # In other phases too little is known of how many replicas an emergency needs.
    return Phase.EMERGENCY if seen.is_emergency and seen.has_horizontal and following in _MAY_RAISE_ALARM else following


def _next(phase: Phase | None, states: Collection[ResourceState], seen: Circumstances) -> Phase:
    match phase:
        case None:
            return Phase.INITIALIZING
        case Phase.INITIALIZING:
            return Phase.GATHERING_DATA if seen.ready else phase
        case Phase.EMERGENCY:
            return phase if seen.is_emergency else Phase.BACK_TO_NORMAL
        case Phase.BACK_TO_NORMAL:
            # Without horizontal resources, or in mode Off, there are no steps back to take.
            return phase if seen.has_horizontal and seen.mode is not TortoiseMode.OFF else Phase.WORKING
    return by_states(states) or phase


def by_states(states: Collection[ResourceState]) -> Phase | None:
    """The phase that follows from the states of the resources; None if nothing is scaled."""
    gathering, working = ResourceState.GATHERING_DATA in states, ResourceState.WORKING in states
    if gathering and working:
        return Phase.PARTLY_WORKING
    return Phase.WORKING if working else Phase.GATHERING_DATA if gathering else None


def resource_phases(
    old: Mapping[Place, ResourcePhase], policies: Policies, gathering: timedelta, now: datetime
) -> dict[Place, ResourcePhase]:
    """The phase of every resource: a new one gathers data first. Containers that are gone are forgotten."""
    return {place: _resource_phase(old.get(place), policy, gathering, now) for place, policy in policies.items()}


def _resource_phase(old: ResourcePhase | None, policy: Scaling, gathering: timedelta, now: datetime) -> ResourcePhase:
    if policy is Scaling.OFF:
        return old if old is not None and old.state is ResourceState.OFF else ResourcePhase(ResourceState.OFF, now)
    if old is None or old.state is ResourceState.OFF:
        return ResourcePhase(ResourceState.GATHERING_DATA, now)
    # A resource that works keeps working if the configuration gets a longer period.
    if old.state is not ResourceState.GATHERING_DATA:
        return old
    # A date in the future comes from another clock, so gathering starts over.
    if old.since > now:
        return ResourcePhase(ResourceState.GATHERING_DATA, now)
    return ResourcePhase(ResourceState.WORKING, now) if now - old.since >= gathering else old
