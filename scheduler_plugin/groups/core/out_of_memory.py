"""How much memory a container needs after it was killed for lack of it: VPA's arithmetic."""

from __future__ import annotations

from typing import Final

from protocol.units import Bytes

# VPA's OOM bump-up ratio of 1.2.
_PERCENT: Final = 120
# VPA's minimum bump-up is 100 MiB, which is close to this.
_LEAST: Final = 100_000_000


def after_kill(used: Bytes) -> Bytes:
    """A fifth more than was ``used``, and 100 MB more at least.

    >>> after_kill(Bytes(200_000_000)), after_kill(Bytes(1_000_000_000))
    (Bytes(value=300000000), Bytes(value=1200000000))
    """
    return Bytes(max(used.value * _PERCENT // 100, used.value + _LEAST))
