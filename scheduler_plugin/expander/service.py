"""The expander's gRPC service. It returns no error that would prevent a scale-up (S2.8a)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from protocol.runtime.clock import Clock
from protocol.runtime.serving.limits import Limits, Peers
from protocol.runtime.tls_files import FollowedTls, TlsParts, server_context
from protocol.units import Seconds
from scheduler_plugin.expander import texts
from scheduler_plugin.expander.choice import Judgement, choose
from scheduler_plugin.expander.failures import Failures
from scheduler_plugin.expander.scaleup import ScaleUp, ScaleUpOption
from scheduler_plugin.expander.telemetry import PriceExpanderTelemetry
from scheduler_plugin.expander.wire import MalformedScaleUpError, decode_scale_up, encode_groups

SERVICE: Final = "grpcplugin.Expander"

LARGEST_MESSAGE: Final = 128 * 1024**2
"""The limit of the autoscaler's client for messages in either direction."""

MOST_AT_ONCE: Final = 4
"""Maximum calls whose request is arriving. The autoscaler sends one at a time, and each may take ``LARGEST_MESSAGE`` of
memory. With more, or more than half of one address, a new call displaces the oldest of the address with the most, or of
its own.
"""

REQUEST_SECONDS: Final = Seconds(10.0)
"""Timeout of a request. Anyone may call, and send nothing."""

MOST_CALLS: Final = 64
"""Maximum calls that gRPC passes on, including those that are about to be displaced."""

CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", LARGEST_MESSAGE),
    ("grpc.max_send_message_length", LARGEST_MESSAGE),
    # With SO_REUSEPORT a second process could silently take some of the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", MOST_AT_ONCE),
    ("grpc.max_connection_idle_ms", 300_000),
)

Context = grpc.aio.ServicerContext[bytes, bytes]

Judge = Callable[[ScaleUp], Mapping[str, Judgement]]
"""Returns the rank of each option of a call, or the reason why it has none."""


class Expander:
    """Implements ``BestOptions``. ``judge`` may be replaced at any time."""

    def __init__(self, judge: Judge, failures: Failures, telemetry: PriceExpanderTelemetry, clock: Clock) -> None:
        self.judge = judge
        self.failures = failures
        self._telemetry = telemetry
        self._clock = clock
        self._callers = Peers(Limits(connections=MOST_AT_ONCE, per_peer=MOST_AT_ONCE // 2))

    def handler(self) -> grpc.GenericRpcHandler:
        """Handler for a ``grpc.aio`` server."""
        # A stream of one request, because gRPC waits for the request of a unary call without a timeout.
        method: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_unary_rpc_method_handler(self._call)
        return grpc.method_handlers_generic_handler(SERVICE, {"BestOptions": method})

    async def _call(self, questions: AsyncIterator[bytes], context: Context) -> bytes:
        call = _ArrivingCall(asyncio.ensure_future(_first(questions)))
        address = context.peer().rpartition(":")[0]
        self._callers.admit(call, address)
        try:
            arrived, _ = await asyncio.wait((call.request,), timeout=REQUEST_SECONDS)
        finally:
            call.request.cancel()
            self._callers.leave(call, address)
        if not arrived or call.request.cancelled() or call.request.exception() is not None:
            await context.abort(grpc.StatusCode.CANCELLED, texts.NO_REQUEST)
        return await self.best_options(call.request.result(), context)

    async def best_options(self, question: bytes, context: Context) -> bytes:
        """Handle one call; request and response are encoded."""
        began = self._clock.now()
        try:
            scale_up = decode_scale_up(question)
        except MalformedScaleUpError as error:
            self._telemetry.malformed(str(error))
            # On an error the autoscaler keeps all options. ``abort`` raises.
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        try:
            # Encode it here too, because after any failure the response below has all options.
            verdict = choose(scale_up, self.judge(scale_up), self.failures, began)
            answer = _written(verdict.options, verdict.why)
        except Exception:  # noqa: BLE001 - a bug must not keep pods pending, so return all options
            self._telemetry.failed(len(scale_up.options))
            return _written(scale_up.options, texts.EXPANDER_FAILED)
        self._telemetry.answered(scale_up, verdict, Seconds(self._clock.now() - began))
        return answer


@dataclass(eq=False, slots=True)
class _ArrivingCall:
    """A call whose ``request`` is arriving."""

    request: asyncio.Future[bytes]

    def displace(self) -> None:
        """See ``Displaceable``."""
        self.request.cancel()


async def _first(questions: AsyncIterator[bytes]) -> bytes:
    async for question in questions:
        return question
    return b""


def _written(options: Iterable[ScaleUpOption], why: str) -> bytes:
    return encode_groups((option.group, option.nodes, why) for option in options)


Followed = FollowedTls[grpc.ServerCertificateConfiguration]


def followed(parts: TlsParts) -> Followed:
    """The TLS files, reloaded when they change."""
    return FollowedTls("expander", parts, _configuration)


def credentials(files: Followed) -> grpc.ServerCredentials:
    """Server credentials that gRPC reads at each handshake. Raises ``TlsFilesError``."""
    # With a CA, clients need a certificate that it has signed.
    requires_certificate = files.parts.authority is not None
    return grpc.dynamic_ssl_server_credentials(
        files.value(), files.value, require_client_authentication=requires_certificate
    )


def _configuration(parts: TlsParts) -> grpc.ServerCertificateConfiguration:
    """Read the TLS files. Raises ``OSError``, and ``ssl.SSLError`` if they do not match."""
    # gRPC does not check that key and certificate match; ssl does.
    server_context(parts)
    certificate, key = ((path or Path()).read_bytes() for path in (parts.certificate, parts.key))
    authority = None if parts.authority is None else parts.authority.read_bytes()
    return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=authority)
