"""What each kind of group answers, and in which words.

Rules that hold here:

- ``arrangement`` says what belongs to a group without looking at the cluster; ``rule`` decides from what is there.
- A policy keeps nothing between two calls: its memory is in ``Ruling.status``, which becomes the object's status.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from protocol.kubernetes.objects import Json, JsonObject
from protocol.kubernetes.resources import Resource
from scheduler_plugin.groups.core.workload import Decision, Workload
from scheduler_plugin.groups.objects.targets import TargetRef


class InvalidSpecError(ValueError):
    """The group cannot be read; the message has a sentence for each field that is wrong."""


@dataclass(frozen=True, slots=True)
class Companion:
    """An HPA or VPA beside a group. ``spec`` is what it has to be; None: it is only read, and has to be there."""

    name: str
    spec: Json | None = None


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What belongs to a group. ``in_place``: pods are resized as they run, and the template stays.

    ``hpa_asks_group``: the HPA recommends to the group and scales nothing itself. ``remarks`` are conditions that hold
    as long as the spec is so: type, reason and message.
    """

    target: TargetRef
    hpa: Companion | None = None
    vpa: Companion | None = None
    in_place: bool = False
    hpa_asks_group: bool = True
    remarks: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Situation:
    """What a policy decides from: the group, its target as a workload, the HPA and VPA as they are, and the time."""

    group: JsonObject
    workload: Workload
    hpa: JsonObject | None
    vpa: JsonObject | None
    now: datetime


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a policy decided.

    ``status`` is its part of the status, memory included; ``unwritten`` the same where nothing of the decision can be
    written, because sizes come in steps. ``hpa`` are fields of the HPA's spec that it sets,
    ``annotations`` those of the target. ``waits_for`` says which recommendation is missing, empty where none is.
    """

    decision: Decision
    status: Json = field(default_factory=dict)
    unwritten: Json = field(default_factory=dict)
    hpa: Json = field(default_factory=dict)
    annotations: Json = field(default_factory=dict)
    waits_for: str = ""


class GroupPolicy(Protocol):
    """One kind of group."""

    @property
    def kind(self) -> Resource:
        """The kind of its objects."""

    def arrangement(self, group: JsonObject) -> Arrangement:
        """What belongs to the group. Raises ``InvalidSpecError``."""

    def rule(self, situation: Situation) -> Ruling:
        """What to do now. Raises ``InvalidSpecError``."""
