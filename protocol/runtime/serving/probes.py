"""The web application of a program that only reports on itself: ``/metrics``, ``/healthz`` and ``/readyz``."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import PlainTextResponse, Response

Readiness = Callable[[], tuple[bool, str]]
"""Returns if a program is ready, and its status text."""


def probes_app(name: str, description: str, ready: Readiness, page: Callable[[], bytes]) -> FastAPI:
    """Create the application. ``page`` returns the program's metrics."""
    app = FastAPI(title=name, description=description)

    @app.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> str:
        """Liveness of the process."""
        return "ok\n"

    @app.get("/readyz", response_class=PlainTextResponse)
    async def readyz() -> Response:
        """Readiness of the program."""
        is_ready, status = ready()
        return PlainTextResponse(f"{status}\n", 200 if is_ready else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus's text format."""
        return Response(page(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return app


def readiness(missing: list[str], leads: bool) -> tuple[bool, str]:
    """Readiness of a program with caches: it is ready once all are listed, leading or not."""
    if missing:
        return False, f"not listed yet: {', '.join(missing)}"
    return True, "ok, leading" if leads else "ok, standing by"
