"""Three web applications over one service: agents, extender verbs, and probes with explanations.

Each has its own listener and ``/openapi.json``. Only the leader serves agents and kube-scheduler: a standby responds
with the leader's name and closes the connection, so that the next one reaches the leader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, Final

import msgspec
from fastapi import FastAPI, Path
from fastapi.openapi.utils import get_openapi
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import PlainTextResponse, Response

from protocol.messages import ObjectName
from protocol.pod_database import PREFIX
from protocol.runtime.serving.shared_page import SharedPage
from protocol.wire.wire_batches import LONGEST_BATCH, PATH
from protocol.wire.wire_messages import WireRequestBody, WireResponseBody
from scheduler_plugin.service.service import ActiveService, Service, StandbyError
from scheduler_plugin.texts import refusals
from scheduler_plugin.web import agents, extender
from scheduler_plugin.web import extender_messages as messages
from scheduler_plugin.web.extender import guarded
from scheduler_plugin.web.hot_paths import Admission, Handler, HotPath, HotPaths, HotRequest, HotResponse
from scheduler_plugin.web.models import BatchEntry, NodesModel, Problem, VmModel
from scheduler_plugin.web.views import nodes_view, settings_view, vm_view

Json = dict[str, Any]

_REFERENCE: Final = "#/components/schemas/{name}"


@dataclass(frozen=True, slots=True)
class Operation:
    """A POST that is not a FastAPI route: its request, and its responses by status.

    Schemas come from the types that decode and encode the messages.
    """

    path: str
    summary: str
    request: Any
    responses: Mapping[int, tuple[str, Any]]


def content(of: Any) -> Json:
    """``content`` of a request or response in JSON of this type."""
    # Copied, because FastAPI may change it and the schema is cached.
    return {"application/json": {"schema": dict(_schema(of))}}


@cache
def _schema(of: Any) -> Json:
    (schema,), _ = msgspec.json.schema_components([of], ref_template=_REFERENCE)
    return schema


def response_schemas(responses: Mapping[int, tuple[str, Any]]) -> dict[int | str, Json]:
    """``responses`` of an operation."""
    return {
        status: {"description": text} | ({} if kind is None else {"content": content(kind)})
        for status, (text, kind) in responses.items()
    }


def document(app: FastAPI, operations: Sequence[Operation], shapes: Sequence[Any]) -> None:
    """Extend the OpenAPI page of ``app`` by these operations and the schemas of their types.

    The page is built on first use, to keep the start short.
    """

    def page() -> Json:
        # FastAPI's own cache.
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
        *(operation.request for operation in operations),
        *(kind for operation in operations for _, kind in operation.responses.values()),
    ]
    return msgspec.json.schema_components(types, ref_template=_REFERENCE)[1]


def _operation(one: Operation) -> Json:
    responses = {str(status): answer for status, answer in response_schemas(one.responses).items()}
    request = {"required": True, "content": content(one.request)}
    return {"summary": one.summary, "responses": responses, "requestBody": request}


Name = Annotated[str, Path(max_length=253)]
DatabaseName = Annotated[str, Path(max_length=253 + len(PREFIX))]

Answer = HotResponse | Awaitable[HotResponse]

_ENCODER: Final = msgspec.json.Encoder()
# A new connection reaches the leader; this one would stay with the standby.
_ELSEWHERE: Final = {"retry-after": "0", "connection": "close"}
_MALFORMED: Final = ("the request is malformed", Problem)
_AWAY: Final = ("the cluster has not been listed yet; retry", Problem)
_LARGE: Final = ("the request is too long", Problem)

PERMIT: Final = Operation(
    "/",
    "Request resources, in any published version of the protocol (docs/protocol.md).",
    WireRequestBody,
    {
        200: ("the permit", WireResponseBody),
        400: _MALFORMED,
        401: (refusals.NO_TOKEN, Problem),
        403: ("the token does not belong to the pod's agent", Problem),
        404: ("the pod is not known", Problem),
        409: ("another agent of the VM is active", Problem),
        413: _LARGE,
        503: ("retry after the seconds in Retry-After; 0 if another scheduler leads", Problem),
    },
)

BATCH: Final = Operation(
    PATH,
    "Request resources for many VMs at once. Each entry has its own status, and is otherwise a response of /.",
    list[WireRequestBody],
    {**PERMIT.responses, 200: ("one entry per request, in order", list[BatchEntry])},
)

VERBS: Final = (
    Operation(
        "/filter",
        "Nodes that fit a pod.",
        messages.ExtenderArgs,
        {200: ("nodes", messages.ExtenderFilterResult)},
    ),
    Operation(
        "/prioritize",
        "Score of each node, 0 to 10.",
        messages.ExtenderArgs,
        {200: ("scores", list[messages.HostPriority])} | {400: _MALFORMED, 413: _LARGE, 503: _AWAY},
    ),
    Operation(
        "/bind",
        "Reserve room and bind the pod.",
        messages.ExtenderBindingArgs,
        {200: ("the error, if any", messages.ExtenderBindingResult)},
    ),
    Operation(
        "/preempt",
        "Nodes that would fit a pod without the victims.",
        messages.ExtenderPreemptionArgs,
        {200: ("nodes", messages.ExtenderPreemptionResult)} | {400: _MALFORMED, 413: _LARGE, 503: _AWAY},
    ),
)


def agents_app(replica: ActiveService) -> HotPaths:
    """Application for agents (:10299)."""
    app = _app("agents", "Permits for agents.")
    document(app, [PERMIT, BATCH], [])
    admission = leading(replica)
    paths = {
        "/": HotPath(by_leader(replica, agents.request), agents.MAX_BODY, admission, partial(_precheck, replica)),
        PATH: HotPath(by_leader(replica, agents.batch), LONGEST_BATCH, admission, partial(_precheck, replica)),
    }
    # Permits bypass FastAPI, whose routing costs more than a permit.
    return HotPaths(paths, app)


def _precheck(replica: ActiveService, authorization: str | None, address: str) -> HotResponse | None:
    return agents.precheck(replica.active(), authorization, address)  # ``leading`` has admitted it


def extender_app(replica: ActiveService) -> HotPaths:
    """Application for kube-scheduler (:10298), with a bearer token if the settings name a token file."""
    app = _app("extender", "kube-scheduler's extender protocol.")
    document(app, VERBS, [])
    handlers: dict[str, Callable[[Service, HotRequest], Answer]] = {
        "/filter": extender.filter_nodes,
        "/prioritize": extender.prioritize,
        "/bind": extender.bind,
        "/preempt": extender.preempt,
    }
    admission, longest = guarded(replica, leading(replica)), extender.MAX_BODY
    return HotPaths(
        {path: HotPath(by_leader(replica, verb), longest, admission) for path, verb in handlers.items()}, app
    )


def probes_app(replica: ActiveService) -> FastAPI:
    """Metrics, probes and explanations (:10297); read-only. A standby serves it too, and names the leader."""
    app = _app("probes", "Metrics, probes and explanations; read-only.")
    _add_probes(app, replica)
    _add_explanations(app, replica)
    document(app, [], [NodesModel, VmModel, Problem])
    return app


def _add_probes(app: FastAPI, replica: ActiveService) -> None:
    async def page() -> bytes:
        return await replica.context.telemetry.page_of(replica.context.ledger)

    # Thousands of nodes take long, and anyone may ask.
    shared = SharedPage(page, replica.context.clock)

    @app.get("/metrics", summary="Metrics for Prometheus.", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(await shared.read(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    @app.get("/healthz", summary="Liveness of the process.", response_class=PlainTextResponse)
    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    @app.get(
        "/readyz",
        summary="Readiness: the cluster has been listed.",
        response_class=PlainTextResponse,
        responses=response_schemas({503: ("which kinds have not been listed", None)}),
    )
    async def readyz() -> Response:
        context = replica.context
        if context.ledger.is_ready:
            # A standby is ready too: a rolling update waits for that, and the leader's Service has no selector.
            leadership = replica.leadership()
            return PlainTextResponse("ok\n" if leadership.leads else f"ok, {StandbyError(leadership)}\n")
        missing = ", ".join(context.feed.missing)
        return PlainTextResponse(refusals.MISSING_KINDS.format(missing=missing) + "\n", 503)


def _add_explanations(app: FastAPI, replica: ActiveService) -> None:
    @app.get(
        "/nodes", summary="Every node with its pods.", responses=response_schemas({200: ("the cluster", NodesModel)})
    )
    async def nodes() -> Response:
        return _json(nodes_view(replica.context, replica.leadership()))

    @app.get("/settings", summary="The active settings.")
    async def settings() -> Response:
        return _json(settings_view(replica.context.feed.settings))

    @app.get(
        "/explain/{namespace}/{vm:path}",
        summary="Explanation of the size of a VM, or of the database in a pod (pod/NAME).",
        responses=response_schemas({200: ("the explanation", VmModel), 404: ("no pod runs this VM", Problem)}),
    )
    async def explain(namespace: Name, vm: DatabaseName) -> Response:
        name = ObjectName(namespace, vm)
        view = vm_view(replica.context, name, replica.leadership())
        return _json(Problem(refusals.NO_POD_OF_VM.format(vm=name)), 404) if view is None else _json(view)


def _app(title: str, description: str) -> FastAPI:
    return FastAPI(
        title=f"autoscale-scheduler {title}",
        description=description,
        version="1",
        # FastAPI's docs pages load scripts from a CDN.
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )


def _json(value: object, status: int = 200) -> Response:
    return Response(_ENCODER.encode(value), status, media_type="application/json")


# Routes that only the leader serves -----------------------------------------------------------------------------------


def by_leader(replica: ActiveService, answer: Callable[[Service, HotRequest], Answer]) -> Handler:
    """Run ``answer`` for the active service; 503 while another process leads."""

    def handle(request: HotRequest) -> Answer:
        service = _active(replica)
        return service if isinstance(service, HotResponse) else answer(service, request)

    return handle


def leading(replica: ActiveService) -> Admission:
    """Refuse clients while another process leads, before their bodies are read."""

    def lead(_: str | None) -> HotResponse | None:
        service = _active(replica)
        return service if isinstance(service, HotResponse) else None

    return lead


def _active(replica: ActiveService) -> Service | HotResponse:
    try:
        return replica.active()
    except StandbyError as error:
        return HotResponse(_ENCODER.encode(Problem(str(error))), 503, _ELSEWHERE)
