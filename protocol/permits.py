"""The permit as stored on a VirtualMachine, so that a restarted scheduler knows what it has granted.

The annotation ``autoscaling.neon.tech/permit`` contains ``{"vCPUs": "750m", "mem": "3Gi"}``: absolute amounts, never
slots. The scheduler writes an increase before it answers the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from protocol.field_errors import field_message
from protocol.units import Resources
from protocol.wire.wire_dialects import REMEMBERED
from protocol.wire.wire_messages import WireResources
from protocol.wire.wire_quantities import cpu_from_wire, cpu_to_wire, mem_from_wire, mem_to_wire

MAX_HOLDERS: Final = 5
"""Maximum holders: the VM's pod and its agents, usually one, two while switching between sidecar and per-node
agents.
"""

_DECODER: Final = msgspec.json.Decoder(WireResources)


@lru_cache(REMEMBERED)
def encode_permit(permit: Resources) -> str:
    """Encode the annotation. Equal permits have equal texts.

    >>> encode_permit(Resources.parse("750m", "3Gi"))
    '{"vCPUs":"750m","mem":"3Gi"}'
    """
    return msgspec.json.encode(WireResources(cpu_to_wire(permit.cpu), mem_to_wire(permit.mem))).decode()


def decode_permit(text: str) -> Resources:
    """Decode the annotation. Raises ``ValueError``, whose message names the invalid field.

    >>> str(decode_permit('{"vCPUs":"750m","mem":"3Gi"}'))
    '750m cpu, 3Gi'
    """
    try:
        wire = _DECODER.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(field_message(error)) from None
    return Resources(cpu_from_wire("vCPUs", wire.vCPUs), mem_from_wire("mem", wire.mem))


def encode_writer(process: str, revision: int, holders: Sequence[str] = ()) -> str:
    """Encode the process that writes a permit, the number of its decision, and the holders: the UIDs of the VM's pod
    and of its agents' pods.

    >>> encode_writer("scheduler-0a1b2c3d.1", 17)
    'scheduler-0a1b2c3d.1/17'
    >>> encode_writer("scheduler-0a1b2c3d.1", 17, ["pod", "agent"])
    'scheduler-0a1b2c3d.1/17/pod,agent'
    """
    # The revision makes every write different: if a write changes nothing, the API server keeps the object's version,
    # to which an earlier, lost write could still apply.
    return f"{process}/{revision}/{','.join(holders)}" if holders else f"{process}/{revision}"


def decode_writer(text: str) -> str:
    """The process that wrote a permit. Releases up to 0.2 recorded nothing else.

    >>> decode_writer("scheduler-0a1b2c3d.1/17/pod,agent")
    'scheduler-0a1b2c3d.1'
    >>> decode_writer("scheduler-0a1b2c3d.1")
    'scheduler-0a1b2c3d.1'
    """
    return text.partition("/")[0]


def decode_holders(text: str) -> tuple[str, ...]:
    """Holders of the permit: the UIDs of the VM's pod and of its agents' pods, most recently answered first.

    >>> decode_holders("scheduler-0a1b2c3d.1/17/pod,agent"), decode_holders("scheduler-0a1b2c3d.1/17")
    (('pod', 'agent'), ())
    """
    holders = text.partition("/")[2].partition("/")[2]
    # Limit the split: anyone who may write the object can write a long annotation.
    return tuple(holders.split(",", MAX_HOLDERS)[:MAX_HOLDERS]) if holders else ()
