"""The server side of a measurement, in its own process: the real service as its program serves it, or a baseline.

The baseline decides nothing: FastAPI's raw routes on uvicorn. Both run on the event loop of the real program.

``python -m scripts.bench.measured_server KIND FD NODES VMS PENDING`` serves on the inherited socket FD until SIGTERM.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Final

import msgspec
import uvicorn
import uvloop
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from protocol.runtime.clock import SystemClock
from protocol.runtime.kubernetes.token_reviews import TokenReviews
from protocol.runtime.program import stop_on_signals
from scheduler_plugin.app import SchedulerPorts, assemble
from scheduler_plugin.service.heap import set_aside
from scheduler_plugin.settings.document import parse_settings
from scheduler_plugin.telemetry import Telemetry
from scheduler_plugin.web.apps import agents_app, extender_app
from scheduler_plugin.web.serving import Listener
from scripts.bench.static_cluster import StaticCluster

JSON: Final = "application/json"
SETTINGS: Final = """
nodeDefaults: {computeUnit: {vCPUs: "250m", mem: 1Gi}}
agents: {nodeAgents: ["default:default"]}
"""
ENCODER: Final = msgspec.json.Encoder()


class _Args(msgspec.Struct, rename="pascal"):
    pod: dict[str, object]
    node_names: list[str]


async def _filter(request: Request) -> Response:
    names = msgspec.json.decode(await request.body(), type=_Args).node_names
    failed: dict[str, dict[str, str]] = {"FailedNodes": {}, "FailedAndUnresolvableNodes": {}}
    return Response(ENCODER.encode({"Nodes": None, "NodeNames": names, **failed, "Error": ""}), media_type=JSON)


async def _prioritize(request: Request) -> Response:
    names = msgspec.json.decode(await request.body(), type=_Args).node_names
    return Response(ENCODER.encode([{"Host": name, "Score": 0} for name in names]), media_type=JSON)


async def _bind(request: Request) -> Response:
    msgspec.json.decode(await request.body())
    return Response(ENCODER.encode({"Error": ""}), media_type=JSON)


async def _permit(request: Request) -> Response:
    body = msgspec.json.decode(await request.body())
    unit = {"vCPUs": "250m", "mem": 1}
    return Response(
        ENCODER.encode({"permit": body["resources"], "migrate": None, "computeUnit": unit}), media_type=JSON
    )


def empty_app() -> FastAPI:
    """The baseline: reads and writes the same messages, decides nothing."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    for path, answer in (("/", _permit), ("/filter", _filter), ("/prioritize", _prioritize), ("/bind", _bind)):
        # Raw routes: FastAPI's own would also validate, which would slow the baseline down.
        app.add_route(path, answer, methods=["POST"])
    return app


async def _run(kind: str, listening: socket.socket, cluster: StaticCluster) -> None:
    if kind == "empty":
        config = uvicorn.Config(
            empty_app(), http="httptools", log_config=None, access_log=False, lifespan="off", server_header=False
        )
        await uvicorn.Server(config).serve(sockets=[listening])
        return
    clock = SystemClock()
    telemetry = Telemetry(clock.now)
    ports = SchedulerPorts(cluster, TokenReviews(cluster), clock, telemetry, "bench")
    parts = assemble(ports, parse_settings(SETTINGS))
    app = agents_app(parts.service) if kind == "agents" else extender_app(parts.service)
    background = [
        asyncio.create_task(parts.run(cluster)),
        # As in the real program: otherwise full collections disturb the latencies.
        asyncio.create_task(set_aside(clock, lambda: parts.context.ledger.is_ready)),
    ]
    ending = stop_on_signals()
    server = Listener(kind, app, "127.0.0.1:0").server()
    background.append(asyncio.create_task(_end(server, ending)))
    try:
        await server.serve(sockets=[listening])
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)


async def _end(server: uvicorn.Server, ending: asyncio.Event) -> None:
    await ending.wait()
    server.should_exit = True


def main(arguments: list[str]) -> None:
    """Serves as the module's description says."""
    kind, descriptor, *counts = arguments
    nodes, vms, pending = (int(count) for count in counts)
    listening = socket.socket(fileno=int(descriptor))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(kind, listening, StaticCluster(nodes, vms, pending)))


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    main(sys.argv[1:])
