"""What is known of one group and its surroundings, and the reasons for which nothing is scaled."""

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
    """One group and the objects around it. ``arrangement`` is None, and ``fault`` says why, if the group cannot be
    read.

    ``rivals`` are the other groups that scale the same target, ``others`` says what HPAs and VPAs that are not the
    group's do to it; both empty if there are none. ``killed`` are containers that ran out of memory, as far as their
    pods still report it, and ``running`` are the containers of these ``pods``. ``pause`` is how long after a scaling
    nothing new is decided. ``held`` are writes (by ``Write.what``) to leave alone, because another writer keeps
    overwriting them; ``fights`` has the sentences.
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
