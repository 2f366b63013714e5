"""Prices of vCPU-hours and GiB-hours by node (S2.1)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import itemgetter
from typing import Final

from protocol.ranking.config import RankingConfig
from protocol.ranking.prices import price_key
from scheduler_plugin.history.core.samples import NODE_COLUMN_INDEX, Millis, Size
from scheduler_plugin.history.core.spans import Span
from scheduler_plugin.history.ports import NodeUsage, Period

MILLI: Final = 1000
KIB_OF_GIB: Final = 1024**2


@dataclass(frozen=True, slots=True)
class Price:
    """Price per hour of one vCPU and one GiB."""

    cpu: Fraction
    mem: Fraction

    def of(self, size: Size) -> Fraction:
        """Cost of ``size`` per hour.

        >>> Price(Fraction(2), Fraction(1)).of(Size(500, 1024**2))
        Fraction(2, 1)
        """
        return self.cpu * size.cpu / MILLI + self.mem * size.mem / KIB_OF_GIB


Part = tuple[Millis, Mapping[str, Price | None]]
"""Start of a part of the period, and the price of each node in it; None for nodes that are not in the price table."""


@dataclass(frozen=True, slots=True)
class PriceList:
    """The price of each node, and the ``reference`` price of all others.

    ``parts`` are parts of the period, in order, if a node name was reused with another price. ``unused`` are keys of
    the price table that match no node.
    """

    reference: Price
    by_node: Mapping[str, Price]
    parts: Sequence[Part] = ()
    unused: tuple[str, ...] = ()

    def on(self, node: str, span: Span | None = None) -> Price:
        """The price of a node during ``span``, or the latest one without a span."""
        return self.listed_price(node, span) or self.reference

    def listed_price(self, node: str, span: Span | None = None) -> Price | None:
        """As ``on``, but None if the node is not in the price table."""
        if self.parts and span is not None:
            # By its middle, because the last sample of a span may reach into the next part.
            middle = (span.since + span.until) // 2
            _, prices = self.parts[max(0, bisect_right(self.parts, middle, key=itemgetter(0)) - 1)]
            if node in prices:
                return prices[node]
        return self.by_node.get(node)


def exact(number: float) -> Fraction:
    """The decimal number as which a float is printed.

    >>> exact(0.1)
    Fraction(1, 10)
    """
    # Fraction(0.1) is not exactly 1/10.
    return Fraction(str(number))


def reference_price(ranking: RankingConfig) -> Price:
    """The price table's price of a machine that fits perfectly.

    >>> reference_price(RankingConfig()).cpu
    Fraction(16587, 500000)
    """
    return Price(exact(ranking.prices.cpu), exact(ranking.prices.mem_gib))


def priced(size: Size, keys: Iterable[str], ranking: RankingConfig) -> Price | None:
    """The price of a node of that size with these price keys; None if none of them is in the price table.

    >>> table = RankingConfig(node_prices={"m5": 0.5})
    >>> priced(Size(2000, 8 * 1024**2), ("m5",), table).of(Size(2000, 8 * 1024**2))
    Fraction(1, 2)
    >>> priced(Size(2000, 8 * 1024**2), ("other",), table) is None
    True
    """
    own, key = reference_price(ranking), price_key(keys, ranking)
    # Split between CPU and memory in proportion to the reference prices, or to the published ones if those are zero.
    split = own if own.of(size) else reference_price(RankingConfig())
    if key is None or not split.of(size):
        return None
    times = exact(ranking.node_prices[key]) / split.of(size)
    return Price(split.cpu * times, split.mem * times)


def price_list(nodes: Sequence[NodeUsage], ranking: RankingConfig, parts: Sequence[Part] = ()) -> PriceList:
    """The latest prices of all nodes, and the prices in ``parts`` of the period."""
    by_node = {node: price for node, price in prices_of(nodes, ranking).items() if price is not None}
    used = {price_key(usage.facts.price_keys, ranking) for usage in nodes}
    unused = tuple(sorted(key for key in ranking.node_prices if key not in used))
    return PriceList(reference_price(ranking), by_node, parts, unused)


def prices_of(nodes: Iterable[NodeUsage], ranking: RankingConfig) -> dict[str, Price | None]:
    """The latest price of each node, None if it is not in the table. A node's size is its maximum room for pods."""
    prices: dict[str, Price | None] = {}
    # In order of time, so that the latest takes precedence.
    for usage in sorted(nodes, key=lambda node: node.span.until):
        peaks = usage.span.peaks
        size = Size(peaks[NODE_COLUMN_INDEX["total_cpu"]], peaks[NODE_COLUMN_INDEX["total_mem"]])
        prices[usage.facts.node] = priced(size, usage.facts.price_keys, ranking)
    return prices


def price_changes(nodes: Iterable[NodeUsage], ranking: RankingConfig, period: Period) -> list[Millis]:
    """Times in the period at which a node name passes to another machine, if at least one of them is in the price
    table.
    """
    spans: dict[str, dict[tuple[str | None, str], list[Span]]] = {}
    for usage in nodes:
        machine = price_key(usage.facts.price_keys, ranking), usage.facts.machine
        spans.setdefault(usage.facts.node, {}).setdefault(machine, []).append(usage.span)
    ends = {
        end
        for machines in spans.values()
        # Machines that are not in the table all have the reference price.
        if len(machines) > 1 and any(key is not None for key, _ in machines)
        for machine_spans in machines.values()
        for end in (min(span.since for span in machine_spans), max(span.until for span in machine_spans))
    }
    return sorted(end for end in ends if period.since < end < period.until)
