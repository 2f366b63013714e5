"""HVPA: horizontal and vertical recommendations applied in tandem (S1)."""

from scheduler_plugin.groups.core.hvpa.effective import EffectiveIntervals, ScalingInterval
from scheduler_plugin.groups.core.hvpa.maintenance import MaintenanceWindow
from scheduler_plugin.groups.core.hvpa.min_change import ChangeParams, ResourceChangeParams
from scheduler_plugin.groups.core.hvpa.modes import HvpaMode, Mixed, Preference
from scheduler_plugin.groups.core.hvpa.policy import decide
from scheduler_plugin.groups.core.hvpa.spec import (
    AxisRules,
    ContainerPolicy,
    DirectionRules,
    HvpaSpec,
    ScalingTimes,
    UpdateMode,
)
from scheduler_plugin.groups.core.hvpa.weights import Interval, stages

__all__ = [
    "AxisRules",
    "ChangeParams",
    "ContainerPolicy",
    "DirectionRules",
    "EffectiveIntervals",
    "HvpaMode",
    "HvpaSpec",
    "Interval",
    "MaintenanceWindow",
    "Mixed",
    "Preference",
    "ResourceChangeParams",
    "ScalingInterval",
    "ScalingTimes",
    "UpdateMode",
    "decide",
    "stages",
]
