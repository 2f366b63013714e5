"""Client of a runner pod's API (``runner_api``). Every failure is a ``GuestError``.

Runners are not trusted: size and duration of a response are bounded, and it may contain any bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from deploy.neonvm.access.connections import RunnerConnections, RunnerEndpoint, RunnerHttpResponse
from deploy.neonvm.ports import GuestError, SleepRefusedError, TransferError, TransferFault, Woken
from deploy.neonvm.qemu.machine import Decided
from deploy.neonvm.runner.pod_runner import RunnerStatus
from deploy.neonvm.runner.runner_api import (
    Certificate,
    CertificateRequest,
    CpuChange,
    DiskAddress,
    Handover,
    SleepNumber,
    Slept,
)
from deploy.neonvm.texts import controller as texts
from deploy.neonvm.texts.lines import one_line
from protocol.runtime.serving.fair_slots import FairSlots
from protocol.units import MilliCpu, Seconds
from protocol.wire.wire_quantities import cpu_to_wire

_Response = TypeVar("_Response")


class UnansweredError(GuestError):
    """No response from the runner; the request may have been executed."""


class SilentError(UnansweredError):
    """The request to the runner timed out."""


class PollLimiter:
    """Limits concurrent polls to ``limit``, and to ``silent_limit`` for pods that did not respond last time.

    Of both, one namespace gets half.
    """

    def __init__(self, limit: int = 128, silent_limit: int = 64) -> None:
        self._slots = FairSlots(limit)
        self._silent_slots = FairSlots(silent_limit)
        self._silent: set[str] = set()

    @asynccontextmanager
    async def slot(self, who: str) -> AsyncIterator[None]:
        """Wait for a slot for the pod ``who`` (``NAMESPACE/NAME``). A ``GuestError`` in the context marks it as
        unresponsive.
        """
        # An unresponsive pod holds its slot until the timeout.
        slots = self._silent_slots if who in self._silent else self._slots
        async with slots.slot(who.partition("/")[0]):
            try:
                yield
            except GuestError:
                # Until it responds, it queues with the other unresponsive pods.
                self._silent.add(who)
                raise
            self._silent.discard(who)

    def forget(self, who: str) -> None:
        """Drop a deleted pod."""
        self._silent.discard(who)


_POLL_TIMEOUT: Final = Seconds(5.0)
"""Timeout of a status request; a slow runner delays polls of others."""
_UNKNOWN_PATH: Final = 404
_CONFLICT: Final = 409
_SLEEP_SECONDS: Final = Seconds(60.0)
"""Timeout of requests to sleep or to wake, which continue without their caller and are idempotent."""
_DISK_POLL: Final = Seconds(10.0)
"""Interval of status requests to a runner that sends its disk."""
_MAX_SILENT_POLLS: Final = 3
"""Unanswered status requests in a row after which it is given up."""
_REQUEST_SECONDS: Final = Seconds(30.0)
"""Timeout of other requests, also with a busy guest."""
_MAX_BODY: Final = 64 * 1024
"""Far more than any response of a runner."""


@dataclass(frozen=True, slots=True)
class RunnerClient:
    """Client of the pod at ``endpoint``. ``polls`` limits concurrent polls."""

    requests: RunnerConnections
    endpoint: RunnerEndpoint
    polls: PollLimiter
    poll_timeout: Seconds = _POLL_TIMEOUT

    @property
    def who(self) -> str:
        """The pod's name in messages."""
        return self.endpoint.name

    async def status(self) -> RunnerStatus:
        """The guest's state, from our runner. Raises ``GuestError``."""
        async with self.polls.slot(self.who):
            response = await self._ask("GET", "/status", seconds=self.poll_timeout)
        return self._read("/status", response, RunnerStatus)

    async def is_ready(self) -> bool:
        """Return True if the guest is up. Raises ``GuestError``."""
        return _is_success(await self._ask("GET", "/ready"))

    async def cpu(self) -> MilliCpu:
        """The guest's CPU, from our runner or NeonVM's. Raises ``GuestError``."""
        try:
            return CpuChange.read(await self._ask_ok("GET", "/cpu_current"))
        except (ValueError, RecursionError) as error:
            raise GuestError(texts.RUNNER_CPU_UNKNOWN.format(who=self.who, error=error)) from error

    async def set_cpu(self, use: MilliCpu) -> MilliCpu | None:
        """Set the guest's CPU, on our runner or NeonVM's; ours returns what it then has. Raises ``GuestError``."""
        response = await self._ask_ok("POST", "/cpu_change", CpuChange(cpu_to_wire(use)))
        try:
            return CpuChange.read(response)
        except (ValueError, RecursionError):
            # NeonVM's runner responds with an empty body.
            return None

    async def decide(self, migration: str, requested: Decided) -> Decided:
        """Decide which end has the guest after ``migration``. Raises ``GuestError``: ``TransferError`` if the runner
        does not support migration.
        """
        response = await self._ask("POST", "/handover", Handover(migration, requested))
        # An older release, or NeonVM's own runner: retrying does not help.
        if response.status == _UNKNOWN_PATH:
            raise TransferError(TransferFault.REFUSED, texts.MIGRATION_UNSUPPORTED.format(who=self.who))
        return self._read("/handover", response, Handover).decision

    async def signing_request(self, migration: str) -> bytes:
        """The certificate signing request for ``migration``, PEM. Raises ``GuestError``."""
        return await self._ask_ok("POST", "/tls/request", CertificateRequest(migration))

    async def use_certificate(self, migration: str, certificate: bytes, authority: bytes) -> None:
        """Install the certificate in QEMU. Raises ``GuestError``."""
        body = Certificate(migration, certificate.decode(), authority.decode())
        await self._ask_ok("PUT", "/tls/certificate", body)

    async def receive_disk(self, address: str) -> None:
        """Make the target receive the disk at ``address``; return once it listens. Raises ``GuestError``."""
        await self._ask_ok("PUT", "/disk", DiskAddress(address))

    async def send_disk(self, address: str) -> None:
        """Make the source send its disk to ``address``, for as long as it makes progress. Raises ``GuestError``:
        ``SilentError`` if the runner stops responding.
        """
        # The runner itself fails if the target stops reading.
        sending = asyncio.ensure_future(self._ask("PUT", "/disk", DiskAddress(address), None, is_long=True))
        silent = 0
        try:
            while not (await asyncio.wait((sending,), timeout=_DISK_POLL))[0]:
                try:
                    await self._ask("GET", "/status", seconds=self.poll_timeout)
                    silent = 0
                except UnansweredError:
                    silent += 1
                    if silent >= _MAX_SILENT_POLLS:
                        raise
            self._body("/disk", sending.result())
        finally:
            sending.cancel()
            await asyncio.wait((sending,))

    async def announce(self) -> None:
        """Redirect the VM's frames to this pod. Raises ``GuestError``."""
        await self._ask_ok("PUT", "/announce")

    async def fall_asleep(self, sleeps: int) -> Slept:
        """Put the guest to sleep, if it has slept ``sleeps`` times before. Raises ``SleepRefusedError`` if it stays
        awake, ``UnansweredError`` if that is unknown, and ``GuestError`` if it ended.
        """
        # An open pod's address is not authenticated, and NeonVM's own runner does not support sleep.
        if self.endpoint.is_open:
            raise SleepRefusedError(texts.OPEN_RUNNER_AWAKE)
        response = await self._ask("PUT", "/sleep", SleepNumber(sleeps), _SLEEP_SECONDS, is_long=True)
        if response.status == _UNKNOWN_PATH:
            raise SleepRefusedError(texts.OLD_RUNNER_AWAKE)
        if response.status == _CONFLICT:
            raise SleepRefusedError(_line(response))
        return self._read("/sleep", response, Slept)

    async def woken(self, seconds: Seconds) -> str:
        """Wait until the sleeping guest must wake; return the reason in one line. Raises ``SilentError`` after
        ``seconds``, and ``GuestError`` if the guest is not asleep.
        """
        response = await self._ask("GET", "/woken", None, seconds, is_long=True)
        self._body("/woken", response)
        return _line(response)

    async def wake(self, sleeps: int) -> Woken:
        """Resume the guest from sleep number ``sleeps``. Raises ``GuestError``."""
        response = await self._ask("PUT", "/wake", SleepNumber(sleeps), _SLEEP_SECONDS, is_long=True)
        woken = self._read("/wake", response, Woken)
        return Woken(woken.took, one_line(woken.fault))

    async def _ask(
        self,
        method: str,
        path: str,
        body: msgspec.Struct | None = None,
        seconds: float | None = _REQUEST_SECONDS,
        *,
        is_long: bool = False,
    ) -> RunnerHttpResponse:
        send = self.requests.long_poll if is_long else self.requests.ask
        content = msgspec.json.encode(body) if body is not None else b""
        try:
            async with asyncio.timeout(seconds):
                response = await send(self.endpoint, method, path, content)
        except TimeoutError:
            raise SilentError(texts.RUNNER_TIMED_OUT.format(who=self.who)) from None
        # UnicodeError and OverflowError: invalid addresses and ports, which come from the pod.
        except (OSError, UnicodeError, OverflowError) as error:
            raise UnansweredError(texts.RUNNER_UNREACHABLE.format(who=self.who, error=error)) from error
        if len(response.body) > _MAX_BODY:
            raise GuestError(texts.RESPONSE_TOO_LARGE.format(who=self.who, path=path))
        # Not requested, and a small body could decompress to any size.
        if "content-encoding" in response.headers:
            raise GuestError(texts.RESPONSE_COMPRESSED.format(who=self.who, path=path))
        return response

    async def _ask_ok(self, method: str, path: str, body: msgspec.Struct | None = None) -> bytes:
        return self._body(path, await self._ask(method, path, body))

    def _body(self, path: str, response: RunnerHttpResponse) -> bytes:
        if _is_success(response):
            return response.body
        raise GuestError(texts.RUNNER_REFUSES.format(who=self.who, path=path, complaint=_line(response)))

    def _read(self, path: str, response: RunnerHttpResponse, kind: type[_Response]) -> _Response:
        try:
            return msgspec.json.decode(self._body(path, response), type=kind)
        except (ValueError, RecursionError) as error:
            raise GuestError(texts.RESPONSE_INVALID.format(who=self.who, error=error)) from error


def _line(response: RunnerHttpResponse) -> str:
    return one_line(response.body.decode(errors="replace"))


def _is_success(response: RunnerHttpResponse) -> bool:
    return 200 <= response.status < 300
