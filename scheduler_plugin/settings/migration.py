"""Section ``migration`` of the settings: when and how VMs move (S4.8, S4.9)."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from protocol.units import Bytes, Seconds
from scheduler_plugin.planner.plan import MigrationPolicy
from scheduler_plugin.planner.victims import MoveDelays
from scheduler_plugin.settings.fields import CountOrShare, MemUnit, Section

Span = Annotated[float, Field(ge=0, le=86_400)]
SpanAboveZero = Annotated[float, Field(gt=0, le=86_400)]
Count = Annotated[int, Field(ge=1, le=1000)]


class _PerNode(Section):
    out: Count = 1
    # ``in`` is a keyword.
    into: Count = Field(default=2, alias="in")


class MigrationSection(Section):
    """The section; durations are in seconds."""

    enabled: bool = True
    auto_migration: Literal["optOut", "optIn"] = "optOut"
    settle_seconds: Span = 120
    settle_denied_seconds: Span = 90
    make_room_to_grow: bool = True
    cooldown_seconds: Span = 3600
    backoff_seconds: SpanAboveZero = 60
    backoff_most_seconds: SpanAboveZero = 3600
    max_per_node: _PerNode = _PerNode()
    # One at a time for every five nodes.
    max_per_cluster: CountOrShare = Fraction(1, 5)
    placement_timeout_seconds: SpanAboveZero = 10
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    max_bandwidth: MemUnit = Bytes(1024**3)
    drain_cordoned: bool = True

    @field_validator("backoff_most_seconds")
    @classmethod
    def _not_below_the_first(cls, most: float, info: ValidationInfo) -> float:
        # Missing if ``backoffSeconds`` is invalid, which is reported already.
        least = info.data.get("backoff_seconds", 0.0)
        if most < least:
            raise ValueError(f"expected at least backoffSeconds ({least:g}), got {most:g}")
        return most

    def policy(self) -> MigrationPolicy:
        """Rules for the planner."""
        return MigrationPolicy(
            enabled=self.enabled,
            settle=Seconds(self.settle_seconds),
            settle_denied=Seconds(self.settle_denied_seconds),
            makes_room_to_grow=self.make_room_to_grow,
            delays=MoveDelays(
                Seconds(self.cooldown_seconds), Seconds(self.backoff_seconds), Seconds(self.backoff_most_seconds)
            ),
            out_per_node=self.max_per_node.out,
            in_per_node=self.max_per_node.into,
            per_cluster=self.max_per_cluster,
            timeout=Seconds(self.timeout_seconds),
            placement_timeout=Seconds(self.placement_timeout_seconds),
            opt_in=self.auto_migration == "optIn",
            drain_cordoned=self.drain_cordoned,
        )
