"""Decodes ``tortoises.autoscaling.mercari.com/v1beta3`` (S3.1-S3.7).

- Invalid fields raise ``InvalidSpecError`` with one sentence each; then nothing is scaled.
- A VirtualMachine as target gets a floor (S3.7); it has no HPA and no containers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from protocol.field_errors import field_message, shown
from protocol.kubernetes.objects import Json, JsonObject, name_of
from protocol.messages import ObjectName
from protocol.names import VM_GROUP, VM_KIND, VM_VERSION
from protocol.units import Bytes, MilliCpu, QuantityError
from scheduler_plugin.groups.core.tortoise.autoscaler import Place, Policies, Scaling
from scheduler_plugin.groups.core.tortoise.configuration import Configuration
from scheduler_plugin.groups.core.tortoise.tortoise_memory import Spec, TortoiseMode
from scheduler_plugin.groups.core.workload import NOTHING, RESOURCES, Resource, ResourceList, SizeBounds
from scheduler_plugin.groups.objects.hvpa.fields import MOST_REPLICAS, FieldErrors
from scheduler_plugin.groups.objects.targets import InvalidSpecError

MOST_CONTAINERS: Final = 64
"""Maximum number of containers of one Tortoise, because its status has an entry for each."""

_NO_TARGET: Final[Json] = {"kind": ""}
_API_VERSIONS: Final = {VM_KIND: f"{VM_GROUP}/{VM_VERSION}"}


@dataclass(frozen=True, slots=True)
class Tortoise:
    """One Tortoise. ``target`` has apiVersion, kind and name.

    ``hpa`` is the name of its HPA: its own, or the attached one (``spec.autoscaler``). If ``deletes_all``, its own HPA
    is deleted with it. ``behavior`` is the ``behavior`` of its own HPA.
    """

    name: ObjectName
    spec: Spec
    target: Json
    hpa: str
    deletes_all: bool = False
    behavior: Json = field(default_factory=dict)

    @property
    def is_vm(self) -> bool:
        """True if the target is a single VM."""
        return self.target["kind"] == VM_KIND


class _Target(msgspec.Struct, frozen=True, rename="camel"):
    kind: str
    name: str
    api_version: str = ""


class _TargetRefs(msgspec.Struct, frozen=True, rename="camel"):
    scale_target_ref: _Target
    horizontal_pod_autoscaler_name: str | None = None


class _Policy(msgspec.Struct, frozen=True, rename="camel"):
    container_name: str
    policy: dict[str, str] = {}


class _Sizes(msgspec.Struct, frozen=True, rename="camel"):
    container_name: str
    min_allocated_resources: dict[str, object] | None = None
    max_allocated_resources: dict[str, object] | None = None


class _TortoiseSpec(msgspec.Struct, frozen=True, rename="camel"):
    target_refs: _TargetRefs
    update_mode: str = ""
    resource_policy: list[_Sizes] | None = None
    autoscaling_policy: list[_Policy] | None = None
    max_replicas: int | None = None
    deletion_policy: str = ""
    horizontal_pod_autoscaler_behavior: dict[str, object] | None = None


class _TortoiseObject(msgspec.Struct, frozen=True):
    spec: _TortoiseSpec


def parse_tortoise(obj: JsonObject, configuration: Configuration) -> Tortoise:
    """Decode the object. Raises ``InvalidSpecError``.

    >>> refs = {"scaleTargetRef": {"kind": "Deployment", "name": "shop"}}
    >>> found = {"metadata": {"namespace": "zoo", "name": "lovely"}, "spec": {"targetRefs": refs}}
    >>> tortoise = parse_tortoise(found, Configuration())
    >>> tortoise.hpa, tortoise.spec.mode, tortoise.target["apiVersion"]
    ('tortoise-hpa-lovely', <TortoiseMode.OFF: 'Off'>, 'apps/v1')
    """
    try:
        manifest = msgspec.convert(obj, _TortoiseObject).spec
    except (ValueError, RecursionError) as error:
        raise InvalidSpecError(field_message(error)) from None
    # Read all parts, to report every problem at once.
    name, refs, parts = name_of(obj), manifest.target_refs, FieldErrors()
    target = parts.read(lambda: _target(refs.scale_target_ref), _NO_TARGET)
    spec = Spec(
        configuration=configuration,
        # The default is Off, as upstream.
        mode=parts.read(
            lambda: _choice("spec.updateMode", TortoiseMode, manifest.update_mode or "Off"), TortoiseMode.OFF
        ),
        autoscaler=parts.read(lambda: _hpa(refs.horizontal_pod_autoscaler_name, target), None),
        policies=parts.read(lambda: _policies(manifest.autoscaling_policy), None),
        sizes=parts.read(lambda: _sizes(manifest.resource_policy), {}),
        max_replicas=parts.read(lambda: _max_replicas(manifest.max_replicas), None),
    )
    deletes = parts.read(lambda: _deletes(manifest.deletion_policy), False)
    if parts.problems:
        raise InvalidSpecError("; ".join(parts.problems))
    # Upstream's name for a Tortoise's own HPA, so that an existing one is found.
    hpa = spec.autoscaler or f"tortoise-hpa-{name.name}"
    return Tortoise(name, spec, target, hpa, deletes, manifest.horizontal_pod_autoscaler_behavior or {})


C = TypeVar("C", TortoiseMode, Scaling)


def _target(target: _Target) -> Json:
    path = "spec.targetRefs.scaleTargetRef"
    if not target.kind or not target.name:
        raise ValueError(f"{path}: expected a kind and a name")
    version = target.api_version or _API_VERSIONS.get(target.kind, "apps/v1")
    return {"apiVersion": version, "kind": target.kind, "name": target.name}


def _hpa(text: str | None, target: Json) -> str | None:
    if text and target["kind"] == VM_KIND:
        raise ValueError(f"spec.targetRefs.horizontalPodAutoscalerName: expected none, a {VM_KIND} has no replicas")
    return text or None


def _choice(path: str, kinds: type[C], text: str) -> C:
    if text not in list(kinds):
        raise ValueError(f"{path}: expected one of {', '.join(kinds)}, got {shown(text)}")
    return kinds(text)


def _max_replicas(value: int | None) -> int | None:
    if value is not None and not 1 <= value <= MOST_REPLICAS:
        raise ValueError(f"spec.maxReplicas: expected a whole number from 1 to {MOST_REPLICAS}, got {value}")
    return value


def _deletes(text: str) -> bool:
    if text not in ("", "NoDelete", "DeleteAll"):
        raise ValueError(f"spec.deletionPolicy: expected one of NoDelete, DeleteAll, got {shown(text)}")
    return text == "DeleteAll"


def _policies(entries: list[_Policy] | None) -> Policies | None:
    """The policies; None if there are none."""
    if not entries:
        return None
    policies: dict[Place, Scaling] = {}
    for path, entry in _named("spec.autoscalingPolicy", entries):
        for resource, policy in entry.policy.items():
            place = (entry.container_name, _resource(f"{path}.policy", resource))
            policies[place] = _choice(f"{path}.policy.{resource}", Scaling, policy)
    return policies


def _sizes(entries: list[_Sizes] | None) -> dict[str, SizeBounds]:
    bounds: dict[str, SizeBounds] = {}
    for path, entry in _named("spec.resourcePolicy", entries or []):
        minimum = _amounts(f"{path}.minAllocatedResources", entry.min_allocated_resources or {})
        maximum = _amounts(f"{path}.maxAllocatedResources", entry.max_allocated_resources or {})
        for resource, amount in minimum:
            highest = maximum[resource]
            if highest is not None and highest < amount:
                raise ValueError(f"{path}.minAllocatedResources.{resource}: expected at most {highest}, got {amount}")
        bounds[entry.container_name] = SizeBounds(minimum, maximum)
    return bounds


P = TypeVar("P", _Policy, _Sizes)


def _named(path: str, entries: list[P]) -> list[tuple[str, P]]:
    """Entries with their paths. Raises ``ValueError`` unless all container names are unique and not empty."""
    names = [entry.container_name for entry in entries]
    if len(names) > MOST_CONTAINERS:
        raise ValueError(f"{path}: expected at most {MOST_CONTAINERS} containers, got {len(names)}")
    for number, name in enumerate(names):
        if not name or name in names[:number]:
            raise ValueError(f"{path}[{number}].containerName: expected a unique name, got {shown(name)}")
    return [(f"{path}[{number}]", entry) for number, entry in enumerate(entries)]


def _resource(path: str, text: str) -> Resource:
    for resource in RESOURCES:
        if text == resource:
            return resource
    raise ValueError(f"{path}: expected cpu and memory, got {shown(text)}")


def _amounts(path: str, quantities: dict[str, object]) -> ResourceList:
    amounts = NOTHING
    for name, quantity in quantities.items():
        resource = _resource(path, name)
        try:
            amount = (MilliCpu if resource == "cpu" else Bytes).parse(quantity)  # type: ignore[arg-type]  # or refuses
        except QuantityError as error:
            raise ValueError(f"{path}.{resource}: {error}") from None
        amounts = amounts.with_value(resource, amount.value)
    return amounts
