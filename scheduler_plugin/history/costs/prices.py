"""What a vCPU-hour and a GiB-hour cost on each node (S2.1).

Rules that hold here:

- A node whose instance type has a price costs that price, split between CPU and memory as the reference prices are, or
  as the published ones where a table has none of its own. Of several types under one name the latest counts.
- All others cost the reference prices; a report says which those are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from protocol.ranking.config import RankingConfig
from scheduler_plugin.history.core.samples import NODE_PLACE, Size
from scheduler_plugin.history.ports import NodeUsage

MILLI: Final = 1000
KIB_OF_GIB: Final = 1024**2


@dataclass(frozen=True, slots=True)
class Price:
    """Per hour: of one vCPU, and of one GiB."""

    cpu: Fraction
    mem: Fraction

    def of(self, size: Size) -> Fraction:
        """What so much costs per hour.

        >>> Price(Fraction(2), Fraction(1)).of(Size(500, 1024**2))
        Fraction(2, 1)
        """
        return self.cpu * size.cpu / MILLI + self.mem * size.mem / KIB_OF_GIB


@dataclass(frozen=True, slots=True)
class PriceList:
    """The price of each node by its name; ``reference`` for all others."""

    reference: Price
    by_node: Mapping[str, Price]

    def on(self, node: str) -> Price:
        """The price on a node."""
        return self.by_node.get(node, self.reference)


def exact(number: float) -> Fraction:
    """The decimal that a float shows.

    >>> exact(0.1)
    Fraction(1, 10)
    """
    return Fraction(str(number))


def reference_price(ranking: RankingConfig) -> Price:
    """The table's price of a perfectly fitting machine.

    >>> reference_price(RankingConfig()).cpu
    Fraction(16587, 500000)
    """
    return Price(exact(ranking.prices.cpu), exact(ranking.prices.mem_gib))


def priced(size: Size, machine: str, ranking: RankingConfig) -> Price | None:
    """The prices on a node of that size and instance type; None where the table does not name the type.

    >>> table = RankingConfig(node_prices={"m5": 0.5})
    >>> priced(Size(2000, 8 * 1024**2), "m5", table).of(Size(2000, 8 * 1024**2))
    Fraction(1, 2)
    >>> priced(Size(2000, 8 * 1024**2), "other", table) is None
    True
    """
    own = reference_price(ranking)
    split = own if own.of(size) else reference_price(RankingConfig())
    if machine not in ranking.node_prices or not split.of(size):
        return None
    times = exact(ranking.node_prices[machine]) / split.of(size)
    return Price(split.cpu * times, split.mem * times)


def price_list(nodes: Iterable[NodeUsage], ranking: RankingConfig) -> PriceList:
    """The prices of all nodes that were seen; a node is as large as the most that it had to reserve."""
    found: dict[str, Price] = {}
    for each in sorted(nodes, key=lambda node: node.span.until):
        peaks = each.span.peaks
        price = priced(
            Size(peaks[NODE_PLACE["total_cpu"]], peaks[NODE_PLACE["total_mem"]]), each.facts.machine, ranking
        )
        if price is not None:
            found[each.facts.node] = price
    return PriceList(reference_price(ranking), found)
