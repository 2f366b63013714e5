"""The controller's side of a runner pod's API (``runner_api``). Every fault is a ``GuestError``.

What runs in the pod is its author's choice: an answer has a size and a time, and its bytes may be anything.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import httpx2 as httpx
import msgspec

from deploy.neonvm.access.connections import RunnerPlace
from deploy.neonvm.access.runner_transport import PLACE
from deploy.neonvm.ports import GuestError, Survivor, TransferError, TransferFault
from deploy.neonvm.qemu.wire import Decided
from deploy.neonvm.remote.looks import Looks
from deploy.neonvm.runner.pod_runner import RunnerStatus
from deploy.neonvm.runner.runner_api import Certificate, CertificateRequest, CpuChange, Handover
from protocol.units import MilliCpu, Seconds
from protocol.wire.wire_quantities import cpu_to_wire

PATIENCE: Final = Seconds(5.0)
"""A runner that takes longer to say what it has holds up those that wait for their turn."""
_UNKNOWN_PATH: Final = 404
_PLAIN: Final = {"Accept-Encoding": "identity"}
_ORDER_SECONDS: Final = Seconds(30.0)
"""For a whole order, however busy the guest is; the connection's own time-outs apply to its parts."""
_MOST_BYTES: Final = 64 * 1024
"""Far more than any answer of a runner has."""
_SHOWN: Final = 300
OPEN: Final = (
    "its pod was made by NeonVM's controller or by an older release, and its ports let everyone in; "
    "its guest can move after its next start"
)


@dataclass(frozen=True, slots=True)
class _RunnerResponse:
    path: str
    status: int
    content: bytes

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class RunnerClient:
    """One pod's API at ``place``. ``http`` has the time-outs; ``looks`` are the turns in which pods are
    asked what they have.
    """

    http: httpx.AsyncClient
    place: RunnerPlace
    looks: Looks
    patience: Seconds = PATIENCE

    @property
    def who(self) -> str:
        """The pod, in messages."""
        return self.place.who

    async def status(self) -> RunnerStatus:
        """The guest's size, from a runner of ours. Raises ``GuestError``."""
        async with self.looks.turn(self.who):
            answer = await self._ask("GET", "/status", seconds=self.patience)
        try:
            return msgspec.json.decode(self._good(answer), type=RunnerStatus)
        except (ValueError, RecursionError) as error:
            raise GuestError(f"{self.who}: its runner gave no usable answer: {error}") from error

    async def is_ready(self) -> bool:
        """Return True if the guest is up. Raises ``GuestError``."""
        return (await self._ask("GET", "/ready")).is_good

    async def cpu(self) -> MilliCpu:
        """The guest's CPU, from either kind of runner. Raises ``GuestError``."""
        try:
            return CpuChange.read(self._good(await self._ask("GET", "/cpu_current")))
        except (ValueError, RecursionError) as error:
            raise GuestError(f"{self.who}: its runner cannot say its CPU: {error}") from error

    async def set_cpu(self, use: MilliCpu) -> MilliCpu | None:
        """Gives the guest this much CPU, by a request that both runners know; ours says what it then has.

        Raises ``GuestError``.
        """
        answer = self._good(await self._ask("POST", "/cpu_change", CpuChange(cpu_to_wire(use))))
        try:
            return CpuChange.read(answer)
        except (ValueError, RecursionError):
            # NeonVM's runner answers an order with an empty body.
            return None

    async def decide(self, move: str, wanted: Decided) -> Decided:
        """Owner of the guest after ``move``. Raises ``GuestError``: a ``TransferError`` if that is never decided."""
        answer = await self._ask("POST", "/handover", Handover(move, wanted))
        # An older release, or NeonVM's own runner: asking again never helps.
        if answer.status == _UNKNOWN_PATH:
            raise TransferError(TransferFault.REFUSED, Survivor.SOURCE, f"{self.who}: its runner lets no guest go")
        try:
            return msgspec.json.decode(self._good(answer), type=Handover).decision
        except (ValueError, RecursionError) as error:
            raise GuestError(f"{self.who}: its runner gave no usable answer: {error}") from error

    async def signing_request(self, move: str) -> bytes:
        """A request for the certificate of ``move``, PEM. Raises ``GuestError``."""
        return self._good(await self._ask("POST", "/tls/request", CertificateRequest(move)))

    async def use_certificate(self, move: str, certificate: bytes, authority: bytes) -> None:
        """Has QEMU show this certificate. Raises ``GuestError``."""
        body = Certificate(move, certificate.decode(), authority.decode())
        self._good(await self._ask("PUT", "/tls/certificate", body))

    async def announce(self) -> None:
        """Leads the VM's frames to this pod. Raises ``GuestError``."""
        self._good(await self._ask("PUT", "/announce"))

    async def _ask(
        self, method: str, path: str, body: msgspec.Struct | None = None, seconds: float = _ORDER_SECONDS
    ) -> _RunnerResponse:
        # IPv6 in a URL is in brackets.
        host = f"[{self.place.address}]" if ":" in self.place.address else self.place.address
        content = msgspec.json.encode(body) if body is not None else None
        url, extensions = f"http://{host}:{self.place.api}{path}", {PLACE: self.place}
        request = self.http.stream(method, url, content=content, headers=_PLAIN, extensions=extensions)
        try:
            async with asyncio.timeout(seconds), request as answer:
                return _RunnerResponse(path, answer.status_code, await self._read(answer, path))
        except TimeoutError:
            raise GuestError(f"{self.who}: its runner does not answer") from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise GuestError(f"{self.who}: its runner cannot be reached: {error!r}") from error

    async def _read(self, answer: httpx.Response, path: str) -> bytes:
        """The body."""
        # It was not asked for, and a small body could unpack to any size.
        if "Content-Encoding" in answer.headers:
            raise GuestError(f"{self.who}: its runner packs what it says at {path}")
        content = b""
        async for part in answer.aiter_bytes():
            content += part
            # Read in parts, because a length in a header is only a claim.
            if len(content) > _MOST_BYTES:
                raise GuestError(f"{self.who}: its runner says too much at {path}")
        return content

    def _good(self, answer: _RunnerResponse) -> bytes:
        if answer.is_good:
            return answer.content
        # Cut, because it goes into messages and a status.
        complaint = answer.content[:_SHOWN].decode(errors="replace").strip()
        raise GuestError(f"{self.who}: its runner refused {answer.path}: {complaint}")
