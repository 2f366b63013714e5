"""Amounts as text, in the same units and rounding as on the page. Pure."""

from __future__ import annotations

from typing import Final

from protocol.units import Bytes, MilliCpu, QuantityError, Resources

_MIB: Final = 1024**2
_GIB_IN_MIB: Final = 1024
_LARGE: Final = 10 * _GIB_IN_MIB
"""Amounts of at least this many MiB are in GiB with one decimal; smaller ones in MiB, unless a multiple of a GiB."""
_HUNDREDTH: Final = 10


def amounts_text(amounts: Resources) -> str:
    """CPU and memory in words, rounded up.

    >>> amounts_text(Resources.parse("1501m", "3Gi")), amounts_text(Resources.parse(0, "900Mi"))
    ('1.51 vCPU and 3 GiB', '900 MiB')
    >>> amounts_text(Resources.parse(0, 0))
    'nothing'
    """
    parts = (vcpus(amounts.cpu) if amounts.cpu else "", memory(amounts.mem) if amounts.mem else "")
    return " and ".join(part for part in parts if part) or "nothing"


def vcpus(amount: MilliCpu) -> str:
    """To the hundredth of a vCPU.

    >>> vcpus(MilliCpu(2000)), vcpus(MilliCpu(8))
    ('2 vCPU', '0.01 vCPU')
    """
    # Rounded up, so that a lack of one thousandth is not 0.
    return f"{-(-amount.value // _HUNDREDTH) / 100:g} vCPU"


def memory(amount: Bytes) -> str:
    """In GiB or MiB.

    >>> memory(Bytes.parse("2Gi")), memory(Bytes.parse("1500Mi")), memory(Bytes.parse("12.34Gi")), memory(Bytes(1))
    ('2 GiB', '1500 MiB', '12.3 GiB', '1 MiB')
    """
    mib = -(-amount.value // _MIB)
    if mib >= _LARGE or (mib and mib % _GIB_IN_MIB == 0):
        return f"{round(mib / _GIB_IN_MIB, 1):g} GiB"
    return f"{mib} MiB"


def rounded_memory(quantity: str) -> str:
    """A memory quantity to the MiB; other text unchanged.

    >>> rounded_memory("1234567890"), rounded_memory("3Gi"), rounded_memory("1000"), rounded_memory("250m")
    ('1177Mi', '3Gi', '1000', '250m')
    """
    try:
        amount = Bytes.parse(quantity)
    except QuantityError:
        return quantity
    # Not ten digits of bytes.
    return quantity if amount.value % _MIB == 0 or amount.value < _MIB else f"{amount.value / _MIB:.0f}Mi"
