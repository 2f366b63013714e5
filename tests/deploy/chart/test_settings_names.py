"""The chart refuses settings that the programs do not have, before a pod ends by them."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from pydantic import BaseModel

from agent import config as agent_policy
from protocol.units import Bytes
from scheduler_plugin.expander.settings import ExpanderSettings
from scheduler_plugin.groups.settings import GroupsSettings
from scheduler_plugin.injector.settings import InjectorSettings
from scheduler_plugin.settings import document as scheduler_settings
from scripts.manifests.values_table import resolved
from tests.deploy.chart.test_values import SCHEMA

Model = type[BaseModel] | type[msgspec.Struct]
DOCUMENTS: dict[str, Model] = {
    "scheduler.settings": scheduler_settings._Settings,
    "agent.policy": agent_policy._Document,
    "groups.settings": GroupsSettings,
    "expander.settings": ExpanderSettings,
    "injector.settings": InjectorSettings,
}


def fields(model: type[BaseModel | msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    """The fields of a section as files name them, with their types."""
    if issubclass(model, BaseModel):
        for name, found in model.model_fields.items():
            yield found.alias or name, found.annotation
    else:
        hints = get_type_hints(model)
        for each in msgspec.structs.fields(model):
            yield each.encode_name, hints[each.name]


def section_in(kind: Any) -> type[BaseModel | msgspec.Struct] | None:
    """The section that a field is, alone or as one of several types."""
    if get_origin(kind) in (Union, UnionType):
        return next((found for each in get_args(kind) if (found := section_in(each))), None)
    is_section = isinstance(kind, type) and issubclass(kind, BaseModel | msgspec.Struct)
    return kind if is_section and kind.__module__ != Bytes.__module__ else None  # amounts are texts in files


def names_of(model: Model) -> dict[str, Any]:
    """Property names of a section and its subsections in the schema. Some sections may also be strings."""
    known = dict(fields(model))
    within = {name: names_of(section) for name, kind in known.items() if (section := section_in(kind)) is not None}
    return {"propertyNames": {"enum": sorted(known)}, **({"properties": within} if within else {})}


def inlined(schema: Any) -> Any:
    """The schema without references."""
    return (
        {name: inlined(part) for name, part in resolved(SCHEMA, schema).items()} if isinstance(schema, dict) else schema
    )


@pytest.mark.parametrize("path", DOCUMENTS)
def test_chart_knows_names_of_settings(path: str) -> None:
    found: dict[str, Any] = SCHEMA
    for part in path.split("."):
        found = found["properties"][part]
    assert [inlined(part) for part in found["allOf"]] == [names_of(DOCUMENTS[path])]
