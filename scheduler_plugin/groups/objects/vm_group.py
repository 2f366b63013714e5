"""VirtualMachineGroup objects, read into one frozen value, and what ``status.scaling`` remembers and says (pure).

- A bad field raises ``InvalidGroupError`` with its path: the object's condition shows that, and the group is not
  changed.
- The templates are kept as they are written, but must make a VM that can be read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from protocol.durations import DurationError, parse_duration
from protocol.field_errors import shown
from protocol.kubernetes.objects import Json, JsonObject, child, name_of, text, uid_of
from protocol.kubernetes.timestamps import parse_timestamp, timestamp
from protocol.messages import ObjectName
from protocol.names import KERNEL_PRIMARY
from protocol.units import Seconds
from protocol.virtual_machine import InvalidObjectError, parse_virtual_machine
from scheduler_plugin.groups.core.replicas.members import GroupSpec
from scheduler_plugin.groups.core.replicas.scaling import GroupScaling, ScalingDecision, ScalingMemory
from scheduler_plugin.groups.core.workload import ReplicaBounds


class InvalidGroupError(ValueError):
    """A VirtualMachineGroup breaks a rule; the message begins with the path of the field."""


def whole_field(found: JsonObject, path: tuple[str, ...], usual: int, least: int, most: int) -> int:
    """The whole number at ``path`` of the spec, ``usual`` if there is none. Raises ``InvalidGroupError``."""
    value = child(found, "spec", *path[:-1]).get(path[-1])
    if value is None:
        return usual
    # `bool` is an `int` in Python.
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidGroupError(
            f"spec.{'.'.join(path)}: expected a whole number from {least} to {most}, got {shown(value)}"
        )
    return value


def duration_field(found: JsonObject, path: tuple[str, ...], usual: Seconds) -> Seconds:
    """The span of time at ``path`` of the spec, ``usual`` if there is none. Raises ``InvalidGroupError``."""
    value = child(found, "spec", *path[:-1]).get(path[-1])
    if value is None:
        return usual
    try:
        return parse_duration(value)
    except DurationError as error:
        raise InvalidGroupError(f"spec.{'.'.join(path)}: {error}") from None


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


POSTGRES: Final = 5432
_NAME: Final = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class VmGroup:
    """The part of a VirtualMachineGroup that this project uses.

    ``template`` and ``replica_template`` have ``metadata`` and ``spec`` of the VMs to be made. ``port`` is where the
    read endpoint serves. ``scaling`` is how the group scales itself, None if others decide the number of replicas;
    ``scaled`` is what the status remembers of that. ``primary_uid`` is the primary that the status remembers, empty
    before there was one.
    """

    name: ObjectName
    uid: str
    spec: GroupSpec
    template: Json
    replica_template: Json
    port: int
    scaling: GroupScaling | None
    scaled: ScalingMemory
    primary_uid: str


def parse_vm_group(found: JsonObject) -> VmGroup:
    """Reads a VirtualMachineGroup as the API has it in JSON. Raises ``InvalidGroupError``.

    >>> guest = {"cpus": {"min": 1, "max": 4}, "memorySlots": {"min": 1, "max": 8}}
    >>> spec = {"replicas": 2, "template": {"spec": {"guest": guest}}, "drain": {"gracePeriod": "1m"}}
    >>> group = parse_vm_group({"metadata": {"namespace": "default", "name": "shop"}, "spec": spec})
    >>> group.spec.replicas, group.spec.grace, group.port
    (2, 60.0, 5432)
    """
    name = name_of(found)
    if not _NAME.fullmatch(name.name):
        raise InvalidGroupError(
            "metadata.name: expected at most 40 lower-case letters, digits and hyphens, beginning with a letter "
            f"(VMs and a Service are named after it), got {shown(name.name)}"
        )
    template = _template(found, name, "template")
    replica_template = (
        # Without a template of its own a replica is made like the primary.
        _template(found, name, "replicaTemplate") if "replicaTemplate" in child(found, "spec") else template
    )
    return VmGroup(
        name=name,
        uid=uid_of(found),
        spec=_spec(found, name),
        template=template,
        replica_template=replica_template,
        port=whole_field(found, ("readEndpoint", "port"), POSTGRES, 1, 65_535),
        scaling=read_scaling(found, replica_template),
        scaled=read_memory(found),
        primary_uid=text(found, "status", "primary", "uid"),
    )


def _spec(found: JsonObject, name: ObjectName) -> GroupSpec:
    defaults = GroupSpec(name.name, 0)
    spec = GroupSpec(
        name=name.name,
        replicas=whole_field(found, ("replicas",), 1, 0, MOST_REPLICAS),
        max_lag=duration_field(found, ("readEndpoint", "maxLag"), defaults.max_lag),
        grace=duration_field(found, ("drain", "gracePeriod"), defaults.grace),
        drain_timeout=duration_field(found, ("drain", "timeout"), defaults.drain_timeout),
    )
    if spec.drain_timeout < spec.grace:
        raise InvalidGroupError(
            f"spec.drain.timeout: expected at least the grace period of {spec.grace:g} s, got {spec.drain_timeout:g} s"
        )
    return spec


def _template(found: JsonObject, name: ObjectName, field: str) -> Json:
    template = child(found, "spec", field)
    spec = child(template, "spec")
    # Only a trial: the VM is read to check the template, and the name is a placeholder.
    trial = {"metadata": {"namespace": name.namespace, "name": name.name}, "spec": spec}
    try:
        parse_virtual_machine(trial)
    except InvalidObjectError as error:
        raise InvalidGroupError(f"spec.{field}.{error}") from None
    if f"{KERNEL_PRIMARY}=" in text(spec, "guest", "appendKernelCmdline"):
        raise InvalidGroupError(
            f"spec.{field}.spec.guest.appendKernelCmdline: expected no {KERNEL_PRIMARY}: the group sets it for replicas"
        )
    return {"metadata": child(template, "metadata"), "spec": spec}
