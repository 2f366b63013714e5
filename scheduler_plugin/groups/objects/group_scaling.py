"""How a VirtualMachineGroup scales itself: ``spec.scaling``, and what ``status.scaling`` remembers and says (pure)."""

from __future__ import annotations

from typing import Final

from protocol.kubernetes.objects import Json, JsonObject, child, text
from protocol.kubernetes.timestamps import parse_timestamp, timestamp
from protocol.units import Seconds
from protocol.virtual_machine import parse_virtual_machine
from scheduler_plugin.groups.core.replicas.scaling import GroupScaling, ScalingDecision, ScalingMemory
from scheduler_plugin.groups.core.workload import ReplicaBounds
from scheduler_plugin.groups.objects.group_fields import InvalidGroupError, duration_field, whole_field

MOST_REPLICAS: Final = 64
SHORTEST: Final = Seconds(10.0)
LONGEST: Final = Seconds(600.0)
"""A window needs at least two looks; a longer one reacts too late to a peak."""

_UTILIZATION: Final = 70
_TIMES: Final = {
    "lastScaleUp": "last_up",
    "lastScaleDown": "last_down",
    "fewerSince": "fewer_since",
}


def read_scaling(found: JsonObject, template: JsonObject) -> GroupScaling | None:
    """Scaling settings of the group, None if it does not scale itself; ``template`` is that of its replicas, and makes
    a VM that can be read. Raises ``InvalidGroupError``.
    """
    if not child(found, "spec", "scaling"):
        return None
    least = whole_field(found, ("scaling", "minReplicas"), 1, 0, MOST_REPLICAS)
    most = whole_field(found, ("scaling", "maxReplicas"), max(1, least), 0, MOST_REPLICAS)
    if most < least:
        raise InvalidGroupError(f"spec.scaling.maxReplicas: expected at least minReplicas, {least}, got {most}")
    # `parse_virtual_machine` needs a name, and only the spec matters here.
    named = {"metadata": {"namespace": "", "name": ""}, "spec": child(template, "spec")}
    defaults = GroupScaling(ReplicaBounds(least, most), parse_virtual_machine(named).bounds.max.cpu)
    window = duration_field(found, ("scaling", "window"), defaults.window)
    if not SHORTEST <= window <= LONGEST:
        raise InvalidGroupError(f"spec.scaling.window: expected {SHORTEST:g} s to {LONGEST:g} s, got {window:g} s")
    return GroupScaling(
        defaults.bounds,
        defaults.most,
        whole_field(found, ("scaling", "targetCPUUtilizationPercentage"), _UTILIZATION, 1, 100) / 100,
        duration_field(found, ("scaling", "scaleUpDelay"), defaults.up_delay),
        duration_field(found, ("scaling", "scaleDownDelay"), defaults.down_delay),
        window,
    )


def read_memory(found: JsonObject) -> ScalingMemory:
    """Scaling history in the group's status; a time that cannot be decoded counts as none."""
    times = {field: parse_timestamp(text(found, "status", "scaling", name)) for name, field in _TIMES.items()}
    return ScalingMemory(**times)


def scaling_status(decision: ScalingDecision) -> Json:
    """Status of a decision: the wanted count, the one kept and by which rule (S1.11), and the memory."""
    times = {name: getattr(decision.memory, field) for name, field in _TIMES.items()}
    remembered = {name: timestamp(at) for name, at in times.items() if at is not None}
    status: Json = {"replicas": decision.replicas, "message": decision.because, **remembered}
    if decision.wanted is not None:
        status["wanted"] = decision.wanted
    if decision.rule is not None:
        status["rule"] = decision.rule.value
    return status
