"""Every value has a description, a default, and a template that uses it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest

from scripts.manifests.__main__ import ROOT
from scripts.manifests.rendering import CHART
from scripts.manifests.values_table import resolved, table, with_table
from tests import plain_yaml

FOLDER = ROOT / CHART
SCHEMA: dict[str, Any] = json.loads((FOLDER / "values.schema.json").read_text())
VALUES: dict[str, Any] = plain_yaml.load((FOLDER / "values.yaml").read_text())


PASSED_ON = re.compile(r"(^|\.)(resources|affinity|issuer|podSecurityContext|securityContext)\..+")
"""Fields of these are not looked at one by one: the whole is rendered."""


@cache
def templates() -> str:
    """The text of all templates."""
    return "\n".join(path.read_text() for path in (FOLDER / "templates").rglob("*") if path.is_file())


def parts(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every value of the schema, also those that have values of their own."""
    found = resolved(SCHEMA, schema)
    yield path, found
    for name, part in found.get("properties", {}).items():
        yield from parts(part, f"{path}.{name}".lstrip("."))


def unknown(schema: Mapping[str, Any], values: object, path: str = "") -> list[str]:
    """The paths of values that the schema does not have, or has as something else."""
    found = resolved(SCHEMA, schema)
    kinds = {"object": dict, "string": str, "boolean": bool, "integer": int, "array": list, "null": type(None)}
    said = found["type"] if isinstance(found["type"], list) else [found["type"]]
    if not isinstance(values, tuple(kinds[each] for each in said)):
        return [f"{path} is no {' or '.join(said)}"]
    if "enum" in found and values not in found["enum"]:
        return [f"{path} is none of {found['enum']}"]
    if isinstance(values, str) and not re.search(found.get("pattern", ""), values):
        return [f"{path} is not as {found['pattern']}"]
    if "properties" not in found or not isinstance(values, dict):
        return []
    strange = [f"{path}.{name} is not there" for name in values.keys() - found["properties"].keys()]
    within = (unknown(found["properties"][name], values[name], f"{path}.{name}") for name in values.keys() - strange)
    return strange or [each for one in within for each in one]


def test_the_defaults_are_what_the_schema_says() -> None:
    assert unknown(SCHEMA, VALUES) == []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"scheduler": {"enabld": True}}, [".scheduler.enabld is not there"]),
        ({"groups": {"replicas": "two"}}, [".groups.replicas is no integer"]),
        ({"image": {"pullPolicy": "Sometimes"}}, ["pullPolicy is none of"]),
        ({"test": {"image": {"digest": "sha1:0"}}}, ["digest is not as"]),
    ],
)
def test_misspelt_or_mistyped_value_is_found(values: dict[str, Any], said: list[str]) -> None:
    found = unknown(SCHEMA, values)
    assert [text in each for text, each in zip(said, found, strict=True)] == [True]


def test_every_value_is_described_and_closed() -> None:
    assert [path for path, found in parts(SCHEMA) if not found.get("description")] == []
    closed = [path for path, found in parts(SCHEMA) if "properties" in found and found.get("additionalProperties", 1)]
    assert closed == ["global"], "only what other charts read too is open"


def test_lists_of_objects_are_closed_too() -> None:
    """A misspelt field of a toleration, a variable or a pull secret would be dropped without a word."""
    lists = [(path, found["items"]) for path, found in parts(SCHEMA) if found["type"] == "array"]
    objects = [(path, each) for path, each in lists if each["type"] == "object"]
    assert {path.rpartition(".")[2] for path, _ in objects} == {
        "env",
        "pullSecrets",
        "tolerations",
        "topologySpreadConstraints",
    }
    assert [path for path, each in objects if each.get("additionalProperties", True)] == []


def test_required_values_are_those_with_defaults() -> None:
    """Templates must not need values that ``--reuse-values`` over an older chart, or a null, would remove."""
    text = (FOLDER / "templates/refusals/_missing.tpl").read_text()
    (names,) = re.findall(r'define "autoscale.requiredValues" -}}\n(.*?){{- end', text, re.DOTALL)
    assert sorted(names.split()) == sorted(required(SCHEMA, VALUES))


def required(schema: Mapping[str, Any], values: Mapping[str, Any], path: str = "") -> list[str]:
    """The leaves whose default installs something, and sections that have none."""
    found: list[str] = []
    for name, value in values.items():
        part, at = schema["properties"][name], f"{path}.{name}".lstrip(".")
        if name == "podSecurityContext":
            found += [at]
        elif name in {"resources", "affinity", "issuer", "priorityClassName"}:
            continue
        elif "properties" in resolved(SCHEMA, part):
            found += required(resolved(SCHEMA, part), value, at) or [at]
        elif value and not isinstance(value, dict | list):
            found += [at]
    return found


def test_every_component_value_is_used() -> None:
    names = {path.rpartition(".")[2] for path, _ in parts(SCHEMA) if not PASSED_ON.search(path)} - {""}
    assert [name for name in sorted(names) if not re.search(rf"\.{name}\b", templates())] == []


def test_templates_use_only_existing_values() -> None:
    known = {path for path, _ in parts(SCHEMA)}
    used = set(re.findall(r"\.Values\.([A-Za-z][A-Za-z.]*[A-Za-z])", templates()))
    assert sorted(used - known) == []


def test_settings_that_can_be_laid_over_are_there() -> None:
    laid = re.findall(r'"autoscale.settingsText" \(list \$ "([^"]+)"', templates())
    assert sorted(laid) == sorted(f"settings/{path.name}" for path in (FOLDER / "settings").iterdir())


def test_table_has_row_per_value_and_default() -> None:
    schema = {
        "properties": {
            "a": {"description": "Its parts.", "properties": {"b": {"$ref": "#/definitions/text"}}},
            "c": {"$ref": "#/definitions/text"},
            "d": {"description": "Many."},
        },
        "definitions": {"text": {"description": "A text."}},
    }
    rows = table(schema, {"a": {"b": "x"}, "d": [1]})
    assert rows.splitlines()[2:] == ["| `a.b` | `x` | A text. |", "| `d` | `[1]` | Many. |"]


def test_document_without_table_place_is_refused() -> None:
    with pytest.raises(ValueError, match="the document has no"):
        with_table("text", {"properties": {}}, {})
