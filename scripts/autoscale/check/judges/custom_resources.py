"""Our CRDs: installed, served, and with the fields that we read and write (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from protocol.kubernetes.objects import Json, child, flag, items, text
from protocol.kubernetes.resources import HVPAS, MIGRATIONS, TORTOISES, VIRTUAL_MACHINES, VM_GROUPS, Resource
from scripts.autoscale.check.facts import CheckFacts
from scripts.autoscale.check.finding import CheckProblem, CheckResult, CheckSection, Level, When, check_of
from scripts.autoscale.check.installed_programs import by_name, installed

check = partial(check_of, CheckSection.DEFINITIONS)


@dataclass(frozen=True, slots=True)
class NeededKind:
    """A kind that ``program`` needs, or all programs if empty; ``fields`` are the required ones, as dotted paths."""

    resource: Resource
    fields: tuple[str, ...]
    program: str = ""

    @property
    def name(self) -> str:
        """The CRD's name.

        >>> NeededKind(VIRTUAL_MACHINES, ()).name
        'virtualmachines.vm.neon.tech'
        """
        return f"{self.resource.plural}.{self.resource.group}"


_GUEST: Final = "spec.guest"
NEEDED: Final = (
    NeededKind(
        VIRTUAL_MACHINES,
        (
            *(f"{_GUEST}.cpus.{limit}" for limit in ("min", "max", "use")),
            *(f"{_GUEST}.memorySlots.{limit}" for limit in ("min", "max", "use")),
            *(f"{_GUEST}.memorySlotSize", f"{_GUEST}.rootDisk.image", f"{_GUEST}.ports"),
            *("spec.schedulerName", "spec.nodeSelector", "spec.extraNetwork.enable"),
            *(f"status.{name}" for name in ("phase", "podName", "podIP", "node", "cpus", "memorySize", "conditions")),
        ),
    ),
    NeededKind(
        MIGRATIONS,
        (
            *(f"spec.{name}" for name in ("vmName", "completionTimeout", "maxBandwidth", "nodeAffinity")),
            *(f"status.{name}" for name in ("phase", "sourcePodName", "targetPodName", "sourceNode", "targetNode")),
        ),
    ),
    NeededKind(HVPAS, ("spec", "status"), "autoscaling-groups"),
    NeededKind(TORTOISES, ("spec", "status"), "autoscaling-groups"),
    NeededKind(VM_GROUPS, ("spec", "status"), "autoscaling-groups"),
)


@check(
    "definitions-in-the-way",
    "existing CRDs are compatible",
    "kubectl diff -f deploy/neonvm.yaml",
    When.BEFORE,
)
def existing_are_compatible(facts: CheckFacts) -> CheckResult:
    """Another release of NeonVM may have installed the CRD VirtualMachine with fewer fields. Ours has every field of
    v0.49.1, so NeonVM's controller keeps working if you replace it.
    """
    definitions = by_name(facts.crds.value)
    installed = [kind for kind in NEEDED if kind.name in definitions]
    problems = [
        CheckProblem(
            kind.name,
            f"the CRD {kind.name} already exists and lacks {', '.join(missing)}; installing replaces it",
            Level.WARNING,
        )
        for kind in installed
        if (missing := list(_missing(kind, definitions[kind.name])))
    ]
    return CheckResult(
        f"{len(installed)} of {len(NEEDED)} CRDs already exist" if installed else "none exists yet", problems
    )


@check(
    "definitions-served",
    "the CRDs are installed and served",
    "kubectl apply --server-side -f deploy/neonvm.yaml -f deploy/kubernetes/crds/",
)
def are_installed(facts: CheckFacts) -> CheckResult:
    """Without VirtualMachine the scheduler never becomes ready. Without VirtualMachineMigration VMs cannot migrate.
    Hvpa, Tortoise and VirtualMachineGroup are needed if `autoscaling-groups` is installed.
    """
    definitions, programs = by_name(facts.crds.value), installed(facts)
    needed = [kind for kind in NEEDED if not kind.program or kind.program in programs]
    problems = [problem for kind in needed if (problem := _not_served(kind, definitions.get(kind.name)))]
    return CheckResult(f"{len(needed)} CRDs", problems)


@check(
    "definitions-fields",
    "the CRDs have the required fields",
    "kubectl apply --server-side --force-conflicts -f deploy/neonvm.yaml",
)
def crds_have_fields(facts: CheckFacts) -> CheckResult:
    """With a CRD from another project or an older release the API server silently drops fields that we write."""
    definitions = by_name(facts.crds.value)
    problems = [
        CheckProblem(kind.name, f"the CRD {kind.name} lacks {', '.join(missing)}")
        for kind in NEEDED
        if kind.name in definitions and (missing := list(_missing(kind, definitions[kind.name])))
    ]
    return CheckResult("", problems)


def _version(needed: NeededKind, definition: Json) -> Json | None:
    versions = items(definition, "spec", "versions")
    return next((version for version in versions if text(version, "name") == needed.resource.version), None)


def _not_served(needed: NeededKind, definition: Json | None) -> CheckProblem | None:
    if definition is None:
        return CheckProblem(needed.name, f"the CRD {needed.name} is not installed")
    version = _version(needed, definition)
    if version is None or not flag(version, "served"):
        return CheckProblem(needed.name, f"the CRD {needed.name} does not serve {needed.resource.version}")
    for condition in items(definition, "status", "conditions"):
        # NamesAccepted is False if another CRD already uses the plural or the kind.
        if text(condition, "type") in ("Established", "NamesAccepted") and text(condition, "status") != "True":
            why = text(condition, "message") or text(condition, "reason")
            return CheckProblem(needed.name, f"the CRD {needed.name} is not {text(condition, 'type')}: {why}")
    return None


def _missing(needed: NeededKind, definition: Json) -> Iterator[str]:
    version = _version(needed, definition)
    if version is None:
        return
    schema = child(version, "schema", "openAPIV3Schema")
    yield from (path for path in needed.fields if not _has(schema, path.split(".")))
    # Without it a write to /status gives 404, and writes of the spec could change the status.
    if "status" not in child(version, "subresources"):
        yield "the status subresource"


def _has(schema: Json, path: list[str]) -> bool:
    # The API server keeps unknown fields below such a field.
    if not path or flag(schema, "x-kubernetes-preserve-unknown-fields"):
        return True
    properties = child(schema, "properties")
    return path[0] in properties and _has(child(properties, path[0]), path[1:])
