"""The shapes of the agent protocol's messages on the wire, one per difference between versions (B.1).

Rules that hold here:

- A field's presence and type are checked here; what its numbers mean in a version is the codec's business.
- Fields that a version does not know are ignored, in both directions: peers may be newer than we are.
- Names are those of the wire.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from protocol.wire.wire_quantities import WireQuantity

Level = Annotated[float, msgspec.Meta(ge=0, le=2**63)]
"""A load average in vCPUs, or an amount in bytes, which published agents write as a floating number, too."""

Sequence = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Our own addition to the published versions, whose peers ignore it."""


Wait = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
"""Seconds until another request."""


class WirePod(msgspec.Struct, frozen=True):
    """The pod for which an agent speaks."""

    namespace: str
    name: str


class WireResources(msgspec.Struct, frozen=True):
    """CPU and memory; whether whole or fractional, slots or bytes, depends on the version."""

    vCPUs: WireQuantity  # noqa: N815 - the name on the wire
    mem: WireQuantity


# ``omit_defaults``: v5.0 leaves the other fields out instead of writing null.
class WireMetrics(msgspec.Struct, frozen=True, omit_defaults=True):
    """Load metrics on the wire; v5.0 has only ``loadAvg1M``."""

    loadAvg1M: Level  # noqa: N815 - the name on the wire
    loadAvg5M: Level | None = None  # noqa: N815 - the name on the wire
    memoryUsageBytes: Level | None = None  # noqa: N815 - the name on the wire


class WireHead(msgspec.Struct, frozen=True):
    """The only part of a request that has the same meaning in every version."""

    protoVersion: int = 0  # noqa: N815 - the name on the wire


class WireRequestBody(msgspec.Struct, frozen=True):
    """A request of any version; what a version requires beyond this, the codec checks."""

    pod: WirePod
    resources: WireResources
    computeUnit: WireResources | None = None  # noqa: N815 - the name on the wire
    lastPermit: WireResources | None = None  # noqa: N815 - the name on the wire
    metrics: WireMetrics | None = None
    sequence: Sequence | None = None
    needs: WireResources | None = None
    protoVersion: int = 0  # noqa: N815 - the name on the wire

    @property
    def least_keys(self) -> int:
        """The least number of keys in its text, each once: if it equals the colons, no key was repeated."""
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
    """A response of any version."""

    permit: WireResources
    migrate: dict[str, msgspec.Raw] | None = None
    computeUnit: WireResources | None = None  # noqa: N815 - the name on the wire
    resourceUnit: WireResources | None = None  # noqa: N815 - the name on the wire
    shrinkTo: WireResources | None = None  # noqa: N815 - the name on the wire
    askAgain: Wait | None = None  # noqa: N815 - the name on the wire
