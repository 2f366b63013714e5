"""The OpenAPI page of a listener (``/openapi.json``), with the hot paths that are no routes of FastAPI's.

FastAPI's own routes validate and convert; that costs more than a permit does. Hot paths are raw routes and take part in
the page through ``Operation``. All schemas are made of the very types that decode and encode the messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

Json = dict[str, Any]

_REFERENCE: Final = "#/components/schemas/{name}"


@dataclass(frozen=True, slots=True)
class Operation:
    """A POST that is no route of FastAPI's: what it takes, and what it answers by status."""

    path: str
    summary: str
    takes: Any
    gives: Mapping[int, tuple[str, Any]]


def content(of: Any) -> Json:
    """``content`` of a request or answer in JSON of this type."""
    # A copy: FastAPI may change what it is given, and the schema is cached.
    return {"application/json": {"schema": dict(_schema(of))}}


@cache
def _schema(of: Any) -> Json:
    (schema,), _ = msgspec.json.schema_components([of], ref_template=_REFERENCE)
    return schema


def answers(gives: Mapping[int, tuple[str, Any]]) -> dict[int | str, Json]:
    """``responses`` of an operation."""
    return {
        status: {"description": text} | ({} if kind is None else {"content": content(kind)})
        for status, (text, kind) in gives.items()
    }


def document(app: FastAPI, operations: Sequence[Operation], shapes: Sequence[Any]) -> None:
    """Extend the page of ``app``: its own routes, these operations, and the schemas of all their types.

    The page is made when it is first asked for: a scheduler that starts has more urgent work.
    """

    def page() -> Json:
        # The attribute in which FastAPI itself caches the page.
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            for operation in operations:
                schema["paths"].setdefault(operation.path, {})["post"] = _operation(operation)
            schema.setdefault("components", {}).setdefault("schemas", {}).update(_schemas(operations, shapes))
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = page  # type: ignore[method-assign]  # FastAPI's way to extend the page


def _schemas(operations: Sequence[Operation], shapes: Sequence[Any]) -> Json:
    types = [
        *shapes,
        *(operation.takes for operation in operations),
        *(kind for operation in operations for _, kind in operation.gives.values()),
    ]
    return msgspec.json.schema_components(types, ref_template=_REFERENCE)[1]


def _operation(one: Operation) -> Json:
    responses = {str(status): answer for status, answer in answers(one.gives).items()}
    request = {"required": True, "content": content(one.takes)}
    return {"summary": one.summary, "responses": responses, "requestBody": request}
