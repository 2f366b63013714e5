"""The node that is most expensive for its load is emptied first, and no other node exceeds its watermark (S2.8c)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from protocol.kubernetes.objects import Json
from scheduler_plugin.history.core.samples import Size
from scheduler_plugin.history.costs.consolidation import (
    AdvisedMove,
    Emptied,
    PlacedNode,
    PlacedVm,
    bound_pods,
    emptied,
    read_nodes,
)
from scheduler_plugin.history.costs.prices import Price
from tests.scheduler_plugin.history.fleet_pictures import node, pod

GIB = 1024**2
UNIT = Size(1000, 4 * GIB)


def placed(
    name: str, price: int, *vms: PlacedVm, mark: int = 8, others: Sequence[int] = (), is_open: bool = True
) -> PlacedNode:
    units = sum(vm.reserved.cpu for vm in vms) // 1000 + sum(others)
    sizes = tuple(Size(each * 1000, each * 4 * GIB) for each in others)
    mark_at = Size(mark * 1000, mark * 4 * GIB)
    return PlacedNode(name, Fraction(price), UNIT, mark_at, Size(units * 1000, units * 4 * GIB), vms, sizes, is_open)


def a_vm(name: str, units: int, moves: bool = True) -> PlacedVm:
    return PlacedVm(name, Size(units * 1000, units * 4 * GIB), moves)


def test_most_overpriced_node_goes_first() -> None:
    fleet = [
        placed("busy", 4, a_vm("d/a", 5)),
        placed("dear", 4, a_vm("d/b", 1), a_vm("d/c", 2), others=[0, 0]),
        placed("idle", 1),
    ]
    assert emptied(fleet) == [
        Emptied("idle", Fraction(1), (), 0),
        Emptied("dear", Fraction(4), (AdvisedMove("d/c", "busy"), AdvisedMove("d/b", "busy")), 2),
    ]


def test_drained_vms_can_move_again() -> None:
    fleet = [placed("a", 9, a_vm("d/a", 1)), placed("b", 8, a_vm("d/b", 1)), placed("c", 1, a_vm("d/c", 1))]
    assert [(each.node, [(move.vm, move.target) for move in each.moves]) for each in emptied(fleet)] == [
        ("a", [("d/a", "c")]),
        ("b", [("d/b", "c")]),
    ]


def test_drained_node_is_no_target() -> None:
    """The VM of a would fit best on b, which is emptied next."""
    fleet = [
        placed("a", 9, a_vm("d/db", 1)),
        placed("b", 9, a_vm("d/x", 3), a_vm("d/z", 2)),
        placed("c", 1, a_vm("d/y", 1)),
    ]
    found = emptied(fleet)
    assert [(each.node, [(move.vm, move.target) for move in each.moves]) for each in found] == [
        ("a", [("d/db", "c")]),
        ("b", [("d/x", "c"), ("d/z", "c")]),
    ]


def test_consolidation_respects_pressure_and_moves() -> None:
    assert emptied([placed("a", 1, a_vm("d/a", 5)), placed("b", 1, a_vm("d/b", 4))]) == []
    assert emptied([placed("a", 2, a_vm("d/a", 1, moves=False)), placed("b", 1, a_vm("d/b", 1, moves=False))]) == []
    assert emptied([placed("a", 2, a_vm("d/a", 1)), placed("b", 1, is_open=False)]) == [
        Emptied("b", Fraction(1), (), 0)
    ]
    assert emptied([placed("a", 2)]) == []


def test_pods_that_run_no_vm_need_room_too() -> None:
    full = [placed("a", 9, a_vm("d/a", 2), others=[3, 1]), placed("b", 8, a_vm("d/b", 3), others=[1])]
    assert emptied(full) == []
    roomy = [full[0], placed("b", 8, a_vm("d/b", 2)), placed("c", 1, a_vm("d/c", 1), others=[5])]
    assert emptied(roomy) == [Emptied("a", Fraction(9), (AdvisedMove("d/a", "c"),), 2)]


vms = st.lists(st.integers(0, 8), max_size=4)


@given(st.lists(st.tuples(st.integers(1, 9), vms), max_size=5))
def test_every_vm_has_a_place_below_a_watermark(shapes: list[tuple[int, list[int]]]) -> None:
    fleet = [
        placed(f"n{at}", price, *(a_vm(f"d/{at}-{number}", units) for number, units in enumerate(sizes)), mark=12)
        for at, (price, sizes) in enumerate(shapes)
    ]
    where = {vm.name: (each.name, vm.reserved) for each in fleet for vm in each.vms}
    before = {each.name: each.reserved.cpu for each in fleet}
    gone = set()
    advice = emptied(fleet)
    assert not {each.node for each in advice} & {move.target for each in advice for move in each.moves}
    for each in advice:
        assert each.others == 0
        assert sorted(move.vm for move in each.moves) == sorted(vm for vm, (on, _) in where.items() if on == each.node)
        where |= {move.vm: (move.target, where[move.vm][1]) for move in each.moves}
        gone.add(each.node)
    for name, cpu in before.items():
        load = sum(size.cpu for on, size in where.values() if on == name)
        assert load == 0 if name in gone else load <= max(12_000, cpu)


def a_pod(name: str, cpu: str) -> Json:
    """A pod without a VM, in the scheduler's response."""
    return {"vm": None, "pod": name, "reserved": {"cpu": cpu, "mem": "0"}}


def test_pods_that_need_no_place_keep_no_node() -> None:
    """One without requests and a static one, where the other node is above its watermark."""
    full = node(pod(cpu="15"), name="full", reserved="15")
    others = [a_pod("d/a", "0"), a_pod("d/b", "1")]
    answer = {"nodes": [{**full, "open": True}, {**node(*others, name="empty", reserved="1"), "open": True}]}
    owned = {"metadata": {"namespace": "d", "name": "b", "ownerReferences": [{"kind": "Node", "name": "empty"}]}}
    price = Price(Fraction(1), Fraction(0))
    assert emptied(read_nodes(answer, {}, price, bound=bound_pods([owned]))) == [Emptied("empty", Fraction(16), (), 0)]
    assert emptied(read_nodes(answer, {}, price)) == []


def test_nodes_are_read_from_the_schedulers_answer() -> None:
    no_size: Json = {"vm": None, "pod": "d/no-size"}
    full = {
        **node(
            *(pod(), pod("b", migrating=True), no_size),
            *(a_pod("d/web", "1"), a_pod("d/agent", "1")),
        ),
        "open": True,
        "computeUnit": {"cpu": "1", "mem": "4Gi"},
    }
    answer = {"nodes": [full, {"name": "odd"}, {**node(name="n2"), "open": False}]}
    prices = {"n1": Price(Fraction(1), Fraction(0))}
    size = Size(2000, 4 * GIB)
    mark = Size(14000, 56 * GIB)
    assert read_nodes(answer, prices, Price(Fraction(0), Fraction(1)), bound={"d/agent"}) == [
        PlacedNode(
            *("n1", Fraction(16), UNIT, mark, size),
            (PlacedVm("default/db", size), PlacedVm("default/b", size, moves=False)),
            (Size(1000, 0),),
        ),
        PlacedNode("n2", Fraction(64), UNIT, mark, size, (), (), is_open=False),
    ]
    assert [each.name for each in read_nodes(answer, prices, Price(Fraction(0), Fraction(1)), {"n1"})] == ["n2"]


def test_node_with_pod_database_stays() -> None:
    """A pod does not move without a restart, so its node cannot go; VMs go there."""
    price = Price(Fraction(1), Fraction(0))
    nodes = [node(pod("pod/pg-1"), name="a"), node(pod(), name="b")]
    found = read_nodes({"nodes": [{**each, "open": True} for each in nodes]}, {}, price)
    assert [(each.node, each.moves) for each in emptied(found)] == [("b", (AdvisedMove("default/db", "a"),))]
