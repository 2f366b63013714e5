"""Structures of the agent protocol's messages on the wire, for all versions (B.1).

Rules that hold here:

- These structures validate presence and type of fields; the codec interprets their values by version.
- Fields unknown to a version are ignored in both directions, because peers may be newer.
- Names are those on the wire.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from protocol.wire.wire_quantities import WireQuantity

Level = Annotated[float, msgspec.Meta(ge=0, le=2**63)]
"""A load average in vCPUs, or an amount in bytes, which published agents also write as a float."""

Sequence = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Our own extension of the published versions, which other peers ignore."""


Wait = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
"""Seconds until the next request."""


class WirePod(msgspec.Struct, frozen=True):
    """The pod that a request is for."""

    namespace: str
    name: str


class WireResources(msgspec.Struct, frozen=True):
    """CPU and memory; whether whole or fractional, slots or bytes, depends on the version."""

    vCPUs: WireQuantity  # noqa: N815 - the name on the wire
    mem: WireQuantity


# ``omit_defaults``: v5.0 omits the other fields instead of writing null.
class WireMetrics(msgspec.Struct, frozen=True, omit_defaults=True):
    """Load metrics on the wire; v5.0 has only ``loadAvg1M``."""

    loadAvg1M: Level  # noqa: N815 - the name on the wire
    loadAvg5M: Level | None = None  # noqa: N815 - the name on the wire
    memoryUsageBytes: Level | None = None  # noqa: N815 - the name on the wire


class WireHead(msgspec.Struct, frozen=True):
    """The only part of a request that has the same meaning in every version."""

    protoVersion: int = 0  # noqa: N815 - the name on the wire


class WireRequestBody(msgspec.Struct, frozen=True):
    """A request in any version; the codec checks further requirements of a version."""

    pod: WirePod
    resources: WireResources
    computeUnit: WireResources | None = None  # noqa: N815 - the name on the wire
    lastPermit: WireResources | None = None  # noqa: N815 - the name on the wire
    metrics: WireMetrics | None = None
    sequence: Sequence | None = None
    needs: WireResources | None = None
    protoVersion: int = 0  # noqa: N815 - the name on the wire

    @property
    def min_keys(self) -> int:
        """The minimum number of keys in the text; if it equals the number of colons, no key was repeated."""
        # Pod and resources, with two fields each: six keys.
        count, metrics = 6, self.metrics
        if self.protoVersion:
            count += 1
        if self.sequence is not None:
            count += 1
        # The field itself and its two amounts.
        if self.lastPermit is not None:
            count += 3
        if self.computeUnit is not None:
            count += 3
        if self.needs is not None:
            count += 3
        if metrics is not None:
            count += 2 + (metrics.loadAvg5M is not None) + (metrics.memoryUsageBytes is not None)
        return count


class WireResponseBody(msgspec.Struct, frozen=True):
    """A response in any version."""

    permit: WireResources
    migrate: dict[str, msgspec.Raw] | None = None
    computeUnit: WireResources | None = None  # noqa: N815 - the name on the wire
    resourceUnit: WireResources | None = None  # noqa: N815 - the name on the wire
    shrinkTo: WireResources | None = None  # noqa: N815 - the name on the wire
    askAgain: Wait | None = None  # noqa: N815 - the name on the wire
