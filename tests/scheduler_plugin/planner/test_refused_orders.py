"""Pauses after the API server refuses migrations: of one VM, its namespace, or all."""

from __future__ import annotations

from protocol.messages import ObjectName
from protocol.units import Instant
from scheduler_plugin.planner.refused_orders import RefusedOrders
from scheduler_plugin.planner.victims import MoveDelays
from scheduler_plugin.texts.explanations import REFUSED_BY_API as OF_VM
from scheduler_plugin.texts.explanations import REFUSED_NAMESPACE as OF_NAMESPACE

REST = MoveDelays()
DB, OTHER, FAR = ObjectName("a", "db"), ObjectName("a", "other"), ObjectName("b", "far")


def said(refused: RefusedOrders, second: float) -> tuple[str | None, str | None, str | None, bool]:
    """The reasons of DB, OTHER and FAR, and whether all must wait."""
    now = Instant(second)
    return (*(refused.refusal_reason(vm, now) for vm in (DB, OTHER, FAR)), refused.all_wait(now))  # type: ignore[return-value]


def test_refused_order_rests_vm_and_namespace() -> None:
    refused = RefusedOrders()
    refused.refused(DB, Instant(0.0), REST, 0.0)
    assert said(refused, 0.5) == (OF_VM, OF_NAMESPACE, None, False)
    assert said(refused, 1.0) == (OF_VM, None, None, False)
    assert said(refused, 60.0) == (None, None, None, False)


def test_repeated_refusals_double_waits() -> None:
    refused = RefusedOrders()
    refused.refused(DB, Instant(0.0), REST, 0.0)
    refused.refused(DB, Instant(60.0), REST, 0.0)
    assert said(refused, 61.9) == (OF_VM, OF_NAMESPACE, None, False)
    assert said(refused, 179.9) == (OF_VM, None, None, False)
    assert said(refused, 180.0) == (None, None, None, False)


def test_refusals_in_two_namespaces_pause_all() -> None:
    refused = RefusedOrders()
    refused.refused(DB, Instant(0.0), REST, 0.0)
    refused.refused(FAR, Instant(10.0), REST, 0.0)
    assert said(refused, 10.9) == (OF_VM, None, OF_VM, True)
    assert said(refused, 11.0) == (OF_VM, None, OF_VM, False)


def test_successful_order_resets_namespace_backoff() -> None:
    refused = RefusedOrders()
    refused.refused(DB, Instant(0.0), REST, 0.0)
    refused.made(ObjectName("c", "any"))
    refused.refused(FAR, Instant(10.0), REST, 0.0)
    assert said(refused, 10.0) == (OF_VM, None, OF_VM, False)


def test_what_is_made_is_made_again_at_once() -> None:
    refused = RefusedOrders()
    refused.refused(DB, Instant(0.0), REST, 0.0)
    refused.made(DB)
    assert said(refused, 0.0) == (None, None, None, False)


def test_second_lost_order_rests_vm() -> None:
    refused = RefusedOrders()
    refused.lost(DB, Instant(0.0), REST)
    assert said(refused, 0.0) == (None, None, None, False)
    refused.lost(DB, Instant(10.0), REST)
    assert said(refused, 129.9) == (OF_VM, None, None, False)
    assert said(refused, 130.0) == (None, None, None, False)


def test_what_has_been_left_in_peace_is_forgotten() -> None:
    refused = RefusedOrders()
    refused.refused(DB, Instant(0.0), REST, 0.0)
    refused.refused_all(Instant(0.0), 0.0)
    refused.forget_old(Instant(REST.backoff + REST.max_backoff), REST)
    later = Instant(10_000.0)
    refused.refused(DB, later, REST, 0.0)
    refused.refused(FAR, later, REST, 0.0)
    assert said(refused, later + 0.9) == (OF_VM, OF_NAMESPACE, OF_VM, True)
    assert said(refused, later + 1.0) == (OF_VM, None, OF_VM, False), "counted from the first again"
