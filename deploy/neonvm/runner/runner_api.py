"""The API of a runner pod, at port 25183; ``access.callers`` has the permissions of its callers.

POST /introduce            {"authorities": PEM}: CAs of the clients to accept; returns {"token": of this pod}
GET /cpu_current           the guest's CPU in NeonVM's format: {"vcpus": 1} or {"vcpus": "250m"}, key case-insensitive
POST /cpu_change           set the CPU, in NeonVM's format; the response is as for /cpu_current, or empty
GET /ready                 200 once the guest runs and its database answers, 503 before
GET /healthz               200 as long as this program runs
GET /status                the guest's status (``RunnerStatus``)
GET /database              status of the guest's database
POST /handover             {"move": uid, "decision": "open" | "given" | "kept"}: which end has the guest
POST /tls/request          {"move": uid}: a certificate signing request for that migration, PEM
PUT /tls/certificate       {"move": uid, "certificate": PEM, "authority": PEM}: install them in QEMU
PUT /disk                  {"address": IP}: the source sends a sleeping guest's disk to it, a target receives it on it
PUT /announce              redirects frames for the VM on the flat network to this pod
PUT /sleep                 {"sleeps": N}: put the guest to sleep (``Slept``), idempotent; 409 and the reason if it
                           keeps running, also if it has not slept N times before; without a body for any N
PUT /wake                  {"sleeps": N}: resume the guest from its Nth sleep (``Woken``); 409 if N is not its last
GET /woken                 long poll until the sleeping guest must wake: sender and reason in one line; 409 if it is
                           not asleep, 503 when superseded by a newer request
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Annotated, Final

import msgspec

from deploy.neonvm.access.callers import ANONYMOUS, may_request
from deploy.neonvm.access.keys import Introduced, Introduction, PodIdentity
from deploy.neonvm.ports import GuestError, SleepRefusedError
from deploy.neonvm.qemu.machine import Decided
from deploy.neonvm.runner.pod_runner import PodRunner
from deploy.neonvm.runner.pod_sleep import NotAsleepError
from deploy.neonvm.texts import runner as texts
from protocol.runtime.serving.http_requests import HttpResponse, read_request, write_response
from protocol.units import MilliCpu
from protocol.wire.wire_quantities import cpu_to_wire

_PROBE_KEPT: Final = 1.0
"""Seconds for which a readiness probe is cached, because callers without a certificate must not load the guest."""
_LARGEST_BODY: Final = 64 * 1024


class CpuChange(msgspec.Struct):
    """CPU in NeonVM's format. NeonVM's decoder ignores the case of the key; its programs write ``VCPUs``."""

    vcpus: int | float | str

    @classmethod
    def read(cls, body: bytes) -> MilliCpu:
        """The CPU in ``body``. Raises ``msgspec.DecodeError``, or ``QuantityError`` for an invalid quantity."""
        # Go's decoder ignores the case of names, so NeonVM's clients differ in it.
        fields = {name.lower(): value for name, value in _FIELDS.decode(body).items()}
        amount = msgspec.convert(fields, cls).vcpus
        # A quantity may be a number or text; a float is parsed as text to keep it exact.
        return MilliCpu.parse(amount if isinstance(amount, (int, str)) else str(amount))


_FIELDS: Final = msgspec.json.Decoder(dict[str, object])


class Handover(msgspec.Struct):
    """A decision about a migration, as request and response."""

    move: str
    decision: Decided


class CertificateRequest(msgspec.Struct):
    """Request for a certificate signing request; ``move`` is the migration."""

    move: str


class Certificate(msgspec.Struct):
    """A certificate for a migration, and the CA of both ends."""

    move: str
    certificate: str
    authority: str


class DiskAddress(msgspec.Struct):
    """Address of the target for a sleeping guest's disk; on the target, the wildcard address to listen on."""

    address: str


class Slept(msgspec.Struct):
    """The guest is asleep: bytes of saved memory, open sessions, and number of sleeps so far."""

    saved: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
    sessions: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    sleeps: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class SleepNumber(msgspec.Struct):
    """The number of sleeps of the guest when it was ordered to sleep, or to wake."""

    sleeps: int


class RunnerApi:
    """The API of one pod. Without an ``identity`` the pod is open, and ``/introduce`` fails."""

    def __init__(self, runner: PodRunner, identity: PodIdentity | None = None) -> None:
        self._runner = runner
        self._identity = identity
        # Expired, so that the first probe queries the guest.
        self._probed = -_PROBE_KEPT, _unavailable("")
        self._probing = asyncio.Lock()

    async def serve(self, who: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve ``who`` until it disconnects or sends invalid HTTP; a caller without identity gets one response."""
        while (request := await read_request(reader, _LARGEST_BODY)) is not None:
            await write_response(writer, await self.answer(who, *request))
            # A probe must not occupy a connection that the controller may need.
            if who == ANONYMOUS:
                return

    async def answer(self, who: str, method: str, target: str, body: bytes) -> HttpResponse:
        """The response to one request."""
        path = target.partition("?")[0]
        if not may_request(who, method, path):
            return _text(texts.CONTROLLER_ONLY, HTTPStatus.FORBIDDEN)
        if (who, path) == (ANONYMOUS, "/ready"):
            return await self._probe()
        route = _ROUTES.get((method, path))
        if route is None:
            is_path = any(route_path == path for _, route_path in _ROUTES)
            status = HTTPStatus.METHOD_NOT_ALLOWED if is_path else HTTPStatus.NOT_FOUND
            return _text(texts.NO_PATH.format(method=method, path=path), status)
        try:
            return await route(self, body)
        # The caller's error; only errors of the guest are worth a retry (503).
        except (ValueError, RecursionError) as error:
            return _text(f"{error}\n", HTTPStatus.BAD_REQUEST)
        except GuestError as error:
            is_conflict = isinstance(error, (SleepRefusedError, NotAsleepError))
            return _text(f"{error}\n", HTTPStatus.CONFLICT if is_conflict else HTTPStatus.SERVICE_UNAVAILABLE)

    async def _probe(self) -> HttpResponse:
        # Concurrent probes share one request to the guest.
        async with self._probing:
            now = asyncio.get_running_loop().time()
            if now - self._probed[0] >= _PROBE_KEPT:
                self._probed = now, await self._ready(b"")
            return self._probed[1]

    async def _cpu_current(self, _: bytes) -> HttpResponse:
        return _json({"vcpus": cpu_to_wire((await self._runner.state()).cpu)})

    async def _cpu_change(self, body: bytes) -> HttpResponse:
        cpu = await self._runner.set_cpu(CpuChange.read(body))
        # Do not query the guest again: in an emulated guest that stalls the workload for 0.1 s or more.
        return _text("") if cpu is None else _json({"vcpus": cpu_to_wire(cpu)})

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
        # First, because the response lets the target run.
        await self._runner.settle()
        return _json(Handover(request.move, decision))

    async def _tls_request(self, body: bytes) -> HttpResponse:
        return _text(self._runner.tls.request(msgspec.json.decode(body, type=CertificateRequest).move))

    async def _tls_certificate(self, body: bytes) -> HttpResponse:
        request = msgspec.json.decode(body, type=Certificate)
        await self._runner.use_certificate(request.move, request.certificate, request.authority)
        return _text("")

    async def _put_disk(self, body: bytes) -> HttpResponse:
        await self._runner.pass_disk(msgspec.json.decode(body, type=DiskAddress).address)
        return _text("")

    async def _put_announce(self, _: bytes) -> HttpResponse:
        self._runner.announce()
        return _text("")

    async def _put_sleep(self, body: bytes) -> HttpResponse:
        fell_asleep = await self._runner.fall_asleep(
            msgspec.json.decode(body, type=SleepNumber).sleeps if body else None
        )
        return _json(Slept(fell_asleep.saved.value, fell_asleep.sessions, self._runner.sleep.sleeps))

    async def _put_wake(self, body: bytes) -> HttpResponse:
        return _json(await self._runner.wake(msgspec.json.decode(body, type=SleepNumber).sleeps))

    async def _woken(self, _: bytes) -> HttpResponse:
        return _text(f"{await self._runner.sleep.woken()}\n")


_ROUTES: Final[Mapping[tuple[str, str], Callable[[RunnerApi, bytes], Awaitable[HttpResponse]]]] = {
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
    ("PUT", "/disk"): RunnerApi._put_disk,
    ("PUT", "/announce"): RunnerApi._put_announce,
    ("PUT", "/sleep"): RunnerApi._put_sleep,
    ("PUT", "/wake"): RunnerApi._put_wake,
    ("GET", "/woken"): RunnerApi._woken,
}


def _json(value: object) -> HttpResponse:
    return _text(msgspec.json.encode(value).decode())


def _text(text: str, status: HTTPStatus = HTTPStatus.OK) -> HttpResponse:
    return HttpResponse(text.encode(), status, "text/plain")


def _unavailable(text: str) -> HttpResponse:
    return _text(text, HTTPStatus.SERVICE_UNAVAILABLE)
