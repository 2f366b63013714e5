"""A small client of the Kubernetes API: the few calls that the local runtime and the command line need.

Rules that hold here:

- Every call has a deadline; a watch has one for silence. Nothing is retried here: callers are level-triggered.
- Two errors leave this module: ``ApiError`` (the server said no, and why) and ``ApiUnavailableError`` (no usable
  answer; what was asked may or may not have happened).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final, cast

import httpx
import msgspec

from protocol.kubernetes.objects import Json, text, whole
from protocol.kubernetes.resources import Resource
from protocol.messages import ObjectName

MERGE_PATCH: Final = "application/merge-patch+json"


class ApiError(Exception):
    """The API server refused: ``status`` is the HTTP code, ``reason`` its one-word reason."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{message or reason} ({status})")
        self.status = status
        self.reason = reason


class ApiUnavailableError(Exception):
    """No usable answer came from the API server; the request may have been carried out."""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One line of a watch: ADDED, MODIFIED, DELETED or BOOKMARK, and the object."""

    type: str
    object: Json


class ApiClient:
    """Calls on one API server. Close it when done (``async with``)."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def __aenter__(self) -> ApiClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def get(self, kind: Resource, name: ObjectName) -> Json:
        """One object. Raises ``ApiError`` with status 404 where there is none."""
        return await self._call("GET", kind.path(name.namespace, name.name))

    async def list(self, kind: Resource, namespace: str = "", label_selector: str = "") -> Json:
        """The whole list object: ``items`` and ``metadata.resourceVersion``."""
        query = {"labelSelector": label_selector} if label_selector else {}
        return await self._call("GET", kind.path(namespace), query=query)

    async def create(self, kind: Resource, namespace: str, body: Json) -> Json:
        """Creates the object and returns it as stored."""
        return await self._call("POST", kind.path(namespace), body=body)

    async def merge_patch(self, kind: Resource, name: ObjectName, body: Json, subresource: str = "") -> Json:
        """Merges ``body`` into the object, or into its subresource. Returns the object as stored."""
        path = kind.path(name.namespace, name.name, subresource)
        return await self._call("PATCH", path, body=body, content_type=MERGE_PATCH)

    async def post_subresource(self, kind: Resource, name: ObjectName, subresource: str, body: Json) -> Json:
        """Posts to a subresource such as ``token`` or ``binding``."""
        return await self._call("POST", kind.path(name.namespace, name.name, subresource), body=body)

    async def delete(self, kind: Resource, name: ObjectName, uid: str = "", grace: int | None = None) -> None:
        """Deletes the object, with ``uid`` only where it is still that one; ``grace`` in seconds, 0 removes it now."""
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        await self._call("DELETE", kind.path(name.namespace, name.name), body=options)

    async def raw_get(self, path: str) -> bytes:
        """Any path of the API server, such as ``/readyz`` or the proxy of a pod."""
        return (await self._send("GET", path, {}, None, "")).content

    async def watch(self, kind: Resource, resource_version: str) -> AsyncIterator[WatchEvent]:
        """Changes after ``resource_version``, until the server ends the watch. Raises ``ApiError`` 410 when too old."""
        query = {
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": "240",
        }
        try:
            timeout = httpx.Timeout(10.0, read=300.0)
            async with self._http.stream("GET", kind.path(), params=query, timeout=timeout) as response:
                if response.status_code != httpx.codes.OK:
                    raise _refusal(response.status_code, await response.aread())
                async for line in response.aiter_lines():
                    if line:
                        yield _watch_event(line)
        except httpx.HTTPError as error:
            raise ApiUnavailableError(f"watch of {kind.plural} broke: {error!r}") from error

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Json | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        response = await self._send(method, path, query or {}, body, content_type)
        try:
            return msgspec.json.decode(response.content, type=Json) if response.content else {}
        except msgspec.DecodeError as error:
            raise ApiUnavailableError(f"{method} {path}: the answer is not JSON: {error}") from error

    async def _send(
        self, method: str, path: str, query: Mapping[str, str], body: Json | None, content_type: str
    ) -> httpx.Response:
        content = msgspec.json.encode(body) if body is not None else None
        headers = {"Content-Type": content_type} if content is not None else {}
        try:
            response = await self._http.request(method, path, params=dict(query), content=content, headers=headers)
        except httpx.HTTPError as error:
            raise ApiUnavailableError(f"{method} {path}: {error!r}") from error
        if response.is_success:
            return response
        raise _refusal(response.status_code, response.content)


def _watch_event(line: str) -> WatchEvent:
    event = msgspec.json.decode(line, type=Json)
    found = cast("Json", event.get("object") or {})
    kind = text(event, "type")
    if kind == "ERROR":
        raise ApiError(whole(found, "code") or 500, text(found, "reason"), text(found, "message"))
    return WatchEvent(kind, found)


def _refusal(status: int, body: bytes) -> ApiError:
    try:
        said = msgspec.json.decode(body, type=Json)
    except msgspec.DecodeError:
        said = {"message": body[:200].decode(errors="replace")}
    return ApiError(status, text(said, "reason"), text(said, "message"))
