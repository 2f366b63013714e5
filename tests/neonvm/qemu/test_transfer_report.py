"""QEMU's figures of a migration, as the guest port gives them."""

import pytest

from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.reports import (
    completed_info,
    parse_memory,
    parse_report,
    parse_run_state,
    parse_timestamp,
    transfer_info,
)
from deploy.neonvm.transfer_terms import TransferStatus
from protocol.units import Bytes, Seconds

ANSWER = {
    "status": "active",
    "total-time": 1250,
    "setup-time": 40,
    "expected-downtime": 300,
    "ram": {"total": 1024, "transferred": 512, "remaining": 256, "dirty-pages-rate": 7, "dirty-sync-count": 2},
}


def test_expected_downtime_stands_in_for_measured() -> None:
    info = transfer_info(parse_report(ANSWER))
    assert (info.status, info.total, info.setup, info.downtime) == (TransferStatus.ACTIVE, 1.25, 0.04, 0.3)
    assert (info.ram.total, info.ram.remaining, info.ram.dirty_pages_rate, info.ram.dirty_sync_count) == (
        1024,
        256,
        7,
        2,
    )
    measured = parse_report({**ANSWER, "status": "completed", "downtime": 50})
    assert transfer_info(measured).downtime == 0.05


@pytest.mark.parametrize("status", ["", "none", "setup"])
def test_unstarted_migration_is_in_setup(status: str) -> None:
    assert transfer_info(parse_report({"status": status})).status is TransferStatus.SETUP


def test_measured_downtime_replaces_qemus() -> None:
    report = parse_report({**ANSWER, "status": "completed", "downtime": 50})
    assert completed_info(report, None).downtime == 0.05
    info = completed_info(report, Seconds(0.25))
    assert (info.status, info.downtime) == (TransferStatus.COMPLETED, 0.25)
    assert info.total == pytest.approx(1.45)


@pytest.mark.parametrize("answer", [None, [], {"status": 3}, {"ram": {"total": "much"}}])
def test_malformed_migration_info_is_error(answer: object) -> None:
    with pytest.raises(GuestError, match="invalid response from QEMU"):
        parse_report(answer)


def test_event_time_is_optional() -> None:
    assert parse_timestamp({"seconds": 2, "microseconds": 500_000}) == 2.5
    assert parse_timestamp({"seconds": -1, "microseconds": -1}) is None
    assert parse_timestamp("yesterday") is None


@pytest.mark.parametrize("answer", [{}, {"base-memory": -5}, {"base-memory": 10**400}, {"base-memory": "much"}])
def test_memory_that_cannot_be_is_a_fault(answer: object) -> None:
    assert parse_memory({"base-memory": 1024, "plugged-memory": 512}) == Bytes(1536)
    with pytest.raises(GuestError, match="invalid response from QEMU"):
        parse_memory(answer)


def test_the_run_state_is_qemus_name_for_it() -> None:
    assert parse_run_state({"status": "postmigrate", "running": False}) == "postmigrate"
    with pytest.raises(GuestError, match="invalid response from QEMU"):
        parse_run_state({})
