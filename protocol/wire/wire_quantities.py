"""Amounts in JSON: between agents and schedulers, in permits and in VirtualMachine objects (B.1).

Rules that hold here:

- An amount is written as an integer if that is short, otherwise as a Kubernetes quantity.
- It is read from a number or a text, and must fit into 63 bits of its smallest unit, as in Kubernetes.
- Every error is a ``ValueError`` whose message begins with the path of the field.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from protocol.field_errors import shown
from protocol.units import Amount, Bytes, MilliCpu, QuantityError

WireQuantity = int | float | str
"""A quantity in JSON."""

LARGEST_AMOUNT: Final = 2**63 - 1
LARGEST_SLOT_COUNT: Final = 2**16 - 1

A = TypeVar("A", bound=Amount)


def cpu_to_wire(cpu: MilliCpu) -> int | str:
    """Whole vCPUs as an integer, otherwise ``"1250m"``.

    >>> cpu_to_wire(MilliCpu(2000)), cpu_to_wire(MilliCpu(250))
    (2, '250m')
    """
    return cpu.value // 1000 if cpu.value % 1000 == 0 else f"{cpu.value}m"


def mem_to_wire(mem: Bytes) -> int | str:
    """Less than 1024 bytes as an integer, otherwise a text with a binary suffix such as ``"1536Mi"``.

    >>> mem_to_wire(Bytes(1000)), mem_to_wire(Bytes(1024))
    (1000, '1Ki')
    """
    return mem.value if mem.value < 1024 else mem.quantity()


def cpu_from_wire(path: str, quantity: WireQuantity) -> MilliCpu:
    """Parse vCPUs. Raises ``ValueError`` with ``path``.

    >>> str(cpu_from_wire("resources.vCPUs", 0.25))
    '250m'
    """
    return _checked(MilliCpu.parse, path, quantity)


def mem_from_wire(path: str, quantity: WireQuantity) -> Bytes:
    """Parse memory in bytes. Raises ``ValueError`` with ``path``.

    >>> str(mem_from_wire("resources.mem", "1.5Gi"))
    '1536Mi'
    """
    return _checked(Bytes.parse, path, quantity)


def whole_cpu_from_wire(path: str, quantity: WireQuantity) -> MilliCpu:
    """Parse vCPUs that must be whole, as before v2.0. Raises ``ValueError`` with ``path``.

    >>> str(whole_cpu_from_wire("resources.vCPUs", 2))
    '2'
    """
    cpu = _checked(MilliCpu.parse, path, quantity)
    # Versions before v2.0 have no fractions, and rounding would change the agent's request.
    if cpu.value % 1000:
        raise ValueError(f"{path}: expected a whole number of vCPUs in this version, got {shown(quantity)}")
    return cpu


def slot_count_from_wire(path: str, quantity: WireQuantity) -> int:
    """Parse a number of memory slots, as before v4.0: whole, at most 65535. Raises ``ValueError`` with ``path``.

    >>> slot_count_from_wire("resources.mem", 4)
    4
    """
    count = _whole_number(quantity)
    if count is None or not 0 <= count <= LARGEST_SLOT_COUNT:
        raise ValueError(
            f"{path}: expected a number of memory slots (0 to {LARGEST_SLOT_COUNT}), got {shown(quantity)}"
        )
    return count


def _whole_number(quantity: WireQuantity) -> int | None:
    if isinstance(quantity, str):
        # Limit the length, because ``int`` of a very long text is slow.
        return int(quantity) if quantity.isascii() and quantity.isdigit() and len(quantity) < 20 else None
    # A float that is whole, such as 4.0, counts as well.
    return int(quantity) if quantity == quantity // 1 else None


def _checked(parse: Callable[[WireQuantity], A], path: str, quantity: WireQuantity) -> A:
    try:
        amount = parse(quantity)
    except QuantityError as error:
        raise ValueError(f"{path}: {error}") from None
    # Kubernetes stores quantities in 63 bits.
    if amount.value > LARGEST_AMOUNT:
        raise ValueError(f"{path}: expected an amount below 2**63 of its smallest unit, got {shown(quantity)}")
    return amount
