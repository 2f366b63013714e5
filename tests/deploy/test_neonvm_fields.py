"""NeonVM's own controller finds every field and every default that it counts on in our definitions (decision 0009).

``tests/deploy/neonvm_v0_49_1_fields.json`` lists the fields of that release's definitions, with their defaults.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.deploy.manifests import ROOT, Document, documents

FIELDS: dict[str, dict[str, Document]] = json.loads((ROOT / "tests/deploy/neonvm_v0_49_1_fields.json").read_text())
OPEN = "x-kubernetes-preserve-unknown-fields"


def schema(plural: str) -> Document:
    (definition,) = (each for each in documents("deploy/neonvm.yaml") if each["spec"]["names"]["plural"] == plural)
    (version,) = definition["spec"]["versions"]
    found: Document = version["schema"]["openAPIV3Schema"]
    return found


def at(plural: str, path: str) -> Document | None:
    """The schema of a field, None where it would be dropped, an empty one where a parent keeps whatever it is given."""
    found: Any = schema(plural)
    for step in path.strip(".").replace("[]", ".[]").split("."):
        inside = found.get("items") if step == "[]" else found.get("properties", {}).get(step)
        if inside is None:
            return {} if found.get(OPEN) else None
        found = inside
    return dict(found)


def difference(plural: str, path: str, theirs: Document) -> str | None:
    """What is wrong with our form of a field."""
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
def test_no_field_of_neonvm_is_dropped_or_read_differently(plural: str) -> None:
    found = [difference(plural, path, theirs) for path, theirs in FIELDS[plural].items()]
    assert [each for each in found if each] == []


def test_what_a_newer_controller_writes_into_a_status_is_kept() -> None:
    for plural in FIELDS:
        assert schema(plural)["properties"]["status"][OPEN]
        assert OPEN not in schema(plural)["properties"]["spec"]


def test_no_short_name_repeats_another_name_of_its_definition() -> None:
    """Else the API server does not accept the names of a definition that is applied over NeonVM's."""
    for each in documents("deploy/neonvm.yaml"):
        names = each["spec"]["names"]
        others = {names["plural"], names["singular"], names["kind"].lower()}
        short = names.get("shortNames", [])
        assert (others & set(short), len(short)) == (set(), len(set(short)))
