"""What the program answers over HTTP: ``/metrics``, ``/healthz`` and ``/readyz``."""

from __future__ import annotations

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.responses import PlainTextResponse, Response

from deploy.neonvm.service.app import Service


def probes_app(service: Service) -> FastAPI:
    """The only application: nothing here changes anything."""
    app = FastAPI(title="neonvm-controller", description="Runs VirtualMachines in pods.")

    @app.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> str:
        """Whether the process works."""
        return "ok\n"

    @app.get("/readyz", response_class=PlainTextResponse)
    async def readyz() -> Response:
        """Whether the cluster has been read; a standby is ready too."""
        if missing := service.missing:
            return PlainTextResponse(f"not listed yet: {', '.join(missing)}\n", 503)
        leads = service.deps.leadership.leads
        return PlainTextResponse("ok, leading\n" if leads else "ok, standing by\n")

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus's text format."""
        return Response(generate_latest(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return app
