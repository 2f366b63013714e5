"""NeonVM's monitor protocol between an agent and the monitor in its guest: text frames of a WebSocket (B.8).

Rules that hold here:

- The agent speaks first and sends the versions that it supports; the monitor picks one. Version 1 is NeonVM's v1.0.
- Message ids of an agent are even, a monitor's odd; a response repeats the id of its request.
- The only error, for any input, is ``MalformedMonitorMessageError``; an unknown type is not an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from protocol.field_errors import field_message, shown
from protocol.units import Resources

# Version 2 adds ``LoadReport``; a monitor that does not support it picks 1 and never sends one.
MONITOR_VERSIONS: Final = (1, 2)
"""The oldest and newest supported version."""

LARGEST_MONITOR_MESSAGE: Final = 4096
"""Maximum bytes of a monitor's message."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
_Cores = Annotated[float, msgspec.Meta(ge=0.0, le=1024.0)]
_Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
_Span = Annotated[float, msgspec.Meta(gt=0.0, le=60.0)]


class MalformedMonitorMessageError(ValueError):
    """A monitor's message violates the protocol; the error message begins with the path of the field."""


class UpscaleRequest(msgspec.Struct, frozen=True, tag="UpscaleRequest"):
    """The guest needs more memory immediately."""

    id: _Number


class UpscaleConfirmation(msgspec.Struct, frozen=True, tag="UpscaleConfirmation"):
    """The answer to ``UpscaleNotification``."""

    id: _Number


class DownscaleResult(msgspec.Struct, frozen=True, tag="DownscaleResult"):
    """The answer to ``DownscaleRequest``: the monitor's decision on the shrink, and the reason."""

    id: _Number
    ok: bool = msgspec.field(name="Ok")
    status: str = msgspec.field(name="Status", default="")


class HealthCheck(msgspec.Struct, frozen=True, tag="HealthCheck"):
    """The answer to ``CheckHealth``."""

    id: _Number


class InvalidMessage(msgspec.Struct, frozen=True, tag="InvalidMessage"):
    """The monitor did not understand message ``id``."""

    id: _Number
    error: str = ""


class InternalError(msgspec.Struct, frozen=True, tag="InternalError"):
    """The monitor could not carry out message ``id``."""

    id: _Number
    error: str = ""


class LoadReport(msgspec.Struct, frozen=True, tag="LoadReport", rename="camel"):
    """Version 2: the load of the guest's database in the last ``span`` seconds, sent when it starts to rise.

    ``cpu_busy`` is in cores, ``cpu_stall`` the share of the time in which tasks waited for a CPU. ``runnable`` counts
    running and runnable tasks of the guest, ``processes`` the database's processes (one per connection), and
    ``new_processes`` their increase over the last second. ``active`` counts active connections, and ``waiting`` those
    of them that wait for a lock; a lower bound if there are very many. ``cause`` is the monitor's trigger.
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
    """A message of unknown ``type``."""

    id: _Number
    type: str


# The union that msgspec decodes by tag; ``UnknownMessage`` has no tag and is decoded separately.
_KNOWN = (
    UpscaleRequest | UpscaleConfirmation | DownscaleResult | HealthCheck | InvalidMessage | InternalError | LoadReport
)
FromMonitor = _KNOWN | UnknownMessage
_TYPES: Final = frozenset(message.__struct_config__.tag for message in _KNOWN.__args__)
_SPELLED: Final = {"ok": "Ok", "status": "Status"}
_READ_ANY: Final = msgspec.json.Decoder(UnknownMessage)


@dataclass(frozen=True, slots=True)
class DownscaleRequest:
    """Ask whether the guest can shrink to ``target``."""

    target: Resources


@dataclass(frozen=True, slots=True)
class UpscaleNotification:
    """Tell the monitor that the guest now has ``granted``."""

    granted: Resources


@dataclass(frozen=True, slots=True)
class CheckHealth:
    """Ask whether the monitor is alive. ``HealthCheck`` on the wire."""


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """Reply that the monitor's message ``id`` was not understood. ``InvalidMessage`` on the wire, with that id."""

    id: int
    error: str


ToMonitor = DownscaleRequest | UpscaleNotification | CheckHealth | NotUnderstood


def read_from_monitor(text: str | bytes) -> FromMonitor:
    """Decode a monitor's message. Raises ``MalformedMonitorMessageError``.

    >>> read_from_monitor('{"type":"DownscaleResult","Ok":false,"Status":"in use","id":4}')
    DownscaleResult(id=4, ok=False, status='in use')
    """
    try:
        head = _READ_ANY.decode(text)
        # A newer monitor may send unknown types.
        return msgspec.convert(_flat(msgspec.json.decode(text)), _KNOWN) if head.type in _TYPES else head
    except (ValueError, RecursionError) as error:
        raise MalformedMonitorMessageError(field_message(error)) from None


def _flat(message: dict[str, object]) -> dict[str, object]:
    """The message with its fields next to ``type``, and with normalized names."""
    # NeonVM's monitor writes fields next to ``type``; others nest them in ``content``.
    content = message.pop("content", None)
    fields = {**content, **message} if isinstance(content, dict) else message
    # NeonVM's agent accepts any capitalization, so some monitors write these in lower case.
    return {_SPELLED.get(name, name): value for name, value in fields.items()}


def write_to_monitor(message: ToMonitor, number: int) -> str:
    """Encode ``message`` with the id ``number``.

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
    """Encode the agent's first message.

    >>> write_greeting()
    '{"min":1,"max":2}'
    """
    return msgspec.json.encode({"min": MONITOR_VERSIONS[0], "max": MONITOR_VERSIONS[1]}).decode()


class _Greeted(msgspec.Struct, frozen=True):
    version: _Number = 0
    error: str | None = None


_READ_GREETED: Final = msgspec.json.Decoder(_Greeted)


def read_greeting(text: str | bytes) -> int:
    """Decode the version that a monitor picked. Raises ``MalformedMonitorMessageError``, also if the monitor refuses.

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
