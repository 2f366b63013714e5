"""Ports of the agent. Tests inject faults here, and the agent's modes differ only in the adapters behind them.

Rules that hold here:

- A call makes one attempt within its own deadline. Retries and backoff belong to the core.
- Every failure is one of the errors below and names the party at fault. The only other exception is
  ``CancelledError``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from agent.core.events import Fault
from agent.core.guest import GuestSample
from protocol.codec import PluginResponseView
from protocol.guest.database import DatabaseState
from protocol.guest.monitor_messages import FromMonitor, ToMonitor
from protocol.messages import AgentRequest
from protocol.units import Bytes, Resources, Seconds
from protocol.virtual_machine import VirtualMachine


class PortError(Exception):
    """A call through a port failed, for the human-readable ``reason``.

    ``retry_after`` comes from the scheduler; ``is_superseded``: it now serves another agent of the VM.
    """

    def __init__(
        self, fault: Fault, reason: str, retry_after: Seconds | None = None, *, is_superseded: bool = False
    ) -> None:
        super().__init__(reason)
        self.fault = fault
        self.reason = reason
        self.retry_after = retry_after
        self.is_superseded = is_superseded


class ConflictError(PortError):
    """The object has changed since it was read, so the patch had no effect."""


class RefusedError(PortError):
    """The API rejected the request permanently, or has no such object: a patch had no effect."""


class ExpiredError(PortError):
    """The version to watch from has expired: list the objects again."""


class UnwatchedError(PortError):
    """Watching is impossible for a while. The object may still be readable."""


class MetricsSource(Protocol):
    """The guest's node_exporter."""

    async def scrape(self) -> GuestSample:
        """Scrape the guest's metrics. Raises ``PortError``."""

    def close(self) -> None:
        """Close the connection kept between scrapes; another scrape may follow."""


DatabaseSource = Callable[[], Awaitable[DatabaseState]]
"""Fetches the database's status from the daemon in the guest. Raises ``PortError``."""


class MonitorConnection(Protocol):
    """A connection to the guest's monitor, with protocol ``version``."""

    version: int
    answer_timeout: Seconds

    async def receive(self) -> FromMonitor:
        """The next message. Raises ``PortError`` if the connection is closed or the message is malformed."""

    async def send(self, message: ToMonitor, number: int) -> None:
        """Send ``message`` with the id ``number``. Raises ``PortError``."""


MonitorSource = Callable[[], AbstractAsyncContextManager[MonitorConnection]]
"""Connects to the guest's monitor (B.8) for the duration of the block. Raises ``PortError``."""


class SchedulerClient(Protocol):
    """The scheduler (S4.4)."""

    async def ask(self, request: AgentRequest, slot_size: Bytes) -> PluginResponseView:
        """Send one request and return its answer. Raises ``PortError``."""


class VmApi(Protocol):
    """One VirtualMachine object."""

    async def get(self) -> VirtualMachine:
        """Read the object. Raises ``PortError``."""

    def watch(self) -> AsyncIterator[VirtualMachine]:
        """Yield the object, now and after each change, until the server ends the watch.

        Raises like ``get``, and ``UnwatchedError``.
        """

    async def patch(self, use: Resources, slot_size: Bytes, base: int) -> VirtualMachine:
        """Set ``use`` if the object is still at version ``base`` (0: any); return the patched object.

        Raises ``ConflictError``, ``RefusedError``, or ``PortError`` if the outcome is unknown.
        """

    async def order_sleep(self, order: str, base: int) -> VirtualMachine:
        """Write the order to sleep if the object is still at version ``base``; return the patched object.

        Raises like ``patch``.
        """

    async def write_event(self, reason: str, note: str, wall: float) -> None:
        """Write an Event about the object: ``reason`` in CamelCase, ``note`` as a sentence. Raises ``PortError``.

        ``wall`` is the time of the Event in seconds since 1970.
        """


TokenSource = Callable[[], str | None]
"""The bearer token of this agent; None if none is configured. Raises ``PortError``."""
