"""The embedded API server in the test's own process, on the test's own clock, behind the port of the groups' program.

A ``Connection`` is one process's way to it: it can be cut before or after its n-th write takes effect, as ``kill -9``
does, and everything that it wrote is kept to be looked at.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from itertools import count
from operator import attrgetter
from random import Random
from typing import Any, Final
from urllib.parse import urlencode

import yaml
from starlette.requests import Request

from deploy.local.apiserver.apimachinery.environment import Environment
from deploy.local.apiserver.apimachinery.errors import StatusError as ServerError
from deploy.local.apiserver.registry.watching import Watch
from deploy.local.apiserver.resources.definitions import CRD_KEY
from deploy.local.apiserver.routes.requests import target_of, watch_options
from deploy.local.apiserver.routes.resource_routes import ResourceRoutes
from deploy.local.apiserver.server import admin_tokens, build
from deploy.local.apiserver.storage.store import StoredObject
from deploy.local.cluster.content import local_crds
from protocol.kubernetes.api import ApiCall, ApiRefusedError, ApiUnknownError, response_error
from protocol.kubernetes.objects import Json, JsonObject, child, text
from protocol.kubernetes.pages import LineSplitter, Page, read_page
from protocol.kubernetes.refusals import read_refusal
from protocol.kubernetes.resources import CUSTOM_RESOURCE_DEFINITIONS, EVENTS, Resource
from tests.fake_clock import FakeClock

_DEFINED: Final[list[StoredObject]] = []
"""The definitions of a local cluster as a server stores them, in this order."""

TOKEN = "the-admin-of-this-test"
MERGE = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class Written:
    """One write that was carried out, and its object before and after; None if there was or is none."""

    call: ApiCall
    before: Json | None
    after: Json | None


class EmbeddedCluster:
    """One API server with the kinds of a local cluster, all connections to it, and all that was written over them."""

    def __init__(self, clock: FakeClock) -> None:
        self._uids = count(1)
        environment = Environment(
            lambda: datetime.fromtimestamp(clock.wall(), UTC), lambda: f"uid-{next(self._uids)}", Random(1).choice
        )
        self.server = build(None, admin_tokens(TOKEN), environment)
        self._routes = ResourceRoutes(self.server.api, self.server.authenticator, self.server.closing)
        self.connections: list[Connection] = []
        self.written: list[Written] = []

    async def prepare(self) -> None:
        """Define the custom kinds. The first cluster validates them; the others store its result."""
        store = self.server.api.store
        for each in _DEFINED:
            store.create(each.key, each.body)
            next(self._uids)
        if not _DEFINED:
            for definition in local_crds():
                await self.request("POST", CUSTOM_RESOURCE_DEFINITIONS.path(), dict(definition))
            _DEFINED.extend(sorted(store.objects(CRD_KEY), key=attrgetter("revision")))

    async def found(self, call: ApiCall) -> Json | None:
        """The present state of the object that a write is about."""
        if call.method not in {"PATCH", "PUT", "DELETE"}:
            return None
        found: Json = json.loads(await self.request("GET", call.path))
        return found

    def undefine(self, name: str) -> None:
        """The cluster lacks a kind, by the name of its definition."""
        store = self.server.api.store
        (found,) = (each for each in store.objects(CRD_KEY) if each.key.name == name)
        store.delete(found)

    async def request(
        self, method: str, path: str, body: JsonObject | None = None, content_type: str = "", query: str = ""
    ) -> bytes:
        """One request, as over HTTP. Raises ``ApiRefusedError``."""
        sent = b"" if body is None else json.dumps(body).encode()
        headers = [(b"authorization", f"Bearer {TOKEN}".encode()), (b"content-type", content_type.encode())]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": headers if content_type else headers[:1],
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": sent, "more_body": False}

        try:
            response = await self._routes(Request(scope, receive))
        except ServerError as error:
            raise ApiRefusedError(read_refusal(error.code, json.dumps(error.status()).encode())) from None
        return bytes(response.body)

    async def make(self, resource: Resource, text: str, namespace: str = "default") -> Json:
        """Creates the object of a YAML text."""
        return decoded(await self.request("POST", resource.path(namespace), _read(text)))

    async def get(self, resource: Resource, name: str, namespace: str = "default") -> Json:
        """One object."""
        return decoded(await self.request("GET", resource.path(namespace, *name.split("/"))))

    async def every(self, resource: Resource) -> list[Json]:
        """All objects of a kind."""
        return read_page(await self.request("GET", resource.path())).objects

    async def events(self) -> list[tuple[str, str]]:
        """Reason and message of every Event, oldest first."""
        events = sorted(await self.every(EVENTS), key=lambda event: int(text(event, "metadata", "resourceVersion")))
        return [(text(event, "reason"), text(event, "message")) for event in events]

    async def patch(self, resource: Resource, name: str, body: Json, subresource: str = "") -> Json:
        """Merges ``body`` into an object of the default namespace."""
        return decoded(await self.request("PATCH", resource.path("default", name, subresource), body, MERGE))

    async def delete(self, resource: Resource, name: str) -> None:
        """Delete an object of the default namespace."""
        await self.request("DELETE", resource.path("default", name))

    @asynccontextmanager
    async def stream(self, path: str, query: dict[str, str]) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of a watch."""
        target = target_of(self.server.api.catalog, path)
        watch = Watch(self.server.api.store, target, watch_options(query), None)
        yield self._lines(watch)

    async def _lines(self, watch: Watch) -> AsyncIterator[bytes]:
        splitter = LineSplitter()
        async for chunk in watch.lines(self.server.closing):
            for line in splitter.feed(chunk):
                yield line

    def connection(self) -> Connection:
        """A new process's way to the cluster."""
        made = Connection(self)
        self.connections.append(made)
        return made

    def writes(self, *, whole: bool = False) -> list[str]:
        """All writes that the server accepted, in order: ``METHOD path``, without Leases and events."""
        found = [each for way in self.connections for each in way.applied]
        return [each for _, each in sorted(found) if whole or not ("/leases" in each or "/events" in each)]


_moments = count()


@asynccontextmanager
async def _silent() -> AsyncIterator[AsyncIterator[bytes]]:
    """A watch that stays open without data."""

    async def lines() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    yield lines()


@dataclass(slots=True)
class Connection:
    """``KubernetesApi``. ``cut_at`` is the number of writes that are let through, ``cut_on`` is in that at which the
    process dies as ``METHOD path``; ``is_applied`` says whether the last
    one takes effect before the process dies. Renewals of the Lease do not count. ``held`` is the write that was not let
    through: a process that was only stopped (SIGSTOP) sends it when it wakes. Patches of a path with ``unchanged`` in
    it change nothing. Watches of a path that ends in ``mute`` deliver nothing. A ``webhook`` alters calls.
    """

    cluster: EmbeddedCluster
    cut_at: int | None = None
    cut_on: str = ""
    is_applied: bool = False
    is_cut: bool = False
    held: ApiCall | None = None
    no_dry_run: str = ""
    unchanged: str = ""
    mute: str = ""
    webhook: Callable[[ApiCall], ApiCall] = lambda call: call
    refuse: dict[str, int] = field(default_factory=dict)
    applied: list[tuple[int, str]] = field(default_factory=list)
    asked: list[ApiCall] = field(default_factory=list)
    count: int = 0

    async def call(self, call: ApiCall) -> JsonObject:
        return decoded(await self._send(call))

    async def page(self, call: ApiCall) -> Page:
        return read_page(await self._send(call))

    def stream(self, call: ApiCall) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        if self.is_cut:
            raise ApiUnknownError("the process is dead")
        self.asked.append(call)
        if self.mute and call.path.endswith(self.mute):
            return _silent()
        return self.cluster.stream(call.path, dict(call.query))

    async def _send(self, call: ApiCall) -> bytes:
        if self.is_cut:
            raise ApiUnknownError("the process is dead")
        self.asked.append(call)
        writes = call.method != "GET" and "/leases" not in call.path and not call.query.get("dryRun")
        is_named = bool(self.cut_on) and self.cut_on in f"{call.method} {call.path}"
        dies = writes and (self.cut_at == self.count or is_named)
        self.count += writes
        if dies:
            self.is_cut = True
            if not self.is_applied:
                self.held = call
                raise ApiUnknownError("killed before the write took effect")
        for part, status in self.refuse.items():
            if part in f"{call.method} {call.path}" and (call.method != "GET" or part.startswith("GET ")):
                raise response_error(status, b"no", "")
        if self.no_dry_run and call.query.get("dryRun"):
            raise ApiRefusedError(read_refusal(400, json.dumps({"message": self.no_dry_run}).encode(), ""))
        if self.unchanged and call.method == "PATCH" and self.unchanged in call.path:
            return await self.cluster.request("GET", call.path)
        call = self.webhook(call)
        query = urlencode(dict(call.query))
        before = await self.cluster.found(call)
        answer = await self.cluster.request(call.method, call.path, call.body, call.content_type, query)
        if not call.query.get("dryRun"):
            self._note(call)
            after = None if call.method == "DELETE" else json.loads(answer)
            self.cluster.written += [Written(call, before, after)] if call.method != "GET" else []
        if dies:
            raise ApiUnknownError("killed after the write took effect")
        return answer

    async def send_late(self) -> int:
        """The write at which the process stopped is sent after all; returns 200, or the status of its refusal."""
        assert self.held is not None
        call = self.held
        try:
            await self.cluster.request(call.method, call.path, call.body, call.content_type)
        except ApiRefusedError as error:
            return error.refusal.status
        self._note(call)
        return 200

    def _note(self, call: ApiCall) -> None:
        if call.method != "GET":
            self.applied.append((next(_moments), f"{call.method} {call.path}"))


@cache
def _read(text: str) -> JsonObject:
    """The object of a YAML text, read only."""
    found: Json = yaml.safe_load(text)
    return found


def decoded(answer: bytes) -> Json:
    """The object of an answer."""
    found: Json = json.loads(answer)
    return found


def status_of(obj: JsonObject) -> Json:
    """An object's status."""
    return child(obj, "status")


def condition_of(obj: JsonObject, kind: str) -> tuple[str, str, str]:
    """Status, reason and message of a condition; empty texts if there is none."""
    found: Any = obj.get("status") or {}
    for each in found.get("conditions", ()):
        if each["type"] == kind:
            return each["status"], each["reason"], each["message"]
    return "", "", ""
