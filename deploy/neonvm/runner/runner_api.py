"""The API of a runner pod, at port 25183 of its address; ``access.callers`` says who may ask what.

POST /introduce            {"authorities": PEM}: whose clients are let in from now on; {"token": of this pod}
GET, PUT /cpu              the guest's CPU in thousandths, as a bare number
GET /cpu_current           the same as NeonVM's runner says it: {"vcpus": 1} or {"vcpus": "250m"}, in any case
POST /cpu_change           the same as NeonVM's controller asks for it; the answer is as of /cpu_current, or empty
GET /ready                 200 once the guest runs and its database answers, 503 before
GET /healthz               200 as long as this program runs
GET /status                what the guest has (``RunnerStatus``)
GET /database              what the guest says of its database
POST /handover             {"move": uid, "decision": "open" | "given" | "kept"}: which end has the guest after a move
POST /tls/request          {"move": uid}: a signing request for that move's certificate, PEM
PUT /tls/certificate       {"move": uid, "certificate": PEM, "authority": PEM}: QEMU uses it from now on
PUT /announce              redirects frames for the VM on the flat network to this pod
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import msgspec

from deploy.neonvm.access.callers import NOBODY, may_ask
from deploy.neonvm.access.keys import Introduced, Introduction, PodIdentity
from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.machine import Decided
from deploy.neonvm.runner.pod_runner import PodRunner
from deploy.neonvm.texts import runner as texts
from protocol.runtime.serving.http_requests import HttpResponse, read_request, write_response
from protocol.units import MilliCpu
from protocol.wire.wire_quantities import cpu_to_wire

_PROBE_KEPT: Final = 1.0
"""Seconds for which a probe gets the last answer: callers without a certificate cost the guest a question a second."""
_LARGEST_BODY: Final = 64 * 1024


class CpuChange(msgspec.Struct):
    """CPU as NeonVM writes it. NeonVM reads the name in any case, and its controller and runner write ``VCPUs``."""

    vcpus: int | float | str

    @classmethod
    def read(cls, body: bytes) -> MilliCpu:
        """The CPU that ``body`` says. Raises ``msgspec.DecodeError``, or ``QuantityError`` for what is no amount."""
        # Go's decoder ignores the case of names, so NeonVM's clients differ in it.
        fields = {name.lower(): value for name, value in _FIELDS.decode(body).items()}
        amount = msgspec.convert(fields, cls).vcpus
        # A quantity may be a number or text; a float is parsed as text to keep it exact.
        return MilliCpu.parse(amount if isinstance(amount, (int, str)) else str(amount))


_FIELDS: Final = msgspec.json.Decoder(dict[str, object])


class Handover(msgspec.Struct):
    """A decision about a move, and the answer to one."""

    move: str
    decision: Decided


class CertificateRequest(msgspec.Struct):
    """Names the move."""

    move: str


class Certificate(msgspec.Struct):
    """A certificate for a move, and the authority that signed both ends' ones."""

    move: str
    certificate: str
    authority: str


class RunnerApi:
    """Answers for one pod. One without an ``identity`` is open, and introduces itself to nobody."""

    def __init__(self, runner: PodRunner, identity: PodIdentity | None = None) -> None:
        self._runner = runner
        self._identity = identity
        # In the past, so that the first probe asks the guest.
        self._probed = -_PROBE_KEPT, _unavailable("")
        self._probing = asyncio.Lock()

    async def serve(self, who: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers requests of ``who`` until that hangs up or says something that is not HTTP; of a probe only one."""
        while (request := await read_request(reader, _LARGEST_BODY)) is not None:
            await write_response(writer, await self.answer(who, *request))
            # A probe needs no more, and must not hold a connection that the controller may need.
            if who == NOBODY:
                return

    async def answer(self, who: str, method: str, target: str, body: bytes) -> HttpResponse:
        """The answer to one request."""
        path = urlsplit(target).path
        if not may_ask(who, method, path):
            return _text(texts.CONTROLLER_ONLY, HTTPStatus.FORBIDDEN)
        if (who, path) == (NOBODY, "/ready"):
            return await self._probe()
        route = _ROUTES.get((method, path))
        if route is None:
            is_path = any(route_path == path for _, route_path in _ROUTES)
            status = HTTPStatus.METHOD_NOT_ALLOWED if is_path else HTTPStatus.NOT_FOUND
            return _text(texts.NO_PATH.format(method=method, path=path), status)
        try:
            return await route(self, body)
        # The caller's mistake; only a guest that cannot do it is worth a retry (503).
        except (ValueError, RecursionError) as error:
            return _text(f"{error}\n", HTTPStatus.BAD_REQUEST)
        except GuestError as error:
            return _unavailable(f"{error}\n")

    async def _probe(self) -> HttpResponse:
        # Probes that come together share one question to the guest.
        async with self._probing:
            now = asyncio.get_running_loop().time()
            if now - self._probed[0] >= _PROBE_KEPT:
                self._probed = now, await self._ready(b"")
            return self._probed[1]

    async def _cpu(self, _: bytes) -> HttpResponse:
        # The reader parses the body as a number and takes no line break.
        return _text(str((await self._runner.state()).cpu.value))

    async def _put_cpu(self, body: bytes) -> HttpResponse:
        has = await self._runner.set_cpu(MilliCpu(int(body)))
        return await self._cpu(b"") if has is None else _text(str(has.value))

    async def _cpu_current(self, _: bytes) -> HttpResponse:
        return _json({"vcpus": cpu_to_wire((await self._runner.state()).cpu)})

    async def _cpu_change(self, body: bytes) -> HttpResponse:
        has = await self._runner.set_cpu(CpuChange.read(body))
        # The guest is not asked again: in an emulated one that stalls the load for a tenth of a second and more.
        return _text("") if has is None else _json({"vcpus": cpu_to_wire(has)})

    async def _ready(self, _: bytes) -> HttpResponse:
        return _text("ready\n") if await self._runner.is_ready() else _unavailable(texts.GUEST_BOOTS)

    async def _healthz(self, _: bytes) -> HttpResponse:
        return _text("ok\n")

    async def _status(self, _: bytes) -> HttpResponse:
        return _json(await self._runner.status())

    async def _database(self, _: bytes) -> HttpResponse:
        answer = await self._runner.database()
        return (_text if answer.status == 200 else _unavailable)(f"{answer.text}\n")

    async def _introduce(self, body: bytes) -> HttpResponse:
        introduction = msgspec.json.decode(body, type=Introduction)
        if self._identity is None:
            return _unavailable(texts.NO_IDENTITY)
        try:
            return _json(Introduced(self._identity.introduce(introduction.authorities)))
        except OSError as error:
            return _unavailable(texts.IDENTITY_UNREADABLE.format(error=error))

    async def _handover(self, body: bytes) -> HttpResponse:
        request = msgspec.json.decode(body, type=Handover)
        decision = self._runner.decide(request.move, request.decision)
        return _json(Handover(request.move, decision))

    async def _tls_request(self, body: bytes) -> HttpResponse:
        return _text(self._runner.tls.request(msgspec.json.decode(body, type=CertificateRequest).move))

    async def _tls_certificate(self, body: bytes) -> HttpResponse:
        request = msgspec.json.decode(body, type=Certificate)
        await self._runner.use_certificate(request.move, request.certificate, request.authority)
        return _text("")

    async def _put_announce(self, _: bytes) -> HttpResponse:
        self._runner.announce()
        return _text("")


_ROUTES: Final[Mapping[tuple[str, str], Callable[[RunnerApi, bytes], Awaitable[HttpResponse]]]] = {
    ("GET", "/cpu"): RunnerApi._cpu,
    ("PUT", "/cpu"): RunnerApi._put_cpu,
    ("GET", "/cpu_current"): RunnerApi._cpu_current,
    ("POST", "/cpu_change"): RunnerApi._cpu_change,
    ("GET", "/ready"): RunnerApi._ready,
    ("GET", "/healthz"): RunnerApi._healthz,
    ("GET", "/status"): RunnerApi._status,
    ("GET", "/database"): RunnerApi._database,
    ("POST", "/introduce"): RunnerApi._introduce,
    ("POST", "/handover"): RunnerApi._handover,
    ("POST", "/tls/request"): RunnerApi._tls_request,
    ("PUT", "/tls/certificate"): RunnerApi._tls_certificate,
    ("PUT", "/announce"): RunnerApi._put_announce,
}


def _json(value: object) -> HttpResponse:
    return _text(msgspec.json.encode(value).decode())


def _text(text: str, status: HTTPStatus = HTTPStatus.OK) -> HttpResponse:
    return HttpResponse(text.encode(), status, "text/plain")


def _unavailable(text: str) -> HttpResponse:
    return _text(text, HTTPStatus.SERVICE_UNAVAILABLE)
