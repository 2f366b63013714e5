"""NeonVM's monitor protocol between an agent and the monitor in its guest: text frames of a WebSocket (B.8).

Rules that hold here:

- The agent speaks first and says which versions it knows; the monitor picks one. Version 1 is NeonVM's v1.0.
- An agent's numbers are even, a monitor's odd; an answer has the number of its question.
- Whatever a monitor sends, the only error is ``MalformedMonitorMessageError``; an unknown type is no error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from protocol.field_errors import field_message, shown
from protocol.units import Resources

# Version 2 adds ``LoadReport``; a monitor that does not know it picks 1 and never sends one.
MONITOR_VERSIONS: Final = (1, 2)
"""The oldest and the newest version that we speak."""

LARGEST_MONITOR_MESSAGE: Final = 4096
"""Bytes of one message of a monitor."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
_Cores = Annotated[float, msgspec.Meta(ge=0.0, le=1024.0)]
_Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
_Span = Annotated[float, msgspec.Meta(gt=0.0, le=60.0)]


class MalformedMonitorMessageError(ValueError):
    """A monitor sent what its protocol does not allow; the text begins with the path of the field."""


class UpscaleRequest(msgspec.Struct, frozen=True, tag="UpscaleRequest"):
    """The guest needs more memory at once."""

    id: _Number


class UpscaleConfirmation(msgspec.Struct, frozen=True, tag="UpscaleConfirmation"):
    """The monitor knows of the memory that came; the answer to ``UpscaleNotification``."""

    id: _Number


class DownscaleResult(msgspec.Struct, frozen=True, tag="DownscaleResult"):
    """The monitor's decision on a shrink, and why; the answer to ``DownscaleRequest``."""

    id: _Number
    ok: bool = msgspec.field(name="Ok")
    status: str = msgspec.field(name="Status", default="")


class HealthCheck(msgspec.Struct, frozen=True, tag="HealthCheck"):
    """The answer to ours."""

    id: _Number


class InvalidMessage(msgspec.Struct, frozen=True, tag="InvalidMessage"):
    """The monitor did not understand message ``id``."""

    id: _Number
    error: str = ""


class InternalError(msgspec.Struct, frozen=True, tag="InternalError"):
    """The monitor could not do what message ``id`` asked for."""

    id: _Number
    error: str = ""


class LoadReport(msgspec.Struct, frozen=True, tag="LoadReport", rename="camel"):
    """Version 2: what the guest's database did within the last ``span`` seconds, sent when a load begins.

    ``cpu_busy`` counts cores, ``cpu_stall`` the share of the time in which its tasks waited for one. ``runnable``
    counts tasks of the guest that ran or could run, ``processes`` those of the database (one for each connection), and
    ``new_processes`` how many more there are than a second ago. ``active`` counts connections that do something, and
    ``waiting`` those of them that wait for another's lock; a lower bound if there are very many. ``cause`` is what the
    monitor noticed.
    """

    id: _Number
    cause: str
    span: _Span
    cpu_busy: _Cores
    cpu_stall: _Share
    runnable: _Count
    processes: _Count = 0
    new_processes: _Count = 0
    active: _Count = 0
    waiting: _Count = 0


class UnknownMessage(msgspec.Struct, frozen=True):
    """A message of a ``type`` that we do not know."""

    id: _Number
    type: str


# The union that msgspec decodes by tag; ``UnknownMessage`` has no tag and is read on its own.
_KNOWN = (
    UpscaleRequest | UpscaleConfirmation | DownscaleResult | HealthCheck | InvalidMessage | InternalError | LoadReport
)
FromMonitor = _KNOWN | UnknownMessage
_TYPES: Final = frozenset(message.__struct_config__.tag for message in _KNOWN.__args__)
_SPELLED: Final = {"ok": "Ok", "status": "Status"}
_READ_ANY: Final = msgspec.json.Decoder(UnknownMessage)


@dataclass(frozen=True, slots=True)
class DownscaleRequest:
    """May the guest be left with ``target``? ``DownscaleRequest`` on the wire."""

    target: Resources


@dataclass(frozen=True, slots=True)
class UpscaleNotification:
    """The guest has ``granted`` now. ``UpscaleNotification`` on the wire."""

    granted: Resources


@dataclass(frozen=True, slots=True)
class CheckHealth:
    """Is the monitor there? ``HealthCheck`` on the wire."""


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """The monitor's message ``id`` was not understood. ``InvalidMessage`` on the wire, under that number."""

    id: int
    error: str


ToMonitor = DownscaleRequest | UpscaleNotification | CheckHealth | NotUnderstood


def read_from_monitor(text: str | bytes) -> FromMonitor:
    """One message of a monitor. Raises ``MalformedMonitorMessageError``.

    >>> read_from_monitor('{"type":"DownscaleResult","Ok":false,"Status":"in use","id":4}')
    DownscaleResult(id=4, ok=False, status='in use')
    """
    try:
        head = _READ_ANY.decode(text)
        # A newer monitor may send types that this agent does not know.
        return msgspec.convert(_flat(msgspec.json.decode(text)), _KNOWN) if head.type in _TYPES else head
    except (ValueError, RecursionError) as error:
        raise MalformedMonitorMessageError(field_message(error)) from None


def _flat(found: dict[str, object]) -> dict[str, object]:
    """The message with its fields beside ``type``, by the names that this module reads."""
    # NeonVM's monitor writes fields beside ``type``; others put them below ``content``.
    below = found.pop("content", None)
    fields = {**below, **found} if isinstance(below, dict) else found
    # NeonVM's agent accepts any capitalization, so some monitors write these in lower case.
    return {_SPELLED.get(name, name): value for name, value in fields.items()}


def write_to_monitor(message: ToMonitor, number: int) -> str:
    """``message`` as number ``number``.

    >>> write_to_monitor(DownscaleRequest(Resources.parse("250m", "1Gi")), 2)
    '{"content":{"target":{"cpu":0.25,"mem":1073741824}},"type":"DownscaleRequest","id":2}'
    """
    kind, content = _content(message)
    return msgspec.json.encode({"content": content, "type": kind, "id": number}).decode()


def _content(message: ToMonitor) -> tuple[str, dict[str, object]]:
    match message:
        case DownscaleRequest(target):
            return "DownscaleRequest", {"target": _allocation(target)}
        case UpscaleNotification(granted):
            return "UpscaleNotification", {"granted": _allocation(granted)}
        case NotUnderstood(_, error):
            return "InvalidMessage", {"error": error}
        case _:
            return "HealthCheck", {}


def _allocation(amounts: Resources) -> dict[str, float]:
    # NeonVM's protocol counts cores as a float and memory in bytes.
    return {"cpu": amounts.cpu.as_cores, "mem": amounts.mem.value}


def write_greeting() -> str:
    """The agent's first message.

    >>> write_greeting()
    '{"min":1,"max":2}'
    """
    return msgspec.json.encode({"min": MONITOR_VERSIONS[0], "max": MONITOR_VERSIONS[1]}).decode()


class _Greeted(msgspec.Struct, frozen=True):
    version: _Number = 0
    error: str | None = None


_READ_GREETED: Final = msgspec.json.Decoder(_Greeted)


def read_greeting(text: str | bytes) -> int:
    """The version that a monitor picked. Raises ``MalformedMonitorMessageError``, also if the monitor refuses.

    >>> read_greeting('{"version":1}')
    1
    """
    try:
        greeting = _READ_GREETED.decode(text)
    except (ValueError, RecursionError) as error:
        raise MalformedMonitorMessageError(field_message(error)) from None
    if greeting.error is not None:
        raise MalformedMonitorMessageError(f"error: the monitor refuses: {shown(greeting.error)}")
    if not MONITOR_VERSIONS[0] <= greeting.version <= MONITOR_VERSIONS[1]:
        low, high = MONITOR_VERSIONS
        raise MalformedMonitorMessageError(f"version: expected {low} to {high}, got {greeting.version}")
    return greeting.version
