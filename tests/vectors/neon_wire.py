"""The family neon: versions, quantities and VirtualMachine objects, against ``protocol`` and guests made of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from deploy.neonvm.ports import GuestSpec, PodNetwork
from deploy.neonvm.qemu.accelerator import Accelerator
from deploy.neonvm.qemu.qemu_command import qemu_command
from deploy.neonvm.runner.runner_arguments import guest_of_vm
from protocol.codec import MalformedMessageError, decode_request
from protocol.units import Bytes, MilliCpu
from protocol.versions import VersionRange
from protocol.virtual_machine import InvalidObjectError, parse_virtual_machine
from protocol.wire.wire_quantities import cpu_from_wire, cpu_to_wire, mem_from_wire, mem_to_wire
from tests.vectors.case import Case
from tests.vectors.phrases import Phrases, told, understood
from tests.vectors.reading import plain
from tests.vectors.registry import Answer, Check, Declined
from vm_image.build import GuestImage


def protocol_version(case: Case) -> object:
    """The response of a server with a range of versions to an agent: ``accept`` or 400."""
    request = {
        "protoVersion": case.input["agent"],
        "pod": {"namespace": "default", "name": "pg"},
        "computeUnit": {"vCPUs": "250m", "mem": "1Gi"},
        "resources": {"vCPUs": 1, "mem": 4},
        "metrics": {"loadAvg1M": 0.5},
    }
    try:
        decode_request(json.dumps(request).encode(), VersionRange(*case.input["server"])).resolve(Bytes.parse("1Gi"))
    except MalformedMessageError:
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
    """True if a VirtualMachine with this slot size is one; where parts of its guest are expected, those."""
    guest = _guest_fields(case.input)
    try:
        vm = parse_virtual_machine({"metadata": {"namespace": "default", "name": "pg"}, "spec": {"guest": guest}})
    except InvalidObjectError:
        return "rejected"
    if not isinstance(case.expected, Mapping):
        return "accepted"
    spec = guest_of_vm(vm, vm.name, _NETWORK, Path("pg"))
    return {name: understood(_PARTS, name, "part of a guest")[1](spec) for name in case.expected}


def _guest_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """A guest of ``use_milli`` CPU and ``slots`` (min, use and max), each of ``slot`` bytes."""
    fields: dict[str, Any] = {"memorySlotSize": given["slot"]} if "slot" in given else {}
    if "use_milli" in given:
        cpus = dict.fromkeys(("min", "use", "max"), f"{given['use_milli']}m")
        fields["cpus"] = cpus | {name: f"{given[f'{name}_milli']}m" for name in cpus if f"{name}_milli" in given}
    return fields | ({"memorySlots": plain(given["slots"])} if "slots" in given else {})


_NETWORK: Final = PodNetwork("10.100.1.0", (), "10.100.1.0", "10.100.0.1", ())
_IMAGE: Final = GuestImage(Path("vmlinuz"), Path("initrd"), Path("rootfs"))
_ACCELERATOR: Final = Accelerator("tcg", (), "", "no matter which")


def _of_command(pattern: str) -> Callable[[GuestSpec], int]:
    """The number that ``pattern`` finds in the guest's command line."""

    def number(spec: GuestSpec) -> int:
        found = re.search(pattern, " ".join(qemu_command(spec, _IMAGE, _ACCELERATOR, monitor_fd=3)))
        if found is None:
            raise ValueError(f"{pattern} is not in the command")
        return int(found[1])

    return number


def _cgroup_limit(_: GuestSpec) -> int:
    raise Declined("four times the quota is the cgroup of the original's runner: our guests have one quota, inside")


_PARTS: Final[Phrases[Callable[[GuestSpec], int]]] = (
    (told(r"cgroup|limit"), _cgroup_limit),
    (told(r"quota"), _of_command(r"autoscale\.cpu=(\d+)")),
    (told(r"plugged|cpus"), _of_command(r" maxcpus=(\d+)")),
    (told(r"virtio|requested"), _of_command(r"requested-size=(\d+)B")),
    (told(r"boot|min"), _of_command(r" -m (\d+)B")),
    (told(r"max"), _of_command(r",maxmem=(\d+)B")),
)
"""Names of parts of a guest, and the number in thousandths of a vCPU, CPUs or bytes; the first that matches is used."""


def _first_word(case: Case) -> Any:
    return case.expected if isinstance(case.expected, Mapping) else str(case.expected).split(maxsplit=1)[0]


GROUPS: Final[Mapping[str, Check | Answer]] = {
    "protocol_version": protocol_version,
    "version_range": version_range,
    "wire_quantities": Check(wire_quantities, _quantity_expected),
    "vm_cpu_mem_mapping": Check(vm_mapping, _first_word),
}
