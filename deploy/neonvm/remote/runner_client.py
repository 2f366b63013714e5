"""The controller's side of a runner pod's API (``runner_api``). Every fault is a ``GuestError``."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import httpx
import msgspec

from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.wire import Decided
from deploy.neonvm.remote.looks import Looks
from deploy.neonvm.runner.pod_runner import RunnerStatus
from deploy.neonvm.runner.runner_api import Certificate, CertificateRequest, CpuChange, Handover
from protocol.units import MilliCpu, Seconds
from protocol.wire.wire_quantities import cpu_to_wire

PATIENCE: Final = Seconds(5.0)
"""A runner that takes longer to say what it has holds up those that wait for their turn."""


@dataclass(frozen=True, slots=True)
class RunnerClient:
    """One pod's API at ``address``. ``http`` has the time-outs; ``looks`` are the turns in which pods are
    asked what they have.
    """

    http: httpx.AsyncClient
    who: str
    address: str
    port: int
    looks: Looks
    patience: Seconds = PATIENCE

    async def status(self) -> RunnerStatus | None:
        """What the guest has; None from a runner of NeonVM's, which does not say it. Raises ``GuestError``."""
        async with self.looks.turn(self.who):
            answer = await self._ask("GET", "/status", seconds=self.patience)
        if answer.status_code == 404:
            return None
        try:
            return msgspec.json.decode(self._good(answer), type=RunnerStatus)
        except (ValueError, RecursionError) as error:
            raise GuestError(f"{self.who}: its runner gave no usable answer: {error}") from error

    async def is_ready(self) -> bool:
        """Whether the guest is up. Raises ``GuestError``."""
        return (await self._ask("GET", "/ready")).status_code == 200

    async def cpu(self) -> MilliCpu:
        """The CPU in NeonVM's words. Raises ``GuestError``."""
        try:
            return CpuChange.read(self._good(await self._ask("GET", "/cpu_current")))
        except (ValueError, RecursionError) as error:
            raise GuestError(f"{self.who}: its runner cannot say its CPU: {error}") from error

    async def set_cpu(self, use: MilliCpu) -> None:
        """Gives the guest so much CPU, in the words that both runners know. Raises ``GuestError``."""
        self._good(await self._ask("POST", "/cpu_change", CpuChange(cpu_to_wire(use))))

    async def decide(self, move: str, wanted: Decided) -> Decided:
        """Whose the guest is after ``move``. Raises ``GuestError``."""
        answer = self._good(await self._ask("POST", "/handover", Handover(move, wanted)))
        try:
            return msgspec.json.decode(answer, type=Handover).decision
        except (ValueError, RecursionError) as error:
            raise GuestError(f"{self.who}: its runner gave no usable answer: {error}") from error

    async def signing_request(self, move: str) -> bytes:
        """A request for the certificate of ``move``, PEM. Raises ``GuestError``."""
        return self._good(await self._ask("POST", "/tls/request", CertificateRequest(move)))

    async def use_certificate(self, move: str, certificate: bytes, authority: bytes) -> None:
        """Has QEMU show this certificate. Raises ``GuestError``."""
        given = Certificate(move, certificate.decode(), authority.decode())
        self._good(await self._ask("PUT", "/tls/certificate", given))

    async def announce(self) -> None:
        """Leads the VM's frames to this pod. Raises ``GuestError``."""
        self._good(await self._ask("PUT", "/announce"))

    async def _ask(
        self, method: str, path: str, body: msgspec.Struct | None = None, seconds: float | None = None
    ) -> httpx.Response:
        host = f"[{self.address}]" if ":" in self.address else self.address
        content = msgspec.json.encode(body) if body is not None else None
        try:
            async with asyncio.timeout(seconds):
                return await self.http.request(method, f"http://{host}:{self.port}{path}", content=content)
        except TimeoutError:
            raise GuestError(f"{self.who}: its runner does not answer") from None
        except httpx.HTTPError as error:
            raise GuestError(f"{self.who}: its runner cannot be reached: {error!r}") from error

    def _good(self, answer: httpx.Response) -> bytes:
        if answer.is_success:
            return answer.content
        raise GuestError(f"{self.who}: its runner refused {answer.request.url.path}: {answer.text.strip()[:300]}")
