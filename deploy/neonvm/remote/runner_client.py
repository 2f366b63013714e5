"""The controller's side of a runner pod's API (``runner_api``). Every fault is a ``GuestError``.

What runs in the pod is its author's choice: an answer has a size and a time, and its bytes may be anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import msgspec

from deploy.neonvm.access.connections import AskRunner, RunnerHttpResponse, RunnerPlace
from deploy.neonvm.ports import GuestError, TransferError, TransferFault
from deploy.neonvm.qemu.machine import Decided
from deploy.neonvm.runner.pod_runner import RunnerStatus
from deploy.neonvm.runner.runner_api import Certificate, CertificateRequest, CpuChange, Handover
from deploy.neonvm.texts import controller as texts
from protocol.units import MilliCpu, Seconds
from protocol.wire.wire_quantities import cpu_to_wire


class Looks:
    """``turns`` for pods at a time, and ``for_silent`` more for those that did not answer the last time."""

    def __init__(self, turns: int = 128, for_silent: int = 32) -> None:
        self._turns = asyncio.Semaphore(turns)
        self._for_silent = asyncio.Semaphore(for_silent)
        self._silent: set[str] = set()

    @asynccontextmanager
    async def turn(self, who: str) -> AsyncIterator[None]:
        """The turn of that pod. A ``GuestError`` in it means that the pod was silent."""
        # A silent pod may keep its turn until its time-out.
        async with self._for_silent if who in self._silent else self._turns:
            try:
                yield
            except GuestError:
                # Remembered until it answers: the next turn waits with the other silent ones.
                self._silent.add(who)
                raise
            self._silent.discard(who)

    def forget(self, who: str) -> None:
        """The pod is gone."""
        self._silent.discard(who)


PATIENCE: Final = Seconds(5.0)
"""A runner that takes longer to say what it has holds up those that wait for their turn."""
_UNKNOWN_PATH: Final = 404
_ORDER_SECONDS: Final = Seconds(30.0)
"""For a whole order, however busy the guest is."""
_MOST_BYTES: Final = 64 * 1024
"""Far more than any answer of a runner has."""
_SHOWN: Final = 300


@dataclass(frozen=True, slots=True)
class RunnerClient:
    """One pod's API at ``place``. ``looks`` are the turns in which pods are asked what they have."""

    request: AskRunner
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
            return msgspec.json.decode(self._accepted("/status", answer), type=RunnerStatus)
        except (ValueError, RecursionError) as error:
            raise GuestError(texts.RUNNER_UNREADABLE.format(who=self.who, error=error)) from error

    async def is_ready(self) -> bool:
        """Return True if the guest is up. Raises ``GuestError``."""
        return _is_good(await self._ask("GET", "/ready"))

    async def cpu(self) -> MilliCpu:
        """The guest's CPU, from either kind of runner. Raises ``GuestError``."""
        try:
            return CpuChange.read(await self._good("GET", "/cpu_current"))
        except (ValueError, RecursionError) as error:
            raise GuestError(texts.RUNNER_CPU_UNKNOWN.format(who=self.who, error=error)) from error

    async def set_cpu(self, use: MilliCpu) -> MilliCpu | None:
        """Gives the guest this much CPU, by a request that both runners know; ours says what it then has. Raises
        ``GuestError``.
        """
        answer = await self._good("POST", "/cpu_change", CpuChange(cpu_to_wire(use)))
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
            raise TransferError(TransferFault.REFUSED, texts.RUNNER_KEEPS_GUEST.format(who=self.who))
        try:
            return msgspec.json.decode(self._accepted("/handover", answer), type=Handover).decision
        except (ValueError, RecursionError) as error:
            raise GuestError(texts.RUNNER_UNREADABLE.format(who=self.who, error=error)) from error

    async def signing_request(self, move: str) -> bytes:
        """A request for the certificate of ``move``, PEM. Raises ``GuestError``."""
        return await self._good("POST", "/tls/request", CertificateRequest(move))

    async def use_certificate(self, move: str, certificate: bytes, authority: bytes) -> None:
        """Has QEMU show this certificate. Raises ``GuestError``."""
        body = Certificate(move, certificate.decode(), authority.decode())
        await self._good("PUT", "/tls/certificate", body)

    async def announce(self) -> None:
        """Leads the VM's frames to this pod. Raises ``GuestError``."""
        await self._good("PUT", "/announce")

    async def _ask(
        self, method: str, path: str, body: msgspec.Struct | None = None, seconds: float = _ORDER_SECONDS
    ) -> RunnerHttpResponse:
        content = msgspec.json.encode(body) if body is not None else b""
        try:
            async with asyncio.timeout(seconds):
                answer = await self.request(self.place, method, path, content)
        except TimeoutError:
            raise GuestError(texts.RUNNER_SILENT.format(who=self.who)) from None
        # The last two are addresses and ports that no socket takes: both are what a pod says.
        except (OSError, UnicodeError, OverflowError) as error:
            raise GuestError(texts.RUNNER_UNREACHABLE.format(who=self.who, error=error)) from error
        if len(answer.body) > _MOST_BYTES:
            raise GuestError(texts.RUNNER_SAYS_TOO_MUCH.format(who=self.who, path=path))
        # It was not asked for, and a small body could unpack to any size.
        if "content-encoding" in answer.headers:
            raise GuestError(texts.RUNNER_PACKS.format(who=self.who, path=path))
        return answer

    async def _good(self, method: str, path: str, body: msgspec.Struct | None = None) -> bytes:
        return self._accepted(path, await self._ask(method, path, body))

    def _accepted(self, path: str, answer: RunnerHttpResponse) -> bytes:
        if _is_good(answer):
            return answer.body
        # Cut, because it goes into messages and a status.
        complaint = answer.body[:_SHOWN].decode(errors="replace").strip()
        raise GuestError(texts.RUNNER_REFUSES.format(who=self.who, path=path, complaint=complaint))


def _is_good(answer: RunnerHttpResponse) -> bool:
    return 200 <= answer.status < 300
