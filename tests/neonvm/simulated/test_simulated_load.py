"""Loads over time: steps, repetition, recordings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.neonvm.simulated.recording_rows import parse_rows
from deploy.neonvm.simulated.simulated_load import IDLE_MEMORY, Demand, Load, LoadError, LoadStep, recorded_load
from protocol.units import Bytes, Seconds


def step(at: float, cpu: float) -> LoadStep:
    return LoadStep(Seconds(at), Demand(cpu, Bytes(100)))


def test_a_constant_load_never_changes() -> None:
    load = Load.constant(2.5, Bytes(7))
    assert (load.at(Seconds(0)), load.at(Seconds(1e6)), load.next_change(Seconds(3))) == (
        Demand(2.5, Bytes(7)),
        Demand(2.5, Bytes(7)),
        None,
    )


def test_steps_hold_until_the_next() -> None:
    load = Load((step(10, 1), step(20, 2)))
    assert [load.at(Seconds(age)).cpu for age in (0, 10, 19.9, 20, 500)] == [1, 1, 1, 2, 2]
    changes = [Seconds(10), Seconds(20), Seconds(20), None]
    assert [load.next_change(Seconds(age)) for age in (0, 10, 19.5, 20)] == changes


def test_a_load_with_a_period_starts_over() -> None:
    load = Load((step(0, 1), step(20, 2)), Seconds(30))
    assert [load.at(Seconds(age)).cpu for age in (0, 20, 29, 30, 50, 60)] == [1, 2, 2, 1, 2, 1]
    changes = [Seconds(20), Seconds(30), Seconds(50), Seconds(60)]
    assert [load.next_change(Seconds(age)) for age in (0, 25, 30, 50)] == changes


@given(st.floats(0, 1e9), st.floats(0.1, 100))
def test_the_next_change_is_always_later(age: float, period: float) -> None:
    change = Load((step(0, 1), step(period / 3, 2)), Seconds(period)).next_change(Seconds(age))
    assert change is not None
    assert change > age


@pytest.mark.parametrize("steps", [(), (step(1, 1), step(1, 2)), (step(2, 1), step(1, 2))])
def test_steps_out_of_order_are_no_load(steps: tuple[LoadStep, ...]) -> None:
    with pytest.raises(LoadError, match="at least one step"):
        Load(steps)


def test_period_must_cover_all_steps() -> None:
    with pytest.raises(LoadError, match="the last step is at 20 s"):
        Load((step(0, 1), step(20, 2)), Seconds(20))


def recorded(text: str) -> Load:
    return recorded_load(parse_rows(text.splitlines(keepends=True), "r.csv"))


def test_recording_repeats_after_last_step() -> None:
    text = "seconds,cpu,mem,comment\n0,0.5,256Mi,idle\n60,3,1Gi,busy\n"
    steps = (
        LoadStep(Seconds(0), Demand(0.5, Bytes(256 * 1024**2))),
        LoadStep(Seconds(60), Demand(3, Bytes(1024**3))),
    )
    assert recorded(text) == Load(list(steps), Seconds(120))
    assert recorded("seconds,cpu,mem\n0,1,1Gi\n").period is None


def test_recording_without_memory_uses_idle_memory() -> None:
    assert recorded("seconds,cpu_cores\n0,0.5\n").at(Seconds(0)) == Demand(0.5, IDLE_MEMORY)


def test_recording_without_rows_is_no_load() -> None:
    with pytest.raises(LoadError, match="a load needs at least one step"):
        recorded("seconds,cpu_cores\n")
