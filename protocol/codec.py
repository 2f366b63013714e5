"""Converts every wire version of the agent protocol to and from the internal form (S4.4-S4.6, B.1).

Rules that hold here:

- A request is decoded in two steps, because only the VM's object says how large a memory slot is: ``decode_request``
  returns the pod, ``WireRequest.resolve`` the amounts.
- The only error, for any input, is ``MalformedMessageError``, and its message begins with the path of the field.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec

from protocol.field_errors import field_message, shown
from protocol.messages import AgentRequest, Metrics, ObjectName, PluginResponse
from protocol.units import Bytes, ComputeUnit, Resources, Seconds
from protocol.versions import EVERY_VERSION, ProtocolVersion, VersionRange
from protocol.wire.wire_dialects import DIALECTS, REMEMBERED, Dialect
from protocol.wire.wire_messages import WireHead, WireMetrics, WirePod, WireRequestBody, WireResources, WireResponseBody


class MalformedMessageError(ValueError):
    """A message violates its protocol version; the error message begins with the path of the field."""


@dataclass(frozen=True, slots=True)
class PluginResponseView:
    """A scheduler's answer, as decoded by an agent. From v3.0 on it does not contain the compute unit.

    Only this project's scheduler sends ``shrink_to`` and ``ask_again``.
    """

    permit: Resources
    compute_unit: ComputeUnit | None
    migrate: bool
    shrink_to: Resources | None = None
    ask_again: Seconds | None = None


class WireRequest(msgspec.Struct, frozen=True, gc=False):
    """A well-formed request whose amounts cannot be resolved without the VM's slot size."""

    version: ProtocolVersion
    pod: ObjectName
    body: WireRequestBody

    def resolve(self, slot_size: Bytes) -> AgentRequest:
        """Convert to the internal form. Raises ``MalformedMessageError``."""
        try:
            return _request(self, DIALECTS[self.version], slot_size)
        except ValueError as error:
            raise MalformedMessageError(str(error)) from None


def decode_request(body: bytes, accepted: VersionRange = EVERY_VERSION) -> WireRequest:
    """Decode an agent's request in any ``accepted`` version. Raises ``MalformedMessageError``.

    >>> body = b'{"protoVersion":4,"pod":{"namespace":"a","name":"p"},"resources":{"vCPUs":"500m","mem":2}}'
    >>> str(decode_request(body).resolve(Bytes.parse("1Gi")).resources)
    '500m cpu, 2Gi'
    """
    try:
        wire = _request_in(body, accepted)
        pod = ObjectName(_name("pod.namespace", wire.pod.namespace), _name("pod.name", wire.pod.name))
    except (ValueError, RecursionError) as error:
        raise MalformedMessageError(field_message(error)) from None
    return WireRequest(ProtocolVersion(wire.protoVersion), pod, wire)


def encode_request(version: ProtocolVersion, request: AgentRequest, slot_size: Bytes) -> bytes:
    """Encode an agent's request in ``version``, rounding amounts up to what that version can express.

    Raises ``ValueError`` if the version requires metrics or a compute unit and ``request`` has none.

    >>> request = AgentRequest(ObjectName("a", "p"), Resources.parse(1, "2Gi"))
    >>> encode_request(ProtocolVersion.V2_1, request, Bytes.parse("1Gi"))[:57]
    b'{"protoVersion":4,"pod":{"namespace":"a","name":"p"},"res'
    """
    dialect = DIALECTS[version]
    # Version 0 has no version field.
    wire: dict[str, object] = {"protoVersion": int(version)} if version else {}
    wire["pod"] = WirePod(request.pod.namespace, request.pod.name)
    # Round up, so that the VM does not get less than the agent requests.
    wire["resources"] = dialect.write_up(request.resources, slot_size)
    if dialect.last_permit:
        # Round down, like the permit itself: claiming more than was granted would make a restarted scheduler
        # overcommit.
        wire["lastPermit"] = request.last_permit and dialect.write_down(request.last_permit, slot_size)
    if dialect.bytes_and_unit:
        if request.compute_unit is None:
            raise ValueError(f"protocol version {version.name} requires a compute unit")
        wire["computeUnit"] = dialect.write_unit(request.compute_unit, slot_size)
    if dialect.needs_metrics and request.metrics is None:
        raise ValueError(f"protocol version {version.name} requires metrics")
    wire["metrics"] = request.metrics and _wire_metrics(request.metrics, dialect)
    if request.sequence is not None:
        wire["sequence"] = request.sequence
    if request.needs is not None:
        wire["needs"] = dialect.write_up(request.needs, slot_size)
    return _ENCODER.encode(wire)


@lru_cache(REMEMBERED)
def encode_response(version: ProtocolVersion, response: PluginResponse, slot_size: Bytes) -> bytes:
    """Encode a scheduler's response in ``version``, rounding the permit down to what that version can express.

    Cached, because a scheduler keeps sending the same few responses.

    >>> unit = ComputeUnit.parse("250m", "1Gi")
    >>> encode_response(ProtocolVersion.V5_0, PluginResponse(Resources.parse(1, "2Gi"), unit), Bytes.parse("1Gi"))
    b'{"permit":{"vCPUs":1,"mem":"2Gi"},"migrate":null}'
    """
    dialect = DIALECTS[version]
    # Round down, so that no VM uses more than was granted.
    wire: dict[str, object] = {"permit": dialect.write_down(response.permit, slot_size)}
    # Version 0 omits the field unless the VM is to migrate.
    if response.migrate or version:
        wire["migrate"] = {} if response.migrate else None
    if dialect.response_units:
        wire |= dict.fromkeys(dialect.response_units, dialect.write_unit(response.compute_unit, slot_size))
    if response.shrink_to is not None:
        wire["shrinkTo"] = dialect.write_up(response.shrink_to, slot_size)
    if response.ask_again is not None:
        wire["askAgain"] = response.ask_again
    return _ENCODER.encode(wire)


def decode_response(version: ProtocolVersion, body: bytes, slot_size: Bytes) -> PluginResponseView:
    """Decode the answer to a request in ``version``. Raises ``MalformedMessageError``.

    >>> body = b'{"permit":{"vCPUs":1,"mem":"2Gi"},"migrate":null}'
    >>> str(decode_response(ProtocolVersion.V5_0, body, Bytes.parse("1Gi")).permit)
    '1 cpu, 2Gi'
    """
    dialect = DIALECTS[version]
    try:
        wire = _RESPONSE.decode(body)
        _require_unique_keys(body)
        # Version 0 calls it ``resourceUnit``, later versions ``computeUnit``.
        unit = (wire.computeUnit or wire.resourceUnit) if dialect.response_units else None
        if dialect.response_units and unit is None:
            raise ValueError(f"{dialect.response_units[0]}: expected a value, the field is missing")
        return PluginResponseView(
            permit=dialect.read("permit", wire.permit, slot_size),
            compute_unit=None if unit is None else _unit(dialect, dialect.response_units[0], unit, slot_size),
            migrate=wire.migrate is not None,
            shrink_to=None if wire.shrinkTo is None else dialect.read("shrinkTo", wire.shrinkTo, slot_size),
            ask_again=None if wire.askAgain is None else Seconds(wire.askAgain),
        )
    except (ValueError, RecursionError) as error:
        raise MalformedMessageError(field_message(error)) from None


def _request_in(body: bytes, accepted: VersionRange) -> WireRequestBody:
    try:
        wire = _REQUEST.decode(body)
    except (ValueError, RecursionError):
        _require(_HEAD.decode(body).protoVersion, accepted)  # report an unknown version first
        raise
    _require(wire.protoVersion, accepted)
    # Counting is cheap: if there are no more colons than keys, no key is repeated. Colons in strings only cause the
    # exact check to run.
    if body.count(b":") > wire.min_keys:
        _require_unique_keys(body)
    return wire


def _require(version: int, accepted: VersionRange) -> None:
    if version not in accepted or version not in EVERY_VERSION:
        raise ValueError(f"protoVersion: expected {accepted}, got {shown(version)}")


def _request(wire: WireRequest, dialect: Dialect, slot_size: Bytes) -> AgentRequest:
    body = wire.body
    resources = dialect.read("resources", body.resources, slot_size)
    # A sleeping VM requests zero of both; zero of only one is an error.
    for field, amount in (("vCPUs", resources.cpu), ("mem", resources.mem)) if resources.any else ():
        if not amount:
            raise ValueError(f"resources.{field}: expected more than zero")
    # In older versions the scheduler's unit applies, and agents send none.
    unit, metrics = None, None
    if dialect.bytes_and_unit:
        if body.computeUnit is None:
            raise ValueError("computeUnit: expected a value, the field is missing")
        unit = _unit(dialect, "computeUnit", body.computeUnit, slot_size)
    if body.metrics is not None:
        metrics = _metrics(body.metrics, dialect)
    elif dialect.needs_metrics:
        raise ValueError("metrics: expected a value, this version requires metrics")
    last = body.lastPermit if dialect.last_permit else None
    return AgentRequest(
        pod=wire.pod,
        resources=resources,
        last_permit=None if last is None else dialect.read("lastPermit", last, slot_size),
        compute_unit=unit,
        metrics=metrics,
        sequence=body.sequence,
        needs=None if body.needs is None else dialect.read("needs", body.needs, slot_size),
    )


def _unit(dialect: Dialect, path: str, unit: WireResources, slot_size: Bytes) -> ComputeUnit:
    amount = dialect.read(path, unit, slot_size)
    if not (amount.cpu and amount.mem):
        raise ValueError(f"{path}: expected vCPUs and mem above zero, got {amount}")
    return ComputeUnit(amount.cpu, amount.mem)


def _metrics(wire: WireMetrics, dialect: Dialect) -> Metrics:
    if dialect.load1_only:
        return Metrics(wire.loadAvg1M)
    used = wire.memoryUsageBytes
    return Metrics(wire.loadAvg1M, wire.loadAvg5M, None if used is None else Bytes(int(used)))


def _wire_metrics(metrics: Metrics, dialect: Dialect) -> WireMetrics:
    if dialect.load1_only:
        return WireMetrics(metrics.load1)
    used = metrics.mem_used
    return WireMetrics(metrics.load1, metrics.load5, None if used is None else used.value)


_HEAD: Final = msgspec.json.Decoder(WireHead)
_REQUEST: Final = msgspec.json.Decoder(WireRequestBody)
_RESPONSE: Final = msgspec.json.Decoder(WireResponseBody)
_ANY_OBJECT: Final = msgspec.json.Decoder(dict[str, object])
_ENCODER: Final = msgspec.json.Encoder()


def _require_unique_keys(body: bytes) -> None:
    # JSON allows repeated keys, and two parsers may then read different messages. Only the standard library's parser
    # can detect them, and it is slow, so it runs only if the colons outnumber the keys.
    if _keys(_ANY_OBJECT.decode(body)) < body.count(b":"):
        _UNIQUE_KEYS.decode(body.decode())


def _keys(value: dict[str, object] | list[object]) -> int:
    """The number of keys in a decoded document. If it equals the number of colons in the text, no key was repeated."""
    count, children = (len(value), list(value.values())) if isinstance(value, dict) else (0, value)
    for element in children:
        if isinstance(element, (dict, list)):
            count += _keys(element)
    return count


def _reject_repeated_keys(pairs: list[tuple[str, object]]) -> None:
    keys = set()
    for key, _ in pairs:
        if key in keys:
            raise ValueError(f"{shown(key)}: expected once, but the key is repeated in one object")
        keys.add(key)


_UNIQUE_KEYS: Final = json.JSONDecoder(object_pairs_hook=_reject_repeated_keys)

_NAME: Final = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")


def _name(path: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{path}: expected a name of lower-case letters, digits, '-' and '.', got {shown(name)}")
    return name
