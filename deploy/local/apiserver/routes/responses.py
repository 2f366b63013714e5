"""Responses with objects and lists: plain, as a Table, or metadata only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from starlette.responses import Response

from deploy.local.apiserver.apimachinery.errors import StatusError
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject, encode
from deploy.local.apiserver.registry.listing import ListPage
from deploy.local.apiserver.registry.object_versions import in_version, raw_in_version
from deploy.local.apiserver.registry.watching import Shape
from deploy.local.apiserver.resources.columns import Tables, partial_metadata
from deploy.local.apiserver.resources.resource import ServedResource
from deploy.local.apiserver.routes.requests import Form
from deploy.local.apiserver.storage.store import StoredObject

_MEDIA_TYPE: Final = "application/json"


def json_response(value: object, code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response."""
    return raw_response(encode(value), code, headers)


def raw_response(raw: bytes, code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response of JSON text."""
    return Response(raw, code, headers, _MEDIA_TYPE)


def refusal(error: StatusError) -> Response:
    """The response to a refused request."""
    headers = dict(error.headers)
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    return json_response(error.status(), error.code, headers)


@dataclass(frozen=True, slots=True)
class ClientView:
    """Encodes objects of one resource in the form that the client requested. ``include`` is for Tables."""

    resource: ServedResource
    form: Form
    include: str
    now: datetime

    @property
    def _tables(self) -> Tables:
        return Tables(self.resource, self.now, self.include)

    def object(self, stored: StoredObject) -> bytes:
        """One object."""
        if self.form is Form.PLAIN:
            return raw_in_version(self.resource, stored)
        body = in_version(self.resource, stored.body)
        if self.form is Form.PARTIAL:
            return encode(partial_metadata(body))
        meta = {"resourceVersion": body["metadata"].get("resourceVersion", "")}
        return encode(self._tables.table((body,), meta, headers=True))

    def list(self, page: ListPage) -> bytes:
        """A page of a list."""
        resource = self.resource
        if self.form is Form.PLAIN:
            head = encode({"kind": resource.kind_of_list, "apiVersion": resource.api_version, "metadata": page.meta()})
            # The stored texts are joined, to not encode thousands of objects again.
            items = b",".join([raw_in_version(resource, item) for item in page.items])
            return b'%s,"items":[%s]}' % (head[:-1], items)
        bodies = [in_version(resource, item.body) for item in page.items]
        if self.form is Form.PARTIAL:
            partials = [partial_metadata(body) for body in bodies]
            head_only: JsonObject = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
            return encode({**head_only, "metadata": page.meta(), "items": partials})
        return encode(self._tables.table(bodies, page.meta(), headers=True))

    def shape(self) -> Shape | None:
        """Conversion of objects for a watch; None for the stored texts."""
        resource = self.resource
        if self.form is Form.TABLE:
            return _table_shape(self._tables)
        if self.form is Form.PARTIAL:
            return lambda body: partial_metadata(in_version(resource, body))
        # These watches share the stored texts.
        if resource.api_version == resource.stored_api_version:
            return None
        return lambda body: in_version(resource, body)


def _table_shape(tables: Tables) -> Shape:
    # Yields once: only the first Table of a watch has column definitions.
    headers = iter((True,))

    def as_table(body: JsonObject) -> JsonObject:
        meta = {"resourceVersion": body["metadata"]["resourceVersion"]}
        return tables.table((in_version(tables.resource, body),), meta, headers=next(headers, False))

    return as_table
