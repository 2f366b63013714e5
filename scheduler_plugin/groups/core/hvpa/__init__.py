"""HVPA: horizontal and vertical recommendations applied in tandem (S1)."""

from scheduler_plugin.groups.core.hvpa.effective import EffectiveIntervals, ScalingInterval
from scheduler_plugin.groups.core.hvpa.maintenance import MaintenanceWindow
from scheduler_plugin.groups.core.hvpa.min_change import ChangeParams, ResourceChangeParams
from scheduler_plugin.groups.core.hvpa.modes import Mixed, Mode, Preference
from scheduler_plugin.groups.core.hvpa.policy import decide
from scheduler_plugin.groups.core.hvpa.spec import (
    AxisRules,
    ContainerPolicy,
    DirectionRules,
    HvpaSpec,
    Memory,
    UpdateMode,
)
from scheduler_plugin.groups.core.hvpa.weights import Interval, stages

__all__ = [
    "AxisRules",
    "ChangeParams",
    "ContainerPolicy",
    "DirectionRules",
    "EffectiveIntervals",
    "HvpaSpec",
    "Interval",
    "MaintenanceWindow",
    "Memory",
    "Mixed",
    "Mode",
    "Preference",
    "ResourceChangeParams",
    "ScalingInterval",
    "UpdateMode",
    "decide",
    "stages",
]
