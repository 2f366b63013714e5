"""The configuration of ranking, with the published constants as defaults (S2.1, S2.4-S2.7).

All prices are in the same currency per hour; only their ratios matter. Unknown fields and values out of range are
errors that begin with the path of the value.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf, isfinite
from typing import Final

import msgspec

from protocol.field_errors import check, field_message

MAX_PRICE: Final = 1e12
"""More per hour than any currency needs; sums over months remain finite."""


class RankingConfigError(ValueError):
    """An invalid ranking section; the message begins with the path of the value."""


class RankingSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """A part of the configuration."""


class Prices(RankingSection, frozen=True):
    """The price per hour of one vCPU, GiB of memory, GPU, and 50 GB of local storage (S2.1)."""

    cpu: float = 0.033174
    mem_gib: float = 0.004446
    gpu: float = 0.7
    storage_50gb: float = msgspec.field(default=0.01, name="storage50GB")

    def __post_init__(self) -> None:
        prices = (self.cpu, self.mem_gib, self.gpu, self.storage_50gb)
        # Comparisons with NaN are false, so this also rejects NaN.
        check(all(0 <= price <= MAX_PRICE for price in prices), "prices from 0 to 1e12")


class Damper(RankingSection, frozen=True):
    """The pod whose price dampens the ranks of small expansions (S2.5)."""

    cpu: float = 0.5
    mem_mib: float = 500

    def __post_init__(self) -> None:
        check(isfinite(self.cpu) and isfinite(self.mem_mib) and min(self.cpu, self.mem_mib) >= 0, "zero or more")


class PreferredSize(RankingSection, frozen=True):
    """The preferred vCPUs of a node in clusters of up to ``nodes``; without ``nodes``, in all larger ones (S2.6)."""

    vcpus: float = msgspec.field(name="vCPUs")
    nodes: int | None = None

    def __post_init__(self) -> None:
        check(0 < self.vcpus < inf and (self.nodes is None or self.nodes > 0), "vCPUs and nodes above zero")


PREFERRED_SIZES: Final = (
    PreferredSize(nodes=2, vcpus=1),
    PreferredSize(nodes=6, vcpus=2),
    PreferredSize(nodes=20, vcpus=4),
    PreferredSize(nodes=80, vcpus=8),
    PreferredSize(nodes=300, vcpus=16),
    PreferredSize(vcpus=32),
)


class ScoreCurve(RankingSection, frozen=True):
    """A node's score by utilization: ``empty`` at 0, 1 at ``peak``, ``full`` at 1, linear in between (S2.8b).

    The share ``growth`` of the largest possible growth of one VM, there or to be placed, counts as used (B.17).
    """

    empty: float = 0.5
    full: float = 0.0
    peak: float = 0.8
    growth: float = 1.0

    def __post_init__(self) -> None:
        parts = (self.empty, self.full, self.peak, self.growth)
        check(all(0 <= part <= 1 for part in parts), "empty, full, peak and growth of 0 to 1")


class RankingConfig(RankingSection, frozen=True):
    """The ranking section of a configuration file. ``node_prices`` has the keys of ``price_keys``."""

    prices: Prices = Prices()
    node_prices: dict[str, float] = {}
    damper: Damper = Damper()
    suppress_over: float = 15.0
    preferred_sizes: tuple[PreferredSize, ...] = PREFERRED_SIZES
    preferred_mib_per_vcpu: float = msgspec.field(default=3750.0, name="preferredMiBPerVCPU")
    unwanted_gpu_unfitness: float = msgspec.field(default=1000.0, name="unwantedGPUUnfitness")
    new_group_factor: float = 2.0
    score: ScoreCurve = ScoreCurve()

    def __post_init__(self) -> None:
        check(0 < self.suppress_over < inf, "suppressOver above zero")
        check(self.unwanted_gpu_unfitness >= 1, "unwantedGPUUnfitness of at least 1")
        check(self.new_group_factor >= 1, "newGroupFactor of at least 1")
        # Also rejects NaN and infinity, which would make ranks meaningless.
        check(all(0 <= price <= MAX_PRICE for price in self.node_prices.values()), "nodePrices from 0 to 1e12")
        bounds = [inf if size.nodes is None else size.nodes for size in self.preferred_sizes]
        rising = all(left < right for left, right in pairwise(bounds))
        # The last size must be open-ended, so that every cluster has a preferred size.
        check(bool(bounds) and rising and bounds[-1] == inf, "preferredSizes with rising nodes, the last without")


def parse_ranking(document: object) -> RankingConfig:
    """Parse a ranking section; None means the defaults. Raises ``RankingConfigError``.

    >>> parse_ranking({"newGroupFactor": 3}).new_group_factor
    3.0
    """
    try:
        return msgspec.convert({} if document is None else document, RankingConfig)
    except msgspec.ValidationError as error:
        raise RankingConfigError(field_message(error)) from None
