"""Features of each wire version, and its encoding of amounts: one row per version (B.1).

Rules that hold here:

- Before v2.0, CPUs are whole; before v4.0, memory is a number of the VM's slots.
- A permit is rounded down and a request up to what the version can express; a permit also to whole slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd, lcm
from typing import Final

from protocol.units import Bytes, ComputeUnit, MilliCpu, Resources
from protocol.versions import ProtocolVersion as V
from protocol.wire import wire_quantities
from protocol.wire.wire_messages import WireResources

LARGEST_UNIT_FACTOR: Final = 16

REMEMBERED: Final = 4_096
"""Number of cached amounts and responses: a fleet has few different ones. Errors are not cached."""

# Long texts from a peer must not fill the cache.
_LONGEST_REMEMBERED: Final = 24  # characters

_ONE_CPU: Final = MilliCpu(1000)
_ONE_MILLI: Final = MilliCpu(1)
_ONE_BYTE: Final = Bytes(1)


@dataclass(frozen=True, slots=True)
class Dialect:
    """One version's rules. ``response_units`` are the names of the compute unit in a response."""

    response_units: tuple[str, ...]
    needs_metrics: bool
    fractional_cpu: bool
    last_permit: bool
    bytes_and_unit: bool
    load1_only: bool

    def read(self, path: str, wire: WireResources, slot_size: Bytes) -> Resources:
        """Decode amounts in this version. Raises ``ValueError`` with the field below ``path``."""
        # Amounts repeat across a fleet, so most come from the cache.
        read = _read_cached if _is_short(wire.vCPUs) and _is_short(wire.mem) else _read
        return read(self.fractional_cpu, self.bytes_and_unit, path, wire.vCPUs, wire.mem, slot_size)

    def write_down(self, amount: Resources, slot_size: Bytes) -> WireResources:
        """The largest amounts that this version can express, in whole slots, and that are not above ``amount``."""
        cpu_step, _ = self._steps(slot_size)
        # Round down, because an agent must not use more than was granted. Memory is plugged in slots: permitted a part
        # of one, NeonVM's agents would patch the VM again and again, because it never has that part.
        return self._written(Resources(amount.cpu.down_to(cpu_step), amount.mem.down_to(slot_size)), slot_size)

    def write_up(self, amount: Resources, slot_size: Bytes) -> WireResources:
        """The smallest amounts that this version can express and that are not below ``amount``."""
        cpu_step, mem_step = self._steps(slot_size)
        # Round up, because an agent must not report less than it uses.
        return self._written(Resources(amount.cpu.up_to(cpu_step), amount.mem.up_to(mem_step)), slot_size)

    def write_unit(self, unit: ComputeUnit, slot_size: Bytes) -> WireResources:
        """``unit`` as far as this version can express it: exactly, or a multiple of it, or rounded up."""
        cpu_step, mem_step = self._steps(slot_size)
        # A multiple keeps the ratio of CPU to memory.
        factor = lcm(_factor(unit.cpu.value, cpu_step.value), _factor(unit.mem.value, mem_step.value))
        if factor == 1:
            return self._written(unit, slot_size)
        # Beyond this factor a unit would be too coarse, so round up each amount separately.
        return self.write_up(unit * factor if factor <= LARGEST_UNIT_FACTOR else unit, slot_size)

    def _steps(self, slot_size: Bytes) -> tuple[MilliCpu, Bytes]:
        return (
            _ONE_MILLI if self.fractional_cpu else _ONE_CPU,
            _ONE_BYTE if self.bytes_and_unit else slot_size,
        )

    def _written(self, amount: Resources, slot_size: Bytes) -> WireResources:
        mem = wire_quantities.mem_to_wire(amount.mem) if self.bytes_and_unit else amount.mem.units_down(slot_size)
        return WireResources(wire_quantities.cpu_to_wire(amount.cpu), mem)


def _read(  # noqa: PLR0913, PLR0917 - the key of the cache
    fractional_cpu: bool,
    in_bytes: bool,
    path: str,
    cpu: wire_quantities.WireQuantity,
    mem: wire_quantities.WireQuantity,
    slot_size: Bytes,
) -> Resources:
    read_cpu = wire_quantities.cpu_from_wire if fractional_cpu else wire_quantities.whole_cpu_from_wire
    amount = read_cpu(f"{path}.vCPUs", cpu)
    if in_bytes:
        return Resources(amount, wire_quantities.mem_from_wire(f"{path}.mem", mem))
    return Resources(amount, slot_size * wire_quantities.slot_count_from_wire(f"{path}.mem", mem))


_read_cached: Final = lru_cache(REMEMBERED, typed=True)(_read)


def _is_short(quantity: wire_quantities.WireQuantity) -> bool:
    """Return True if ``quantity`` may be cached."""
    return not isinstance(quantity, str) or len(quantity) <= _LONGEST_REMEMBERED


def _factor(amount: int, step: int) -> int:
    """The smallest factor that makes ``amount`` a multiple of ``step``."""
    return step // gcd(amount, step)


_SEED_UNIT: Final = ("resourceUnit",)
_BOTH_UNITS: Final = ("computeUnit", "resourceUnit")
"""Published agents up to v2.1 read version 0's name, newer specifications say ``computeUnit``; so write both."""

# fmt: off
DIALECTS: Final[dict[V, Dialect]] = {
    #                response_units needs_metrics fractional last_permit bytes_unit load1_only
    V.SEED: Dialect(_SEED_UNIT,     True,         False,     False,      False,     False),
    V.V1_0: Dialect(_BOTH_UNITS,    True,         False,     False,      False,     False),
    V.V1_1: Dialect(_BOTH_UNITS,    False,        False,     False,      False,     False),
    V.V2_0: Dialect(_BOTH_UNITS,    False,        True,      False,      False,     False),
    V.V2_1: Dialect(_BOTH_UNITS,    False,        True,      True,       False,     False),
    V.V3_0: Dialect((),             False,        True,      True,       False,     False),
    V.V4_0: Dialect((),             False,        True,      True,       True,      False),
    V.V5_0: Dialect((),             False,        True,      True,       True,      True),
}
# fmt: on
