"""The order to sleep and the report, as an API server may return them."""

from __future__ import annotations

import pytest

from protocol.guest.sleep import (
    MAX_IGNORED,
    MAX_ORDER_LENGTH,
    SleepReport,
    ignored_networks,
    sleep_order,
    sleep_order_patch,
    sleep_report,
)
from protocol.names import ANNOTATION_SLEEP
from protocol.units import ZERO


def _ordered(order: object) -> dict[str, object]:
    return {"metadata": {"annotations": {ANNOTATION_SLEEP: order}}}


@pytest.mark.parametrize(
    ("vm", "order"),
    [
        ({}, ""),
        (_ordered("a"), "a"),
        (_ordered("x" * MAX_ORDER_LENGTH), "x" * MAX_ORDER_LENGTH),
        (_ordered("x" * (MAX_ORDER_LENGTH + 1)), ""),
        (sleep_order_patch("b"), "b"),
    ],
)
def test_order_is_bounded(vm: dict[str, object], order: str) -> None:
    """A tenant may write the annotation; one that is too long counts as none."""
    assert sleep_order(vm) == order


@pytest.mark.parametrize("sleep", [None, [], "Asleep", {"state": "Dozing"}, {"sessions": "many"}, {"order": 1}])
def test_unreadable_report_is_empty(sleep: object) -> None:
    """Another controller may have written anything there."""
    assert sleep_report({"status": {"sleep": sleep}}) == SleepReport()


@pytest.mark.parametrize(("cpus", "memory"), [("", ""), ("2", ""), ("many", "1Gi"), ("-1", "1Gi"), ("NaN", "1Gi")])
def test_unreadable_size_counts_as_none(cpus: str, memory: str) -> None:
    assert SleepReport(cpus=cpus, memory=memory).size == ZERO


def test_ignored_networks_are_bounded() -> None:
    """Tenants write the list: an endless one costs nothing, and packets of an invalid entry wake the VM."""
    assert len(ignored_networks("10.0.0.1," * 1_000_000)) == MAX_IGNORED
    assert ignored_networks(" , ::1, 10.0.0.300, 10.0.0.0/33, everybody") == ()
    assert [str(network) for network in ignored_networks("10.4.7.7/16")] == ["10.4.0.0/16"]


@pytest.mark.parametrize("blanks", range(500, 515))
def test_no_network_grows_by_a_cut(blanks: int) -> None:
    """The start of ``10.10.0.0/16`` is half of all addresses: a list that is too long must not end within an entry."""
    assert {str(network) for network in ignored_networks(" " * blanks + "10.10.0.0/16")} <= {"10.10.0.0/16"}
