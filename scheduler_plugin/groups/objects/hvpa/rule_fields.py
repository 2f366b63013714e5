"""What holds an Hvpa back in each direction, in the spellings of the document and of the original controller.

From the weakest to the strongest: ``scaleUpDelay`` and ``minCpuChange`` of the Hvpa, its ``scaleUpStabilization``, its
``scaleUp``, and the ``scaleUp`` of its ``hpa`` or ``vpa``; the same for down.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import time
from typing import Final

from scheduler_plugin.groups.core.hvpa.rules import (
    UNSET,
    ChangeParams,
    MaintenanceWindow,
    ResourceChangeParams,
    parse_maintenance_time,
)
from scheduler_plugin.groups.core.hvpa.spec import AxisRules, DirectionRules, UpdateMode
from scheduler_plugin.groups.core.workload import Resource
from scheduler_plugin.groups.objects.hvpa.lenient_fields import FieldError, Fields

_MOST_PERCENT: Final = 10_000
_RESOURCES: Final[tuple[Resource, Resource]] = ("cpu", "memory")


def axis_rules(spec: Fields, axis: str) -> AxisRules:
    """The rules of the ``hpa`` or ``vpa`` of an Hvpa."""
    up, down = (_direction(spec, axis, direction) for direction in ("Up", "Down"))
    return AxisRules(up, down)


def _direction(spec: Fields, axis: str, direction: str) -> DirectionRules:
    # From the weakest to the strongest: each line overrides the ones before.
    flat = _with_changes(DirectionRules(), spec, ("minCpuChange", "minMemChange"))
    delay = spec.duration(f"scale{direction}Delay")
    flat = flat if delay is None else replace(flat, delay=delay)
    stabilization = spec.fields(f"scale{direction}Stabilization")
    flat = _with_changes(flat, stabilization, ("minCpuChange", "minMemChange"))
    duration = stabilization.duration("duration")
    flat = flat if duration is None else replace(flat, delay=duration)
    own = _overridden(flat, spec.fields(f"scale{direction}"))
    return _overridden(own, spec.fields(axis).fields(f"scale{direction}"))


def _overridden(rules: DirectionRules, scale: Fields) -> DirectionRules:
    """``rules`` with what one ``scaleUp`` or ``scaleDown`` says otherwise."""
    mode = scale.fields("updatePolicy").choice("updateMode", UpdateMode)
    delay = scale.duration("stabilizationDuration")
    return _with_changes(
        replace(rules, mode=mode or rules.mode, delay=rules.delay if delay is None else delay),
        scale.fields("minChange"),
        ("cpu", "memory"),
    )


def _with_changes(rules: DirectionRules, found: Fields, names: tuple[str, str]) -> DirectionRules:
    return replace(rules, min_change=_params(found, names, rules.min_change))


def both_params(found: Fields, name: str, otherwise: ResourceChangeParams) -> ResourceChangeParams:
    """``cpu`` and ``memory`` of the object of that name, each ``otherwise`` if it is missing."""
    return _params(found.fields(name), _RESOURCES, otherwise)


def _params(found: Fields, names: tuple[str, str], otherwise: ResourceChangeParams) -> ResourceChangeParams:
    cpu, memory = (_change(found, name, resource) for name, resource in zip(names, _RESOURCES, strict=True))
    return ResourceChangeParams(otherwise.cpu if cpu is UNSET else cpu, otherwise.memory if memory is UNSET else memory)


def _change(found: Fields, name: str, resource: Resource) -> ChangeParams:
    params = found.fields(name)
    value, percentage = params.quantity("value", resource), params.number("percentage", _MOST_PERCENT)
    return UNSET if value is None and percentage is None else ChangeParams(value, percentage)


def maintenance_window(spec: Fields, *axes: AxisRules) -> MaintenanceWindow | None:
    """The maintenance window; one that an update mode waits for has to be there."""
    name = "maintenanceTimeWindow"
    if not spec.has(name):
        modes = {rules.mode for axis in axes for rules in (axis.up, axis.down)}
        # Without a window this mode would never scale.
        if UpdateMode.MAINTENANCE_WINDOW in modes:
            raise spec.error(name, "begin and end, which updateMode MaintenanceWindow needs")
        return None
    window = spec.fields(name)
    begin, end = (_time(window, part) for part in ("begin", "end"))
    return MaintenanceWindow(begin, end)


def _time(window: Fields, part: str) -> time:
    try:
        return parse_maintenance_time(window.get(part))
    except ValueError as error:
        raise FieldError(f"{window.at(part)}: {error}") from None
