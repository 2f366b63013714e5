"""Nodes are billed by the machine of the time, although a name may be used again for another one (S2.1)."""

from __future__ import annotations

import time
from fractions import Fraction
from pathlib import Path

import pytest

from protocol.messages import ObjectName
from protocol.ranking.config import Prices, RankingConfig
from scheduler_plugin.history import priced_usage as module
from scheduler_plugin.history.core.history_log import Batch
from scheduler_plugin.history.core.samples import HOUR, MINUTE, NodeRecord, VmRecord
from scheduler_plugin.history.core.spans import sample_span
from scheduler_plugin.history.costs.bills import Bill, bill, key_of
from scheduler_plugin.history.ports import Period
from scheduler_plugin.history.priced_usage import priced_usage
from scheduler_plugin.history.sqlite.queries import SqliteHistory
from scheduler_plugin.history.sqlite.store import SqliteStore

GIB = 1024**2
SIZES = {"small": 2000, "large": 8000}
"""Milli-vCPUs of each machine."""
TABLE = RankingConfig(prices=Prices(cpu=1, mem_gib=0), node_prices={"small": 0.2, "large": 1.6, "pool": 4})


def recorded(path: Path, machines: list[tuple[int, int, str]], groups: tuple[str, ...] = ()) -> SqliteHistory:
    """A VM that reserves one vCPU of ``n1`` all the time; the machines of that name from hour to hour."""
    batch = Batch()
    end = max(until for _, until, _ in machines)
    row = (*[1000, GIB] * 4, 500, GIB)
    facts = VmRecord(ObjectName("default", "db"), "n1")
    batch.vms += [(facts, sample_span(at * MINUTE, (at + 5) * MINUTE, row)) for at in range(0, end * 60, 5)]
    for since, until, machine in machines:
        total = (SIZES.get(machine, 4000), 64 * GIB, *[0] * 6)
        node = NodeRecord("n1", machine, groups if machine else ())
        batch.nodes += [
            (node, sample_span(at * MINUTE, (at + 5) * MINUTE, total)) for at in range(since * 60, until * 60, 5)
        ]
    store = SqliteStore(path, time.time)
    store.write(batch)
    store.close()
    return SqliteHistory(path)


async def billed(history: SqliteHistory, hours: float, table: RankingConfig = TABLE) -> Bill:
    period = Period(0, round(hours * HOUR))
    prices, usages = await priced_usage(history, period, table)
    return bill(usages, {}, prices, key_of("vm"), period)


@pytest.mark.parametrize(
    ("machines", "money"),
    [
        ([(0, 4, "small")], Fraction(4, 10)),
        ([(0, 2, "small"), (2, 4, "large")], Fraction(6, 10)),
        ([(0, 2, "large"), (2, 4, "small")], Fraction(6, 10)),
        ([(0, 1, "small"), (1, 3, "large"), (3, 4, "small")], Fraction(6, 10)),
        ([(0, 1, "small"), (2, 4, "large")], Fraction(1, 10) + Fraction(6, 10)),  # unseen for an hour: as it is now
        ([(0, 1, "small"), (1, 4, "unlisted")], Fraction(1, 10) + 3),
        (
            [(0, 2, "small"), (2, 4, "large"), (4, 6, "small"), (6, 8, "large"), (8, 10, "small")],
            Fraction(6, 10) + Fraction(8, 10),
        ),
        ([(0, 2, "unlisted"), (2, 4, "other")], Fraction(4)),
    ],
)
async def test_reused_node_name_has_price_of_its_time(
    machines: list[tuple[int, int, str]], money: Fraction, tmp_path: Path
) -> None:
    found = await billed(recorded(tmp_path / "h.sqlite", machines), machines[-1][1])
    assert found.total.reserved.money == money
    assert found.total.unknown == 0


async def test_group_price_varies_by_machine(tmp_path: Path) -> None:
    """A node of the group costs 4 an hour, so that a vCPU of the small one costs 2 and of the large one a half."""
    history = recorded(tmp_path / "h.sqlite", [(0, 2, "small"), (2, 4, "large")], ("pool",))
    assert (await billed(history, 4)).total.reserved.money == 2 * 2 + 2 * Fraction(1, 2)


async def test_keys_that_match_no_node_are_named(tmp_path: Path) -> None:
    history = recorded(tmp_path / "h.sqlite", [(0, 2, "small"), (2, 4, "unlisted")])
    found = await billed(history, 4)
    assert (found.unused, found.unpriced) == (("large", "pool"), ("n1",))
    by_name = await billed(history, 4, RankingConfig(node_prices={"n1": 1.0}))
    assert (by_name.unused, by_name.unpriced) == ((), ())


async def test_many_changes_cost_a_bounded_number_of_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PARTS", 3)
    machines = [(at, at + 2, ("small", "large")[at // 2 % 2]) for at in range(0, 24, 2)]
    history = recorded(tmp_path / "h.sqlite", machines)
    prices, usages = await priced_usage(history, Period(0, 24 * HOUR), TABLE)
    assert len(prices.parts) == len(usages) <= 3
    assert sum(usage.span.observed for usage in usages) == 24 * HOUR
