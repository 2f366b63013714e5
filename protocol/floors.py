"""The floor of one VM's size, as stored on its VirtualMachine (S3.7).

The annotation ``autoscaling.neon.tech/floor`` contains ``{"vCPUs": "2", "mem": "8Gi", "until":
"2026-01-01T10:00:00Z"}``: until then the VM's agent does not scale below it, within the bounds. ``autoscale-groups``
writes it, and so does the injector if a postgres pod replaces a larger one.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from protocol.field_errors import field_message, shown
from protocol.kubernetes.timestamps import parse_timestamp, timestamp
from protocol.units import Resources
from protocol.wire.wire_messages import WireResources
from protocol.wire.wire_quantities import cpu_from_wire, cpu_to_wire, mem_from_wire, mem_to_wire


@dataclass(frozen=True, slots=True)
class Floor:
    """A minimum ``size`` until ``until``, in seconds since 1970. It expires unless renewed."""

    size: Resources
    until: float


class _Floor(WireResources, frozen=True):
    until: str


_DECODER = msgspec.json.Decoder(_Floor)


def encode_floor(floor: Floor) -> str:
    """Encode the annotation. Equal floors have equal texts.

    >>> encode_floor(Floor(Resources.parse(2, "8Gi"), 1767261600.0))
    '{"vCPUs":2,"mem":"8Gi","until":"2026-01-01T10:00:00Z"}'
    """
    size = floor.size
    return msgspec.json.encode(_Floor(cpu_to_wire(size.cpu), mem_to_wire(size.mem), timestamp(floor.until))).decode()


def decode_floor(text: str) -> Floor:
    """Decode the annotation. Raises ``ValueError``, whose message names the invalid field.

    >>> decode_floor('{"vCPUs":2,"mem":"8Gi","until":"2026-01-01T10:00:00Z"}').until
    1767261600.0
    """
    try:
        wire = _DECODER.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(field_message(error)) from None
    until = parse_timestamp(wire.until)
    # Without a valid end, the floor would never expire.
    if until is None:
        raise ValueError(f"until: expected a time such as 2026-01-01T10:00:00Z, got {shown(wire.until)}")
    return Floor(Resources(cpu_from_wire("vCPUs", wire.vCPUs), mem_from_wire("mem", wire.mem)), until)
