"""The course of a simulated guest's move: it takes the time that its memory takes, or does not end in time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.neonvm.simulated.simulated_transfer import MAX_BANDWIDTH, PAGE, MemoryLoad, TransferModel
from deploy.neonvm.transfer_terms import TransferInfo, TransferLimits, TransferRam, TransferStatus
from protocol.units import Bytes, Seconds

MIB = 1024**2
IDLE = MemoryLoad(Bytes(1024 * MIB), Bytes(256 * MIB), 0.0)


def limits(
    bandwidth: int = 1024, downtime: float = 0.1, timeout: float = 60.0, *, brake: bool = True
) -> TransferLimits:
    return TransferLimits(Seconds(downtime), Bytes(bandwidth * MIB), Seconds(timeout), brake)


def test_idle_guest_needs_one_pass() -> None:
    course = TransferModel.of(IDLE, limits())
    assert course.end == pytest.approx(0.04 + 0.5 + 0.02)
    assert course.at(Seconds(9.0)) == TransferInfo(
        TransferStatus.COMPLETED,
        total=Seconds(course.end or 0.0),
        setup=Seconds(0.04),
        downtime=Seconds(0.02),
        ram=TransferRam(
            total=IDLE.total.value,
            transferred=IDLE.used.value,
            remaining=0,
            duplicate=768 * MIB // PAGE.value,
            normal=256 * MIB // PAGE.value,
            dirty_pages_rate=0,
            dirty_sync_count=2,
            page_size=PAGE.value,
        ),
    )


def test_progress_is_known_at_any_time() -> None:
    course = TransferModel.of(IDLE, limits())
    first, half = course.at(Seconds(0.0)), course.at(Seconds(0.04 + 0.25))
    assert (first.status, first.ram.transferred, first.ram.remaining) == (TransferStatus.SETUP, 0, IDLE.used.value)
    assert (half.status, half.ram.dirty_sync_count) == (TransferStatus.ACTIVE, 1)
    assert half.ram.remaining == pytest.approx(128 * MIB, abs=1)


def test_bandwidth_limits_the_move() -> None:
    slow = TransferModel.of(IDLE, limits(bandwidth=64))
    assert slow.end == pytest.approx(0.04 + 4.0 + 0.02)
    assert TransferModel.of(IDLE, limits(bandwidth=9999)) == TransferModel.of(
        IDLE, limits(bandwidth=MAX_BANDWIDTH.value // MIB)
    )


def test_busy_guest_needs_more_rounds() -> None:
    busy = TransferModel.of(MemoryLoad(IDLE.total, IDLE.used, 4.0), limits())
    assert busy.end is not None
    assert busy.rounds > 2
    assert busy.downtime > TransferModel.of(IDLE, limits()).downtime
    assert busy.at(Seconds(0.3)).ram.dirty_pages_rate == 4 * 48 * MIB // PAGE.value


def test_too_busy_guest_is_throttled_or_fails() -> None:
    wild = MemoryLoad(Bytes(4096 * MIB), Bytes(2048 * MIB), 8.0)
    assert TransferModel.of(wild, limits(bandwidth=300, brake=False)).end is None
    braked = TransferModel.of(wild, limits(bandwidth=300))
    assert braked.end is not None
    never = TransferModel.of(wild, limits(bandwidth=300, brake=False)).at(Seconds(70.0))
    assert (never.status, never.total) == (TransferStatus.ACTIVE, Seconds(70.0))


def test_move_past_deadline_does_not_end() -> None:
    assert TransferModel.of(IDLE, limits(timeout=0.55)).end is None
    assert TransferModel.of(IDLE, limits(timeout=0.3)).end is None
    assert TransferModel.of(IDLE, limits(timeout=0.57)).end is not None


def test_a_guest_that_uses_nothing_moves_at_once() -> None:
    nothing = TransferModel.of(MemoryLoad(Bytes(MIB), Bytes(0), 1.0), limits(downtime=0.0))
    assert nothing.end == pytest.approx(0.06)
    assert nothing.at(Seconds(0.05)).ram.dirty_pages_rate == 0


burdens = st.tuples(st.integers(0, 2048), st.floats(0, 16)).map(
    lambda drawn: MemoryLoad(Bytes(2048 * MIB), Bytes(drawn[0] * MIB), drawn[1])
)
some_limits = st.tuples(st.integers(16, 2048), st.floats(0.01, 1), st.booleans()).map(
    lambda drawn: limits(drawn[0], drawn[1], brake=drawn[2])
)


@given(burdens, some_limits, st.floats(0, 90))
def test_sent_bytes_grow_and_downtime_is_bounded(memory_load: MemoryLoad, asked: TransferLimits, when: float) -> None:
    course = TransferModel.of(memory_load, asked)
    now, later = course.at(Seconds(when)), course.at(Seconds(when + 1))
    assert now.ram.transferred <= later.ram.transferred
    assert now.ram.remaining <= memory_load.used.value
    if course.end is not None:
        assert course.end <= asked.timeout
        assert course.downtime <= asked.downtime_after(course.end) + 0.02


@pytest.mark.parametrize(
    ("span", "may_stand"), [(0.0, 0.02), (4.9, 0.02), (5.0, 0.04), (14.9, 0.08), (20.0, 0.3), (1e9, 0.3)]
)
def test_downtime_limit_grows_with_duration(span: float, may_stand: float) -> None:
    found = TransferLimits(Seconds(0.02), Bytes(MIB), Seconds(60.0)).downtime_after(Seconds(span))
    assert found == pytest.approx(may_stand)


@given(st.floats(0, 1e9))
def test_one_pass_move_stops_afterwards(span: float) -> None:
    limits = TransferLimits(Seconds(0.02), Bytes(MIB), Seconds(60.0)).in_one_pass()
    assert limits.downtime_after(Seconds(span)) == 0.0
    assert limits.downtime_after(Seconds(span), is_sent_once=True) >= 2 * limits.timeout
