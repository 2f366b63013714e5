"""VirtualMachineGroup objects, read into one frozen value (pure).

- A bad field raises ``InvalidGroupError`` with its path: the object's condition shows that, and the group is not
  changed.
- The templates are kept as they are written, but must make a VM that can be read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from protocol.field_errors import shown
from protocol.kubernetes.objects import Json, JsonObject, child, is_leaving, name_of, text, uid_of
from protocol.messages import ObjectName
from protocol.names import KERNEL_PRIMARY
from protocol.virtual_machine import InvalidObjectError, parse_virtual_machine
from scheduler_plugin.groups.core.replicas.members import GroupSpec
from scheduler_plugin.groups.core.replicas.scaling import GroupScaling, ScalingMemory
from scheduler_plugin.groups.objects.group_fields import InvalidGroupError, duration_field, whole_field
from scheduler_plugin.groups.objects.group_scaling import MOST_REPLICAS, read_memory, read_scaling

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
    is_leaving: bool


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
        is_leaving=is_leaving(found),
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
