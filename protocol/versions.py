"""All published wire versions of the agent protocol and their changes (B.1).

Our agent uses ``V2_1``, in which the scheduler defines the compute unit (S4.6). It can be configured to use ``V5_0``,
with its own compute unit, for a scheduler that supports nothing older. Our scheduler accepts all versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class ProtocolVersion(IntEnum):
    """Version numbers on the wire. Comments list the changes from the previous version."""

    SEED = 0  # no ``protoVersion``; whole vCPUs, memory slots; the response calls the compute unit ``resourceUnit``
    V1_0 = 1  # adds ``protoVersion``; the response says ``computeUnit``
    V1_1 = 2  # ``metrics`` may be null
    V2_0 = 3  # fractional CPU: ``"250m"``
    V2_1 = 4  # the request gains ``lastPermit``, which may be null
    V3_0 = 5  # the response no longer carries the compute unit
    V4_0 = 6  # memory in bytes (``"1Gi"``) instead of slots; the request carries ``computeUnit``
    V5_0 = 7  # metrics are reduced to ``loadAvg1M``


AGENT_SPEAKS: Final = ProtocolVersion.V2_1
"""The version that our own agent sends by default."""

SPOKEN: Final = {"v2.1": ProtocolVersion.V2_1, "v5.0": ProtocolVersion.V5_0}
"""The versions that our own agent supports, by their name in the settings."""


@dataclass(frozen=True, slots=True)
class VersionRange:
    """An inclusive range of version numbers. Raises ``ValueError`` if it is empty."""

    lowest: int
    highest: int

    def __post_init__(self) -> None:
        if self.lowest > self.highest:
            raise ValueError(f"expected lowest <= highest, got {self.lowest} and {self.highest}")

    def __contains__(self, version: int) -> bool:
        return self.lowest <= version <= self.highest

    def __str__(self) -> str:
        return f"{self.lowest} to {self.highest}"


EVERY_VERSION: Final = VersionRange(min(ProtocolVersion), max(ProtocolVersion))
"""The versions that our scheduler accepts by default."""
