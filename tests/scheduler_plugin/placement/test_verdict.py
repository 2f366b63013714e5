"""One verdict for filter and bind, and where a VM should move (S4.10, S2.8b)."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from protocol.ranking.config import PreferredSize, RankingConfig, ScoreCurve
from protocol.units import ZERO, MilliCpu, Resources
from scheduler_plugin.placement.scoring import PodDemand, best_target, unfitness_of
from scheduler_plugin.placement.verdict import (
    CORDONED,
    CPU_TOO_SMALL,
    FITS,
    MEM_TOO_SMALL,
    NO_FREE_CPU,
    NO_FREE_MEM,
    UNKNOWN_NODE,
    Filtered,
    Room,
    Verdict,
    filter_nodes,
    shortage,
    verdict,
)
from tests.scheduler_plugin.ledger.fleet import amount


def room(reserved: Resources, *, total: float = 10, watermark: float = 8, is_open: bool = True) -> Room:
    whole = amount(total)
    return Room("n1", whole, reserved, whole.minus_or_zero(reserved), amount(watermark), is_open)


@pytest.mark.parametrize(
    ("where", "claim", "expected"),
    [
        (room(amount(6)), amount(4), FITS),
        (room(amount(6)), amount(0), FITS),
        (room(amount(6, 2)), amount(4.001, 8), NO_FREE_CPU),
        (room(amount(6, 2)), amount(4, 9), NO_FREE_MEM),
        (room(amount(0)), amount(11, 1), CPU_TOO_SMALL),
        (room(amount(0)), amount(1, 11), MEM_TOO_SMALL),
        (room(amount(12)), amount(1), NO_FREE_CPU),
        (room(amount(0), is_open=False), amount(1), CORDONED),
        (None, amount(1), UNKNOWN_NODE),
    ],
)
def test_verdict(where: Room | None, claim: Resources, expected: Verdict) -> None:
    assert verdict(where, claim) is expected


def test_filter_separates_unresolvable_nodes() -> None:
    rooms = {"full": room(amount(9)), "small": room(amount(0), total=1), "b": room(amount(0)), "a": room(amount(1))}
    assert filter_nodes(rooms, ["b", "full", "unknown", "small", "a"], amount(4)) == Filtered(
        fits=["b", "a"],
        refused={"full": "Insufficient cpu", "unknown": "the scheduler does not know the node yet"},
        never={"small": "Insufficient cpu: more than the node has"},
    )


def test_filter_has_nothing_to_say_where_all_fit() -> None:
    rooms = {"b": room(amount(0)), "a": room(amount(1))}
    assert filter_nodes(rooms, ["a", "b"], amount(4)) == Filtered(["a", "b"], {}, {})


def test_a_shortage_says_the_numbers() -> None:
    assert (
        shortage(room(amount(9, 2)), amount(4)) == "pod needs 4 cpu, 4Gi; node n1 has 1 cpu, 8Gi free of 10 cpu, 10Gi"
    )


RANKING = RankingConfig(preferred_sizes=(PreferredSize(vcpus=10),))


def chosen(rooms: dict[str, Room], claim: Resources, growth: Resources = ZERO) -> set[str | None]:
    """Every node that chance may choose."""
    draw = Random(5).randint
    return {best_target(rooms, PodDemand(claim, growth), RANKING, draw, nodes=len(rooms)) for _ in range(50)}


def test_vm_moves_to_best_filled_node() -> None:
    rooms = {
        "empty": room(amount(0)),
        "best": room(amount(6)),
        "lifted above its watermark": room(amount(8)),
        "full": room(amount(10)),
        "closed": room(amount(6), is_open=False),
    }
    assert chosen(rooms, amount(1)) == {"best"}


def test_target_leaves_room_for_growth() -> None:
    calm, growing = room(amount(4)), replace(room(amount(4)), growth=amount(5))
    assert chosen({"calm": calm, "growing": growing}, amount(1)) == {"calm"}
    assert chosen({"fuller": room(amount(5)), "emptier": room(amount(2))}, amount(1)) == {"fuller"}
    assert chosen({"fuller": room(amount(5)), "emptier": room(amount(2))}, amount(1), growth=amount(5)) == {"emptier"}


@pytest.mark.parametrize(("share", "best"), [(0.0, "n1"), (0.5, "n1"), (1.0, "n2")])
def test_share_of_growth_is_a_setting(share: float, best: str) -> None:
    ranking = RankingConfig(score=ScoreCurve(growth=share))
    rooms = {"n1": replace(room(amount(4)), growth=amount(4)), "n2": room(amount(3))}
    assert best_target(rooms, PodDemand(amount(1)), ranking, Random(5).randint, nodes=2) == best


def test_target_ties_break_by_price_fit_chance() -> None:
    dear, cheap = replace(room(amount(5)), price=2.0), replace(room(amount(5)), price=1.0)
    small = replace(room(amount(2), total=5, watermark=4), price=1.0)
    assert chosen({"dear": dear, "cheap": cheap}, amount(1)) == {"cheap"}
    assert chosen({"unfit": small, "cheap": replace(cheap, reserved=amount(5))}, amount(1)) == {"cheap"}
    assert chosen({"a": cheap, "b": cheap, "dear": dear}, amount(1)) == {"a", "b"}


def test_a_vm_that_fits_nowhere_stays() -> None:
    assert chosen({"n1": room(amount(8)), "n2": room(amount(10))}, amount(1)) == {None}


def test_node_without_room_is_most_unfit() -> None:
    assert unfitness_of(MilliCpu(0), 1.0) == 1000
