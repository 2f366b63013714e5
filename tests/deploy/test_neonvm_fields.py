"""Our definitions have every field and every default of NeonVM's, and accept what its accept (decision 0009).

``tests/deploy/neonvm_v0_49_1_fields.json`` lists the fields of that release's definitions: type, default, what is
required inside, limits, and the grammar of amounts (``cpu`` begins with a digit, ``quantity`` may have a sign).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from deploy.local.apiserver.schema.structural import broken_rules
from deploy.local.apiserver.schema.validation import violations
from protocol.units import Resources
from protocol.virtual_machine import InvalidObjectError, VirtualMachine, parse_virtual_machine
from tests.deploy.manifests import ROOT, Document, documents

FIELDS: dict[str, dict[str, Document]] = json.loads((ROOT / "tests/deploy/neonvm_v0_49_1_fields.json").read_text())
OPEN = "x-kubernetes-preserve-unknown-fields"
WRITTEN: Final[dict[str, tuple[str, ...]]] = {"cpu": ("2", "0.25", "250m", "1.", "2k", "1e2", "1500000u", "1Ki")}
WRITTEN["quantity"] = (*WRITTEN["cpu"], "+1Gi", ".5Gi", "128M", "1E3", "1e-3", "12E", "1.5Ti")
"""Amounts that people and programs write. An amount below zero is accepted by NeonVM's alone."""

OURS_ALONE: Final = {
    ".spec": "memory in use is within its bounds, as NeonVM's webhook asks, and a slot can be plugged",
    ".spec.guest.cpus": "CPU in use is within its bounds, as NeonVM's webhook asks, and machines have so much",
}
"""Rules between fields."""


def schema(plural: str) -> Document:
    (definition,) = (each for each in documents("deploy/neonvm.yaml") if each["spec"]["names"]["plural"] == plural)
    (version,) = definition["spec"]["versions"]
    found: Document = version["schema"]["openAPIV3Schema"]
    return found


def at(plural: str, path: str) -> Document | None:
    """The schema of a field; None if the field is pruned, empty if a parent preserves unknown fields."""
    found: Any = schema(plural)
    for step in path.strip(".").replace("[]", ".[]").split("."):
        inside = found.get("items") if step == "[]" else found.get("properties", {}).get(step)
        if inside is None:
            return {} if found.get(OPEN) else None
        found = inside
    return dict(found)


def difference(plural: str, path: str, theirs: Document) -> str | None:
    """The error in our definition of a field."""
    ours = at(plural, path)
    if ours is None:
        return f"{path} would be dropped"
    kind = "int-or-string" if ours.get("x-kubernetes-int-or-string") else ours.get("type", theirs["type"])
    if kind != theirs["type"]:
        return f"{path} is {kind}, there it is {theirs['type']}"
    default = theirs.get("default")
    if default is not None and ours.get("default") != default:
        return f"{path} defaults to {ours.get('default')}, expected {default}"
    return None


@pytest.mark.parametrize("plural", FIELDS)
def test_neonvm_fields_are_preserved(plural: str) -> None:
    found = [difference(plural, path, theirs) for path, theirs in FIELDS[plural].items()]
    assert [each for each in found if each] == []


def test_newer_status_fields_are_kept() -> None:
    for plural in FIELDS:
        assert schema(plural)["properties"]["status"][OPEN]
        assert OPEN not in schema(plural)["properties"]["spec"]


def test_crd_names_match_neonvm_and_avoid_kubevirt() -> None:
    """The API server does not accept a short name that repeats another name of its definition."""
    found = {each["spec"]["names"]["kind"]: each["spec"]["names"] for each in documents("deploy/neonvm.yaml")}
    said = {kind: (names["singular"], names.get("shortNames", [])) for kind, names in found.items()}
    assert said == {"VirtualMachine": ("neonvm", []), "VirtualMachineMigration": ("neonvmm", ["vmm"])}


def stricter(ours: Document, theirs: Document) -> Iterator[str]:
    """In what our form of a field refuses what NeonVM's accepts."""
    if missing := set(ours.get("required", ())) - set(theirs.get("required", ())):
        yield f"requires {sorted(missing)}"
    if "enum" in ours and not set(theirs.get("enum", ours)) <= set(ours["enum"]):
        yield f"knows only {ours['enum']}"
    if any(key in ours and ours[key] > theirs.get(key, ours[key] - 1) for key in ("minimum", "minLength")):
        yield "has a greater least"
    if "maximum" in ours and ours["maximum"] < theirs.get("maximum", ours["maximum"] + 1):
        yield "has a smaller most"
    refused = [each for each in WRITTEN.get(theirs.get("grammar", ""), ()) if any(violations(each, ours, ""))]
    if refused:
        yield f"refuses {refused}"


@pytest.mark.parametrize("plural", FIELDS)
def test_no_field_refuses_what_neonvm_accepts(plural: str) -> None:
    found = {path: list(stricter(at(plural, path) or {}, theirs)) for path, theirs in FIELDS[plural].items()}
    assert {path: said for path, said in found.items() if said} == {}
    ruled = {path for path in FIELDS[plural] if (at(plural, path) or {}).get("x-kubernetes-validations")}
    assert ruled == (set(OURS_ALONE) if plural == "virtualmachines" else set())
    assert "required" not in schema(plural)


GUEST: Final[Document] = {
    "cpus": {"min": "0.25", "use": "0.25", "max": "1.25"},
    "memorySlotSize": "1024Mi",
    "memorySlots": {"min": 1, "use": 1, "max": 5},
    "rootDisk": {"image": "pg", "imagePullPolicy": "Always", "size": "+8Gi"},
    "ports": [{"port": 5432}, {"port": 53, "protocol": "SCTP"}],
    "settings": {"swap": ".5Gi", "sysctl": ["vm.overcommit_memory=2"]},
}


def faults(obj: Document) -> list[object]:
    """Errors of ``obj`` according to our definition of a VM."""
    found = schema("virtualmachines")
    return [*violations(obj, found, ""), *broken_rules(obj, found, None)]


def read(obj: Document) -> VirtualMachine:
    return parse_virtual_machine({"metadata": {"namespace": "default", "name": "db"}, **obj})


def test_neonvm_written_vm_stays_valid() -> None:
    status = {"phase": "Draining", "cpus": "0.25", "memorySize": "1e9"}
    obj: Document = {"spec": {"guest": GUEST, "terminationGracePeriodSeconds": -1}, "status": status}
    assert faults(obj) == []
    assert read(obj).bounds.max == Resources.parse("1250m", "5Gi")


_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("affinity", {"nodeAffinity": {_PREFERRED: [{"weight": "1", "preference": {}}]}}),
        ("affinity", {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [{"matchFields": [{"values": "a"}]}]}}}),
        ("affinity", {"podAntiAffinity": {_REQUIRED: {"topologyKey": "zone"}}}),
        (
            "affinity",
            {"podAffinity": {_PREFERRED: [{"podAffinityTerm": {"labelSelector": {"matchLabels": {"a": 1}}}}]}},
        ),
        ("tolerations", [{"key": "a", "tolerationSeconds": "30"}]),
        ("podResources", {"requests": {"cpu": [1]}}),
        ("podResources", {"limits": {"memory": "1 GB"}}),
        ("imagePullSecrets", [{"name": 1}]),
        ("disks", [{"name": "a", "mountPath": "/a", "readOnly": "yes"}]),
        ("disks", [{"name": "a", "mountPath": "/a", "emptyDisk": {"size": True}}]),
        ("disks", [{"name": "a", "mountPath": "/a", "secret": {"items": [{"key": "a", "path": "a", "mode": "0644"}]}}]),
        ("extraInitContainers", [{"name": "a", "tty": "yes"}]),
        ("extraInitContainers", [{"name": "a", "env": [{"name": "A", "value": 5}]}]),
        ("extraInitContainers", [{"name": "a", "livenessProbe": {"httpGet": {"port": {}}}}]),
        ("extraInitContainers", [{"name": "a", "securityContext": {"runAsUser": "0"}}]),
        ("guest", {"env": [{"name": "A", "value": 5}]}),
        ("guest", {"settings": {"swap": {}}}),
        ("guest", {"settings": {"sysctl": "vm.swappiness=1"}}),
    ],
)
def test_untypable_core_field_is_refused(field: str, value: object) -> None:
    """NeonVM's programs read VMs into Go types: a single VM that these cannot hold fails their whole list."""
    assert faults({"spec": {"guest": GUEST, field: value}}) != []


def test_untypable_node_affinity_is_refused() -> None:
    affinity = {"nodeAffinity": {_PREFERRED: [{"weight": "1", "preference": {}}]}}
    found = schema("virtualmachinemigrations")
    assert [*violations({"spec": {"vmName": "db"}}, found, "")] == []
    assert [*violations({"spec": {"vmName": "db", **affinity}}, found, "")] != []


def test_fractional_cpu_must_be_text() -> None:
    """The API server knows amounts as integers or texts; NeonVM's webhook writes a text before that is checked."""
    assert faults({"spec": {"guest": {**GUEST, "cpus": {"min": 0.25, "use": "0.25", "max": 1}}}}) != []


PLACED: Final[Document] = {
    "affinity": {
        "nodeAffinity": {
            _PREFERRED: [{"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}]
        },
        "podAntiAffinity": {_REQUIRED: [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}]},
        "newAffinity": {"a": 1},
    },
    "tolerations": [{"operator": "Exists", "tolerationSeconds": 30}],
    "podResources": {
        "requests": {"cpu": "1", "memory": 1024, "neonvm/kvm": 1},
        "limits": {"cpu": "1500m"},
        "newAmounts": 1,
    },
    "imagePullSecrets": [{"name": "registry"}],
    "disks": [
        {"name": "a", "mountPath": "/a", "emptyDisk": {"size": "2Gi", "enableQuotas": True}},
        {
            "name": "b",
            "mountPath": "/b",
            "configMap": {"name": "b", "items": [{"key": "b", "path": "b"}]},
            "watch": True,
        },
        {"name": "c", "mountPath": "/c", "tmpfs": {"size": "1Gi"}},
        {"name": "d", "mountPath": "/d", "newSource": {"size": 1}},
    ],
    "extraInitContainers": [
        {"name": "a", "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}], "newField": 1}
    ],
}


def test_core_fields_and_newer_ones_are_accepted() -> None:
    assert faults({"spec": {"guest": {**GUEST, "env": [{"name": "A", "value": "5"}]}, **PLACED}}) == []


@pytest.mark.parametrize("guest", [{"rootDisk": {"image": "pg"}}, {}])
def test_vm_without_sizes_is_one_cpu_and_slot(guest: Document) -> None:
    obj = {"spec": {"guest": guest}}
    assert faults(obj) == []
    assert read(obj).use == read(obj).bounds.max == Resources.parse(1, "1Gi")


def test_vm_without_spec_is_left_alone() -> None:
    assert faults({}) == []
    with pytest.raises(InvalidObjectError, match="the field is missing"):
        read({})


@pytest.mark.parametrize(
    "words", ["quiet loglevel=7", "autoscale.primary=10.0.0.1", 'dyndbg="file a +p"', "a--b x_maxcpus=1"]
)
def test_vm_may_add_kernel_words(words: str) -> None:
    assert faults({"spec": {"guest": {**GUEST, "appendKernelCmdline": words}}}) == []


@pytest.mark.parametrize(
    "words", ["maxcpus=2", "a autoscale.cpu=2000", "a\nnr-cpus=9", 'a "maxcpus=2"', "--", "a -- b"]
)
def test_kernel_words_for_size_are_refused(words: str) -> None:
    """The controller sets them: the kernel command line gives a guest its CPU and its addresses."""
    assert len(faults({"spec": {"guest": {**GUEST, "appendKernelCmdline": words}}})) == 1
