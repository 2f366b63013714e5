"""HTTP server of a simulated guest: the paths of a real one, and paths to set its load and to make it fail.

    GET /metrics[?collect[]=NAME…]   node_exporter's page (port 9100)
    GET /cpu, GET /ready             as the daemon of a real guest (port 25183)
    GET /demand                      the guest's current demand: {"cpu": cores, "mem": quantity}
    PUT /demand                      override the demand of the load; DELETE /demand ends that
    GET /database                    database status, as the daemon of a real guest
    PUT /database                    set the database status
    POST /fail                       fail for the reason in the body

Both ports serve all paths. Connections may be kept alive, without pipelining.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs, urlsplit

import msgspec

from deploy.neonvm.ports import GuestError
from deploy.neonvm.simulated.simulated_load import Demand
from deploy.neonvm.simulated.simulated_model import SimulatedDatabase, SimulatedKernel, exposition
from protocol.runtime.serving.http_requests import HttpResponse, read_request, write_response
from protocol.units import Bytes


class WireDemand(msgspec.Struct, forbid_unknown_fields=True):
    """A demand in JSON: ``cpu`` in cores, ``mem`` as a quantity."""

    cpu: float
    mem: str


@dataclass(frozen=True, slots=True)
class GuestServer:
    """HTTP access to a guest.

    ``kernel`` raises ``GuestError`` if the guest is asleep or has stopped. ``fail`` makes it fail. ``slept`` returns
    the kernel of a sleeping guest, None if it is awake.
    """

    kernel: Callable[[], SimulatedKernel]
    set_demand: Callable[[Demand | None], None]
    database: Callable[[], SimulatedDatabase]
    set_database: Callable[[SimulatedDatabase], None]
    fail: Callable[[str], None]
    boot_time: float
    slept: Callable[[], SimulatedKernel | None]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve requests until the peer disconnects or sends invalid HTTP, or the guest stops."""
        while (request := await read_request(reader)) is not None:
            try:
                response = self.answer(*request)
            # Close the connection without a response, like a machine that has stopped.
            except GuestError:
                return
            await write_response(writer, response)

    def answer(self, method: str, target: str, body: bytes) -> HttpResponse:
        """The response to one request."""
        url = urlsplit(target)
        route = _ROUTES.get((method, url.path))
        if route is None:
            return _text(
                "there is GET /metrics, /cpu, /ready, GET, PUT, DELETE /demand, GET, PUT /database and POST /fail\n",
                HTTPStatus.NOT_FOUND,
            )
        return route(self, parse_qs(url.query).get("collect[]", []), body)

    def _metrics(self, collectors: list[str], _: bytes) -> HttpResponse:
        slept = self.slept()
        try:
            if slept is not None:
                # Like the runner of a real sleeping guest: the last page.
                return _text(f"autoscale_asleep 1\n{exposition(slept, self.boot_time, collectors)}")
            return _text(exposition(self.kernel(), self.boot_time, collectors, self.database().awake))
        except KeyError as error:
            # Like node_exporter for an unknown collector.
            return _text(f"missing collector: {error.args[0]}\n", HTTPStatus.BAD_REQUEST)

    def _cpu(self, _: list[str], __: bytes) -> HttpResponse:
        return _text(f"{self.kernel().size.cpu.value}\n")

    def _ready(self, _: list[str], __: bytes) -> HttpResponse:
        self.kernel()
        return _text("ready\n")

    def _demand(self, _: list[str], __: bytes) -> HttpResponse:
        return _text(_encode(self.kernel().demand))

    def _put_demand(self, _: list[str], body: bytes) -> HttpResponse:
        try:
            wire = msgspec.json.decode(body, type=WireDemand)
            demand = Demand(wire.cpu, Bytes.parse(wire.mem))
        except (ValueError, RecursionError) as error:
            return _text(f'expected {{"cpu": 1.5, "mem": "1Gi"}}: {error}\n', HTTPStatus.BAD_REQUEST)
        # JSON has no NaN, but it has negative numbers.
        if demand.cpu < 0:
            return _text("cpu must be zero or more\n", HTTPStatus.BAD_REQUEST)
        self.set_demand(demand)
        return _text(_encode(demand))

    def _delete_demand(self, groups: list[str], body: bytes) -> HttpResponse:
        self.set_demand(None)
        return self._demand(groups, body)

    def _get_database(self, _: list[str], __: bytes) -> HttpResponse:
        return _text(msgspec.json.encode(self.database()).decode() + "\n")

    def _put_database(self, groups: list[str], body: bytes) -> HttpResponse:
        try:
            self.set_database(msgspec.json.decode(body, type=SimulatedDatabase))
        except (ValueError, RecursionError) as error:
            return _text(f'expected {{"standby": true, "sessions": 1, ...}}: {error}\n', HTTPStatus.BAD_REQUEST)
        return self._get_database(groups, body)

    def _fail(self, _: list[str], body: bytes) -> HttpResponse:
        self.fail(body.decode(errors="replace").strip() or "failed by request")
        return _text("")


_ROUTES: Final[Mapping[tuple[str, str], Callable[[GuestServer, list[str], bytes], HttpResponse]]] = {
    ("GET", "/metrics"): GuestServer._metrics,
    ("GET", "/cpu"): GuestServer._cpu,
    ("GET", "/ready"): GuestServer._ready,
    ("GET", "/demand"): GuestServer._demand,
    ("PUT", "/demand"): GuestServer._put_demand,
    ("DELETE", "/demand"): GuestServer._delete_demand,
    ("GET", "/database"): GuestServer._get_database,
    ("PUT", "/database"): GuestServer._put_database,
    ("POST", "/fail"): GuestServer._fail,
}


def _encode(demand: Demand) -> str:
    return msgspec.json.encode(WireDemand(demand.cpu, demand.mem.quantity())).decode() + "\n"


def _text(text: str, status: HTTPStatus = HTTPStatus.OK) -> HttpResponse:
    return HttpResponse(text.encode(), status, "text/plain; version=0.0.4")
