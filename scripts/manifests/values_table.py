"""The table of the chart's values, from its schema and defaults (pure)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

START: Final = "<!-- values: written by `make manifests` -->\n"
END: Final = "<!-- end of values -->\n"

_Json = Mapping[str, Any]


def with_table(document: str, schema: _Json, values: _Json) -> str:
    """``document`` with its table replaced. Raises ``ValueError`` without the table's markers."""
    before, start, rest = document.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"the document has no {START.strip()} … {END.strip()}")
    return f"{before}{START}{table(schema, values)}{END}{after}"


def table(schema: _Json, values: _Json) -> str:
    """The table in Markdown, with a row for each value that is not a section."""
    rows = (
        f"| `{name}` | {default} | {description} |\n" for name, default, description in _rows(schema, schema, values)
    )
    return "| Value | Default | |\n|---|---|---|\n" + "".join(rows)


def _rows(root: _Json, schema: _Json, values: object, path: str = "") -> Iterator[tuple[str, str, str]]:
    resolved_schema = resolved(root, schema)
    fields = values if isinstance(values, Mapping) else {}
    # A shared section (`$ref`) is one row, unless the chart sets one of its fields.
    if "properties" in resolved_schema and (fields or "$ref" not in schema):
        for name, part in resolved_schema["properties"].items():
            yield from _rows(root, part, fields.get(name), f"{path}.{name}" if path else name)
    elif "$ref" not in schema or values is not None:
        yield path, _default_cell(values), str(resolved_schema["description"])


def resolved(root: _Json, schema: _Json) -> _Json:
    """``schema``, or the definition that it refers to."""
    reference = schema.get("$ref")
    if reference is None:
        return schema
    definition: _Json = root["definitions"][str(reference).rpartition("/")[2]]
    return definition


def _default_cell(value: object) -> str:
    if value in (None, "", {}, []):
        return ""
    text = value if isinstance(value, str) else json.dumps(value)
    return f"`{text}`"
