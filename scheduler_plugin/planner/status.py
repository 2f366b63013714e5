"""Findings of the last round of planning about moving VMs, for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler_plugin.planner.refused_targets import RefusedTargets


@dataclass(slots=True, eq=False)
class MigrationStatus:
    """``idle`` says why no VM is moved at all (None: the mover is at work).

    ``stuck`` says by node why VMs that should leave it cannot, ``refused`` where VMs were not placed lately.
    """

    idle: str | None = "no planning round has run yet"
    stuck: Mapping[str, str] = field(default_factory=dict)
    refused: RefusedTargets = field(default_factory=RefusedTargets)
