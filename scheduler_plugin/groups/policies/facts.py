"""What is known of one group and of what is around it, and why that may be too little to scale anything."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from protocol.kubernetes.objects import JsonObject
from scheduler_plugin.groups.core.workload import SizedContainer, Workload
from scheduler_plugin.groups.objects.target_pods import Killed
from scheduler_plugin.groups.objects.targets import TargetKind
from scheduler_plugin.groups.objects.writes import Write
from scheduler_plugin.groups.policies.policy import DesiredObjects


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """One group and the objects around it. ``arrangement`` is None, and ``fault`` says why, where the group
    cannot be read.

    ``rivals`` are the other groups that scale the same target, ``others`` says what HPAs and VPAs that are not the
    group's do to it; both empty if there are none. ``killed`` are containers that ran out of memory, as far as their
    pods still tell, and ``running`` are the containers of these ``pods``. ``pause`` is how long a scaling is left
    alone. ``held`` are writes (by ``Write.what``) that are left alone, because another keeps overwriting them;
    ``fights`` has the sentences.
    """

    group: JsonObject
    arrangement: DesiredObjects | None = None
    fault: str = ""
    target: JsonObject | None = None
    hpa: JsonObject | None = None
    vpa: JsonObject | None = None
    rivals: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    killed: tuple[Killed, ...] = ()
    running: tuple[SizedContainer, ...] = ()
    pods: tuple[JsonObject, ...] = ()
    pause: timedelta = timedelta(0)
    held: frozenset[str] = frozenset()
    fights: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScalingProblem:
    """The reason why nothing is scaled: ``reason`` in CamelCase, ``message`` for people."""

    reason: str
    message: str


class StopError(Exception):
    """Nothing may be scaled; ``problem`` says why."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.problem = ScalingProblem(reason, message)


@dataclass(frozen=True, slots=True)
class ScalableTarget:
    """A target that can be scaled, as its ``template`` says, and what to write of the objects beside the group."""

    arrangement: DesiredObjects
    target: JsonObject
    kind: TargetKind
    template: Workload
    upkeep: tuple[Write, ...]
