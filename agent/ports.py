"""Ports of the agent. Tests inject faults here, and the agent's modes differ only behind them.

Rules that hold here:

- A port does one thing once, within a deadline of its own. Retrying and waiting belong to the core.
- Every failure is one of the errors below and says whose fault it is. Nothing else but ``CancelledError`` is raised.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Protocol

import msgspec

from agent.core.events import Fault
from agent.core.guest import GuestSample
from protocol.codec import PluginResponseView
from protocol.guest.monitor_messages import FromMonitor
from protocol.messages import AgentRequest
from protocol.units import Bytes, Resources, Seconds
from protocol.virtual_machine import VirtualMachine


class PortError(Exception):
    """A call through a port failed; the message is for people.

    ``retry_after`` is how long a scheduler asks one to wait; ``is_others_turn``: it answers another agent of the VM.
    """

    def __init__(
        self, fault: Fault, reason: str, retry_after: Seconds | None = None, *, is_others_turn: bool = False
    ) -> None:
        super().__init__(reason)
        self.fault = fault
        self.reason = reason
        self.retry_after = retry_after
        self.is_others_turn = is_others_turn


class ConflictError(PortError):
    """The object has changed since it was read; the patch took no effect."""


class RefusedError(PortError):
    """The API refuses the request, and would again, or has no such object: a patch took no effect."""


class ExpiredError(PortError):
    """The version to watch from is too old: list the objects again at once."""


class MetricsSource(Protocol):
    """The guest's node_exporter."""

    async def scrape(self) -> GuestSample:
        """A sample of the guest's metrics. Raises ``PortError``."""

    def close(self) -> None:
        """Release the connection kept between scrapes; another scrape may follow."""


NotNegative = Annotated[float, msgspec.Meta(ge=0.0)]


class DatabaseView(msgspec.Struct, frozen=True, rename="camel"):
    """Status of a postgres. ``sessions`` counts clients; ``oldest_transaction_seconds`` is the age of the oldest
    transaction that a client has open.

    A standby is ``streaming`` while it receives its primary's changes; ``lag_seconds`` is how far it is behind what it
    received, None if unknown.
    """

    standby: bool
    streaming: bool = False
    lag_seconds: NotNegative | None = None
    sessions: Annotated[int, msgspec.Meta(ge=0)] = 0
    oldest_transaction_seconds: NotNegative | None = None


DatabaseSource = Callable[[], Awaitable[DatabaseView]]
"""The status of the guest's database now, as the daemon in the guest reports it. Raises ``PortError``."""


class MonitorConnection(Protocol):
    """A conversation with the guest's monitor; ``version`` is what both speak.

    One that has not answered a question within ``patience`` is given up.
    """

    version: int
    patience: Seconds

    async def receive(self) -> FromMonitor:
        """The next message. Raises ``PortError`` if the connection has ended or the message is malformed."""

    async def send(self, text: str) -> None:
        """Sends one message. Raises ``PortError``."""


MonitorSource = Callable[[], AbstractAsyncContextManager[MonitorConnection]]
"""Begins a conversation with the guest's monitor (B.8), which ends with the block. Raises ``PortError``."""


class SchedulerClient(Protocol):
    """The scheduler, as agents ask it (S4.4)."""

    async def ask(self, request: AgentRequest, slot_size: Bytes) -> PluginResponseView:
        """Sends one request and returns the answer. Raises ``PortError``."""


class VmApi(Protocol):
    """One VirtualMachine object."""

    async def get(self) -> VirtualMachine:
        """The object now. Raises ``PortError``."""

    def watch(self) -> AsyncIterator[VirtualMachine]:
        """The object as it is and after each change, until the server ends the watch. Raises like ``get``."""

    async def patch(self, use: Resources, slot_size: Bytes, base: int) -> VirtualMachine:
        """Sets ``use`` if the object is still at version ``base`` (0: whatever it is); returns the object after it.

        Raises ``ConflictError``, ``RefusedError``, or ``PortError`` if the outcome is unknown.
        """

    async def tell(self, reason: str, note: str, wall: float) -> None:
        """Writes an Event about the object: ``reason`` in CamelCase, ``note`` for people. Raises ``PortError``.

        ``wall`` is the present, in seconds since 1970.
        """


TokenSource = Callable[[], str | None]
"""Proof of who this agent is: the bearer token to send now; None if none is configured. Raises ``PortError``."""
