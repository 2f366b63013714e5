"""HTTP API of the page: files, sign-in, event stream, and explanations of single objects.

Rules:

- Everything except files and sign-in needs a session. A hidden object gets the same response as a missing one.
- Nothing here changes the cluster, and no path of a request is looked up in the file system.
- A proxy may strip a path prefix that is unknown here. So the page uses only relative addresses, and the cookie has no
  path: a browser sends it to all paths below the path of the request that set it (``…/api/``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
from fastapi import FastAPI, Query
from fastapi import Path as PathPart
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp

from protocol.kubernetes.api import ApiError
from protocol.kubernetes.objects import Json
from protocol.messages import ObjectName
from protocol.pod_database import PREFIX
from protocol.runtime.serving.bounded_protocol import authenticate
from scheduler_plugin.dashboard import texts
from scheduler_plugin.dashboard.core.frames import LONGEST_ID
from scheduler_plugin.dashboard.core.sessions import LASTS, Session
from scheduler_plugin.dashboard.core.states import script
from scheduler_plugin.dashboard.core.visibility import VisibilityFilter
from scheduler_plugin.dashboard.detail_queries import DetailQueries
from scheduler_plugin.dashboard.headers import LOOPBACK, SafeHeaders
from scheduler_plugin.dashboard.readers import Readers
from scheduler_plugin.dashboard.sign_in import LONGEST_TOKEN, SignIn, cookie_at
from scheduler_plugin.web.hot_paths import read_body

STATIC: Final = Path(__file__).parent / "static"
STATES: Final = "states.js"
"""Generated from ``core/states.py``; there is no such file."""
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

Name = Annotated[str, PathPart(max_length=253 + len(PREFIX))]
Key = Annotated[str, Query(max_length=2 * 253 + 1 + len(PREFIX))]
Id = Annotated[str, Query(max_length=LONGEST_ID)]
Span = Annotated[int, Query(ge=60, le=400 * 86_400)]
LONGEST_BODY: Final = LONGEST_TOKEN + 1024
_ICON: Final = "max-age=86400"
"""The icon is cached, because browsers may request it whenever the page's address changes."""


@dataclass(frozen=True, slots=True)
class PageFile:
    """One served file."""

    body: bytes
    media_type: str
    etag: str


def page_files() -> dict[str, PageFile]:
    """The page's files, by path below ``STATIC``, and the tables of states."""
    files = {STATES: _file(script(), ".js")}
    for path in sorted(STATIC.rglob("*")):
        # Files of other types, such as editor backups, are not served.
        if path.suffix in TYPES:
            files[path.relative_to(STATIC).as_posix()] = _file(path.read_bytes(), path.suffix)
    return files


def _file(body: bytes, suffix: str) -> PageFile:
    return PageFile(body, TYPES[suffix], f'"{hashlib.sha256(body).hexdigest()[:16]}"')


class _SignIn(msgspec.Struct, frozen=True):
    token: str


def page_app(title: str, authenticator: SignIn, readers: Readers, details: DetailQueries) -> ASGIApp:
    """The application. Without a reviewer it is local and accepts only this machine's host names."""
    app = FastAPI(title="autoscale-dashboard", docs_url=None, redoc_url=None, openapi_url=None)
    _add_files(app, page_files())
    _add_sign_in(app, title, authenticator)
    _add_events(app, authenticator, readers)
    _add_details(app, authenticator, details)
    return SafeHeaders(app, LOOPBACK if authenticator.reviewer is None else None)


def _add_files(app: FastAPI, files: dict[str, PageFile]) -> None:
    def answer(request: Request, name: str) -> Response:
        page_file = files.get(name)
        if page_file is None:
            return _error(texts.NO_FILE, 404)
        headers = {"ETag": page_file.etag, "Cache-Control": _ICON if name == "icon.svg" else "no-cache"}
        # `no-cache` makes browsers revalidate at each load, so that a new release shows immediately.
        if request.headers.get("if-none-match") == page_file.etag:
            return Response(status_code=304, headers=headers)
        return Response(page_file.body, media_type=page_file.media_type, headers=headers)

    @app.get("/")
    async def index(request: Request) -> Response:
        return answer(request, "index.html")

    @app.get("/static/{name:path}")
    async def file(request: Request, name: str) -> Response:
        return answer(request, name)


def _add_sign_in(app: FastAPI, title: str, authenticator: SignIn) -> None:
    @app.get("/api/session")
    async def session(request: Request) -> Response:
        current = await _session(request, authenticator)
        return JSONResponse(
            {"signedIn": current is not None, "way": authenticator.method, "title": title if current else ""}
        )

    @app.post("/api/session")
    async def sign_in(request: Request) -> Response:
        if not _is_same_origin(request):
            return _error(texts.OTHER_SITE, 403)
        token = await _token_in(request)
        if token is None:
            return _error(texts.BODY_EXPECTED, 400)
        try:
            secret = await authenticator.sign_in(token)
        except (ApiError, TimeoutError):
            return _error(texts.NO_ANSWER, 503, {"Retry-After": "2"})
        if secret is None:
            return _error(texts.NOT_ADMITTED, 401)
        response = JSONResponse({"signedIn": True, "way": authenticator.method, "title": title})
        _set_cookie(response, request, secret, int(LASTS))
        return response

    @app.delete("/api/session")
    async def sign_out(request: Request) -> Response:
        if not _is_same_origin(request):
            return _error(texts.OTHER_SITE, 403)
        current = await _session(request, authenticator)
        if current is not None:
            authenticator.sessions.end(current)
        response = JSONResponse({"signedIn": False, "way": authenticator.method, "title": ""})
        _set_cookie(response, request, "", 0)
        return response


def _add_events(app: FastAPI, authenticator: SignIn, readers: Readers) -> None:
    @app.get("/api/events")
    async def events(request: Request, after: Id = "") -> Response:
        session = await _session(request, authenticator)
        if session is None:
            return _error(texts.SIGN_IN, 401)
        if readers.is_full(session.user_key):
            return _error(texts.MANY_PAGES, 503, {"Retry-After": "5"})

        async def read_visibility() -> VisibilityFilter | None:
            current = await authenticator.renewed(session)
            return None if current is None else current.visitor.visibility

        # The header is newer than ``after``: browsers send it when they reconnect.
        last_id = request.headers.get("last-event-id", after)
        frames = readers.frames(read_visibility, last_id, session.user_key, session.quota_key)
        # Disable buffering in nginx.
        return StreamingResponse(frames, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


def _add_details(app: FastAPI, authenticator: SignIn, details: DetailQueries) -> None:
    async def answer(request: Request, ask: Callable[[VisibilityFilter], Awaitable[Json | None]]) -> Response:
        session = await _session(request, authenticator)
        if session is None:
            return _error(texts.SIGN_IN, 401)
        body = await ask(session.visitor.visibility)
        # The same response for missing and hidden objects.
        return _error(texts.NO_OBJECT, 404) if body is None else JSONResponse(body)

    # A pod's name has a slash: pod/NAME.
    @app.get("/api/vms/{namespace}/{name:path}")
    async def vm(request: Request, namespace: Name, name: Name) -> Response:
        return await answer(request, lambda visibility: details.of_vm(ObjectName(namespace, name), visibility))

    @app.get("/api/past/{namespace}/{name:path}")
    async def past_of_vm(request: Request, namespace: Name, name: Name, seconds: Span = 3600) -> Response:
        return await answer(
            request, lambda visibility: details.past_of(ObjectName(namespace, name), visibility, seconds)
        )

    @app.get("/api/costs")
    async def costs(request: Request, seconds: Span = 86_400, by: Key = "namespace", only: Key = "") -> Response:
        return await answer(request, lambda visibility: details.reports.of(visibility, seconds, by, only))

    @app.get("/api/groups/{namespace}/{kind}/{name}")
    async def group(request: Request, namespace: Name, kind: Name, name: Name) -> Response:
        return await answer(request, lambda visibility: details.of_group(kind, ObjectName(namespace, name), visibility))

    @app.get("/api/settings")
    async def settings(request: Request) -> Response:
        return await answer(request, details.of_settings)


def _error(text: str, status: int, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": text}, status, headers)


def _set_cookie(response: Response, request: Request, secret: str, age: int) -> None:
    # HTTPS here or at a proxy. A false header only makes the cookie stricter.
    https = "https" in {request.url.scheme, request.headers.get("x-forwarded-proto", "")}
    # Without a path, because the browser derives it from the address in front of any proxy.
    response.set_cookie(
        _cookie(request), secret, max_age=age, path=None, httponly=True, samesite="strict", secure=https
    )


def _cookie(request: Request) -> str:
    return cookie_at(request.headers.get("host", ""))


async def _session(request: Request, authenticator: SignIn) -> Session | None:
    session = await authenticator.find(request.cookies.get(_cookie(request), ""))
    if session is not None:
        # Connections without a session have tighter limits.
        authenticate(request)
    return session


def _is_same_origin(request: Request) -> bool:
    """Return True if the page itself sent this request, not another site (CSRF)."""
    # Forms cannot send JSON, and scripts of other sites need a preflight. Browsers also send Sec-Fetch-Site.
    is_json = request.headers.get("content-type", "").partition(";")[0].strip() == "application/json"
    return is_json and request.headers.get("sec-fetch-site", "same-origin") in {"same-origin", "none"}


async def _token_in(request: Request) -> str | None:
    try:
        # Bounded while it is read, because the sender has not signed in.
        return msgspec.json.decode(await read_body(request, LONGEST_BODY), type=_SignIn).token.strip()
    except (ValueError, RecursionError):
        return None
