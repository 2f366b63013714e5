"""What the program answers over HTTP: ``/metrics``, ``/healthz``, ``/readyz`` and ``/explain/NAMESPACE/KIND/NAME``."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Path
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import JSONResponse, PlainTextResponse, Response

from protocol.kubernetes.objects import Json
from protocol.kubernetes.resources import VM_GROUPS
from protocol.messages import ObjectName
from scheduler_plugin.groups.app import Program
from scheduler_plugin.groups.explain import explanation, vm_group_explanation

Name = Annotated[str, Path(max_length=253)]


def probes_app(program: Program) -> FastAPI:
    """The only application: nothing here changes anything."""
    app = FastAPI(title="autoscale-groups", description="Why groups are as many and as large as they are.")

    @app.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> str:
        """Whether the process works."""
        return "ok\n"

    @app.get("/readyz", response_class=PlainTextResponse)
    async def readyz() -> Response:
        """Whether the cluster has been read; a standby is ready too."""
        if missing := program.cache.missing:
            return PlainTextResponse(f"not listed yet: {', '.join(missing)}\n", 503)
        return PlainTextResponse("ok, leading\n" if program.leadership.leads else "ok, standing by\n")

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus's text format."""
        return Response(program.page(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    @app.get("/explain/{namespace}/{kind}/{name}")
    async def explain(namespace: Name, kind: Name, name: Name) -> Response:
        """Why so many and why so large, what was wanted and kept, and by which rule (S1.11)."""
        found = _explained(program, kind.lower(), ObjectName(namespace, name))
        if found is None:
            return JSONResponse({"error": f"there is no {kind} {namespace}/{name}"}, 404)
        return JSONResponse(found)

    return app


def _explained(program: Program, kind: str, name: ObjectName) -> Json | None:
    """The account of the group; None where there is no such kind or group. ``kind`` is in lower case."""
    if kind == VM_GROUPS.kind.lower():
        return vm_group_explanation(program.cache, name)
    for known, controller in program.controllers.items():
        if known.lower() == kind:
            return explanation(program.cache, controller.policy, name)
    return None
