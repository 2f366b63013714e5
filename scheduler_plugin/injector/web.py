"""The injector over HTTP: ``POST /mutate`` for the API server, and probes with metrics on a port of their own."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from scheduler_plugin.injector.admission.injector import Injector
from scheduler_plugin.injector.admission.reviews import MalformedReviewError
from scheduler_plugin.injector.app import Program
from scheduler_plugin.web.bodies import BodyError, read_body
from scheduler_plugin.web.hot_paths import HotPaths
from scheduler_plugin.web.probes import probes_app

MUTATE: Final = "/mutate"
LONGEST_REVIEW: Final = 8 * 1024 * 1024
"""An object has at most 1.5 MiB in the store, and may be written out twice in a review."""


def webhook_app(injector: Injector) -> ASGIApp:
    """What the API server talks to: 200 with the answer, 400 or 413 where it is no question that can be read."""

    async def mutate(request: Request) -> Response:
        try:
            found = await injector.answer(await read_body(request, LONGEST_REVIEW))
        except MalformedReviewError as error:
            return JSONResponse({"error": f"expected an AdmissionReview of admission.k8s.io/v1: {error}"}, 400)
        except BodyError as error:
            return JSONResponse({"error": str(error)}, error.status)
        return Response(found, media_type="application/json")

    return HotPaths({MUTATE: mutate}, _nothing)


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse(f"POST {MUTATE}\n", 404)(scope, receive, send)


def injector_app(program: Program) -> FastAPI:
    """Probes and metrics; nothing here changes anything."""
    description = "Puts the agent into the pods of VMs, and keeps certificates."
    return probes_app("autoscale-injector", description, program.standing, program.telemetry.page)
