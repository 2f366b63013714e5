"""The family neon: versions, quantities and VirtualMachine objects, against ``protocol``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from protocol.codec import MalformedRequestError, decode_request
from protocol.units import Bytes, MilliCpu
from protocol.versions import VersionRange
from protocol.virtual_machine import InvalidObjectError, parse_virtual_machine
from protocol.wire.wire_quantities import cpu_from_wire, cpu_to_wire, mem_from_wire, mem_to_wire
from tests.vectors.case import Case
from tests.vectors.registry import Answer, Check


def protocol_version(case: Case) -> object:
    """What a server that accepts a range answers an agent: ``accept`` or 400."""
    request = {
        "protoVersion": case.input["agent"],
        "pod": {"namespace": "default", "name": "pg"},
        "computeUnit": {"vCPUs": "250m", "mem": "1Gi"},
        "resources": {"vCPUs": 1, "mem": 4},
        "metrics": {"loadAvg1M": 0.5},
    }
    try:
        decode_request(json.dumps(request).encode(), VersionRange(*case.input["server"])).resolve(Bytes.parse("1Gi"))
    except MalformedRequestError:
        return 400
    return "accept"


def version_range(case: Case) -> object:
    """The newest version that two ranges share."""
    ours, theirs = (VersionRange(*case.input[name]) for name in ("a", "b"))
    return max((version for version in range(ours.lowest, ours.highest + 1) if version in theirs), default=None)


def wire_quantities(case: Case) -> object:
    """Quantities written and read."""
    if isinstance(case.input, Mapping):
        if "milli" in case.input:
            return cpu_to_wire(MilliCpu(case.input["milli"]))
        return mem_to_wire(Bytes(case.input["bytes"]))
    try:
        if isinstance(case.expected, Mapping) and "bytes" in case.expected:
            return {"bytes": mem_from_wire("mem", case.input).value}
        return {"milli": cpu_from_wire("vCPUs", case.input).value}
    except ValueError:
        return "refused"


def _quantity_expected(case: Case) -> Any:
    is_refusal = not isinstance(case.input, Mapping) and not isinstance(case.expected, Mapping)
    return "refused" if is_refusal and case.expected is not None else case.expected


def vm_mapping(case: Case) -> object:
    """Whether a VirtualMachine with this slot size is one."""
    guest = {"memorySlotSize": case.input["slot"]}
    try:
        parse_virtual_machine({"metadata": {"namespace": "default", "name": "pg"}, "spec": {"guest": guest}})
    except InvalidObjectError:
        return "rejected"
    return "accepted"


def _first_word(case: Case) -> Any:
    return str(case.expected).split(maxsplit=1)[0]


GROUPS: Final[Mapping[str, Check | Answer]] = {
    "protocol_version": protocol_version,
    "version_range": version_range,
    "wire_quantities": Check(wire_quantities, _quantity_expected),
    "vm_cpu_mem_mapping": Check(vm_mapping, _first_word),
}
