"""Objects and lists as the client wants them: plain, as a Table, or their metadata alone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from starlette.responses import Response

from deploy.local.apiserver.api import in_version, raw_in_version
from deploy.local.apiserver.columns import partial_metadata, table
from deploy.local.apiserver.errors import ApiError
from deploy.local.apiserver.history import Stored
from deploy.local.apiserver.jsonvalue import JsonObject, encode
from deploy.local.apiserver.listing import Page
from deploy.local.apiserver.requests import Form
from deploy.local.apiserver.resources import Resource
from deploy.local.apiserver.watching import Shape

_MEDIA_TYPE: Final = "application/json"


def json_response(value: object, code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(encode(value), code, headers, _MEDIA_TYPE)


def raw_response(raw: bytes, code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer that is JSON text already."""
    return Response(raw, code, headers, _MEDIA_TYPE)


def refusal(error: ApiError) -> Response:
    """The answer to a request that is refused."""
    headers = dict(error.headers)
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    return json_response(error.status(), error.code, headers)


def object_body(resource: Resource, stored: Stored, form: Form, include: str, now: datetime) -> bytes:
    """One object in the form that is wanted."""
    if form is Form.PLAIN:
        return raw_in_version(resource, stored)
    body = in_version(resource, stored.body)
    if form is Form.PARTIAL:
        return encode(partial_metadata(body))
    meta = {"resourceVersion": body["metadata"].get("resourceVersion", "")}
    return encode(table(resource, (body,), meta, now, include))


def list_body(resource: Resource, page: Page, form: Form, include: str, now: datetime) -> bytes:
    """A page of a list in the form that is wanted."""
    if form is Form.PLAIN:
        head = encode({"kind": resource.kind_of_list, "apiVersion": resource.api_version, "metadata": page.meta()})
        items = b",".join([raw_in_version(resource, item) for item in page.items])
        return b'%s,"items":[%s]}' % (head[:-1], items)
    bodies = [in_version(resource, item.body) for item in page.items]
    if form is Form.PARTIAL:
        shown = [partial_metadata(body) for body in bodies]
        head_only: JsonObject = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
        return encode({**head_only, "metadata": page.meta(), "items": shown})
    return encode(table(resource, bodies, page.meta(), now, include))


def watch_shape(resource: Resource, form: Form, include: str, now: datetime) -> Shape | None:
    """How a watch of this form shows an object; None where the stored text will do."""
    if form is Form.TABLE:
        first = [True]

        def as_table(body: JsonObject) -> JsonObject:
            shown = in_version(resource, body)
            meta = {"resourceVersion": body["metadata"]["resourceVersion"]}
            headers, first[0] = first[0], False
            return table(resource, (shown,), meta, now, include, headers)

        return as_table
    if form is Form.PARTIAL:
        return lambda body: partial_metadata(in_version(resource, body))
    if resource.api_version == resource.stored_api_version:
        return None
    return lambda body: in_version(resource, body)
