"""Bills: costs of reservations and use of VMs, in lines that add up to a total."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from protocol.messages import ObjectName
from scheduler_plugin.history.core.samples import COLUMN_INDEX, HOUR, Millis, Size, VmRecord
from scheduler_plugin.history.core.spans import sum_while
from scheduler_plugin.history.costs.prices import KIB_OF_GIB, MILLI, Price, PriceList
from scheduler_plugin.history.ports import Period, Usage

NOTHING: Final = Fraction(0)


@dataclass(frozen=True, slots=True)
class BilledCost:
    """vCPU-hours and GiB-hours with their costs."""

    cpu_hours: Fraction = NOTHING
    gib_hours: Fraction = NOTHING
    cpu_money: Fraction = NOTHING
    mem_money: Fraction = NOTHING

    @property
    def money(self) -> Fraction:
        """Total cost."""
        return self.cpu_money + self.mem_money

    def __add__(self, other: BilledCost) -> BilledCost:
        return BilledCost(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(self)))

    @classmethod
    def of(cls, cpu: int, mem: int, price: Price) -> BilledCost:
        """Convert integrals in milli-vCPU-ms and KiB-ms.

        >>> BilledCost.of(2000 * HOUR, 1024**2 * HOUR, Price(Fraction(3), Fraction(1))).money
        Fraction(7, 1)
        """
        cpu_hours, gib_hours = Fraction(cpu, MILLI * HOUR), Fraction(mem, KIB_OF_GIB * HOUR)
        return cls(cpu_hours, gib_hours, cpu_hours * price.cpu, gib_hours * price.mem)


@dataclass(frozen=True, slots=True)
class Line:
    """Costs and hours of some VMs.

    - ``in_use``: the reservation while use was known, to compare with ``used``.
    - ``at_most``: the cost at the maximum size. ``at_high``: at the size that is enough for 99.5 % of the time.
      ``without_most`` and ``without_high``: the money of reservations for which that size is unknown.
    - ``known_hours``: hours with a known reservation. ``unknown``: hours without one between the VM's first and last
      sample. ``use_known``: hours with known use.
    - ``asleep``: hours asleep. ``slept``: what these would have cost in addition at the minimum size.
    - ``since`` and ``until``: the first and last sample.
    """

    reserved: BilledCost = BilledCost()
    used: BilledCost = BilledCost()
    in_use: BilledCost = BilledCost()
    at_most: BilledCost = BilledCost()
    at_high: BilledCost = BilledCost()
    known_hours: Fraction = NOTHING
    unknown: Fraction = NOTHING
    use_known: Fraction = NOTHING
    without_most: Fraction = NOTHING
    without_high: Fraction = NOTHING
    asleep: Fraction = NOTHING
    slept: BilledCost = BilledCost()
    since: Millis = sys.maxsize
    until: Millis = 0

    def __add__(self, other: Line) -> Line:
        # The last two fields are times.
        sums = (getattr(self, part.name) + getattr(other, part.name) for part in fields(self)[:-2])
        return replace(Line(*sums), since=min(self.since, other.since), until=max(self.until, other.until))

    @property
    def saved(self) -> Fraction:
        """Savings against the maximum size, without reservations whose maximum is unknown."""
        return self.at_most.money - (self.reserved.money - self.without_most)

    @property
    def saved_of_high(self) -> Fraction:
        """Savings against the size that is enough for 99.5 % of the time; negative if scaling cost more."""
        return self.at_high.money - (self.reserved.money - self.without_high)


KeyOf = Callable[[VmRecord], str]
"""Returns the name of a VM's line: its name, namespace, group, node, or the value of a label."""

NONE: Final = "(none)"
LABEL: Final = "label="

KEYS: Final[Mapping[str, KeyOf]] = MappingProxyType(
    {
        "vm": lambda facts: str(facts.vm),
        "namespace": lambda facts: facts.vm.namespace,
        "group": lambda facts: f"{facts.vm.namespace}/{facts.group}" if facts.group else NONE,
        "node": lambda facts: facts.node or NONE,
    }
)


def key_of(by: str) -> KeyOf:
    """The grouping for ``by``, which is one of ``KEYS`` or ``label=KEY``. Raises ``ValueError``.

    >>> from protocol.messages import ObjectName
    >>> from scheduler_plugin.history.core.samples import VmRecord
    >>> facts = VmRecord(ObjectName("default", "db"), labels=(("team", "a"),))
    >>> key_of("vm")(facts), key_of("label=team")(facts), key_of("label=tier")(facts)
    ('default/db', 'a', '(none)')
    """
    label = by.removeprefix(LABEL)
    if by.startswith(LABEL) and label:
        return lambda facts: dict(facts.labels).get(label, NONE)
    if by not in KEYS:
        raise ValueError(f"expected one of {', '.join(KEYS)} or label=KEY, got {by!r}")
    return KEYS[by]


@dataclass(frozen=True, slots=True)
class Bill:
    """Lines by name, and their total.

    ``unpriced`` are nodes that are not in the price table and cost the reference price. ``unused`` are keys of the
    price table that match no node.
    """

    period: Period
    lines: Mapping[str, Line]
    total: Line
    unpriced: tuple[str, ...]
    unused: tuple[str, ...] = ()


def bill(  # noqa: PLR0913 - what a bill is made of
    usages: Sequence[Usage],
    high: Mapping[ObjectName, Size],
    prices: PriceList,
    key_of: KeyOf,
    period: Period,
    *,
    only: str = "",
) -> Bill:
    """The bill of ``usages``, or only its line ``only``.

    ``high`` is the size of each VM that is enough for 99.5 % of the time.
    """
    lines: dict[str, Line] = defaultdict(Line)
    billed = [usage for usage in usages if not only or key_of(usage.facts) == only]
    for usage in billed:
        # At the price of the VM's node at that time.
        line = line_of(usage, high.get(usage.facts.vm), prices.on(usage.facts.node, usage.span))
        lines[key_of(usage.facts)] += line
    for facts, unknown in _unknown(usages):  # of all usages, because a VM's time in other lines is known
        if not only or key_of(facts) == only:
            lines[key_of(facts)] += Line(unknown=unknown)
    unpriced = {usage.facts.node for usage in billed if prices.listed_price(usage.facts.node, usage.span) is None}
    unpriced.discard("")  # unplaced VMs
    return Bill(period, dict(lines), sum(lines.values(), Line()), tuple(sorted(unpriced)), prices.unused)


def line_of(usage: Usage, high: Size | None, price: Price) -> Line:
    """The line of one VM with constant facts."""
    span, most = usage.span, usage.facts.most
    cpu, mem = COLUMN_INDEX["reserved_cpu"], COLUMN_INDEX["reserved_mem"]
    known_times = span.known_times[cpu], span.known_times[mem]
    used_cpu, used_mem = COLUMN_INDEX["used_cpu"], COLUMN_INDEX["used_mem"]
    reserved = BilledCost.of(span.sums[cpu], span.sums[mem], price)
    return Line(
        reserved=reserved,
        used=BilledCost.of(span.sums[used_cpu], span.sums[used_mem], price),
        in_use=BilledCost.of(
            # To compare with use, the reservation while use was known. If the exact integral is unknown, it is
            # estimated.
            *(usage.in_use or (sum_while(span, cpu, used_cpu), sum_while(span, mem, used_mem))),
            price,
        ),
        # Only over the time in which the reservation was known, so that they are comparable.
        at_most=_fixed(most, known_times, price),
        at_high=_fixed(high, known_times, price),
        known_hours=Fraction(known_times[0], HOUR),
        use_known=Fraction(span.known_times[used_cpu], HOUR),
        without_most=NOTHING if most is not None else reserved.money,
        without_high=NOTHING if high is not None else reserved.money,
        asleep=Fraction(known_times[0], HOUR) if usage.facts.asleep else NOTHING,
        slept=_slept(usage, known_times, price),
        since=span.since,
        until=span.until,
    )


def _fixed(size: Size | None, known: tuple[int, int], price: Price) -> BilledCost:
    return BilledCost() if size is None else BilledCost.of(size.cpu * known[0], size.mem * known[1], price)


def _slept(usage: Usage, known: tuple[int, int], price: Price) -> BilledCost:
    """Cost of the minimum size while the VM slept, minus the cost of what was still reserved; zero if it was awake."""
    least, span = usage.facts.least, usage.span
    if least is None or not usage.facts.asleep:
        return BilledCost()
    cpu, mem = span.sums[COLUMN_INDEX["reserved_cpu"]], span.sums[COLUMN_INDEX["reserved_mem"]]
    return BilledCost.of(least.cpu * known[0] - cpu, least.mem * known[1] - mem, price)


def _unknown(usages: Iterable[Usage]) -> Iterable[tuple[VmRecord, Fraction]]:
    """Yield for each VM, by UID, the hours between its first and last sample without a known reservation."""
    lifetimes: dict[tuple[ObjectName, str], list[Usage]] = defaultdict(list)
    for usage in usages:
        # A recreated VM is another VM.
        lifetimes[usage.facts.vm, usage.facts.uid].append(usage)
    for parts in lifetimes.values():
        lifetime = max(usage_part.span.until for usage_part in parts) - min(
            usage_part.span.since for usage_part in parts
        )
        known_time = sum(usage_part.span.known_times[COLUMN_INDEX["reserved_cpu"]] for usage_part in parts)
        # Unknown time costs nothing. It is added to the VM's last line.
        if lifetime > known_time:
            yield max(parts, key=lambda usage_part: usage_part.span.until).facts, Fraction(lifetime - known_time, HOUR)
