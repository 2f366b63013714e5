"""Sleep in recordings: a VM sleeps after its load was small for long, and wakes with its next load."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.units import Seconds
from scripts.autoscale.replay.play import play
from scripts.autoscale.replay.recording import UNIT, Recording
from scripts.autoscale.replay.sleep_savings import savings, sleeping
from tests.replay.test_command import run

HOUR = 3600.0


@given(st.lists(st.sampled_from([0.0, UNIT / 2, UNIT, 4.0]), min_size=1, max_size=60), st.integers(1, 8))
def test_sleepers_have_been_idle_for_long(demand: list[float], steps: int) -> None:
    """The same, step by step: it sleeps where the last steps, and as many before, were all idle."""
    expected = [at >= steps and all(cores < UNIT for cores in demand[at - steps : at + 1]) for at in range(len(demand))]
    assert sleeping(np.array(demand), steps).tolist() == expected


def nights(days: int = 4) -> Recording:
    """Busy with two vCPUs for sixteen hours of each day, and idle for eight."""
    at = np.arange(0.0, days * 24 * HOUR, 300.0)
    return Recording("nights", at, np.where(at % (24 * HOUR) < 16 * HOUR, 2.0, 0.05))


def test_nights_are_saved() -> None:
    """The first day warms up; in each of the other nights the VM sleeps but for the first quarter of an hour."""
    (slept,) = savings(play([nights()], {"always": lambda line: np.ones(len(line.demand))}, 1.0), Seconds(900.0))
    assert (round(slept.hours), slept.sleeps) == (72, 3)
    assert slept.asleep == pytest.approx(3 * 7.75, abs=0.1)
    assert slept.reserved == pytest.approx({"always": slept.hours})
    assert slept.saved["always"] == pytest.approx(slept.asleep)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path, recording = tmp_path / "nights.csv", nights(2)
    rows = zip(recording.seconds, recording.cores, strict=True)
    path.write_text("seconds,cpu_cores\n" + "".join(f"{at},{cores}\n" for at, cores in rows))
    return str(path)


def test_command_tells_what_sleep_saves(trace: str) -> None:
    code, out, _ = run("--trace", trace, "--policy", "default", "--sleep", "15m")
    assert code == 0
    assert "nights: asleep for 32.1 % of 23.9 h, slept 1 times" in out
    assert "sleep saves at most (idle: below 0.25 vCPU)" in out
    code, out, _ = run("--trace", trace, "--policy", "default", "--sleep", "15m", "-o", "json")
    (slept,) = json.loads(out)["sleep"]
    assert 0 < slept["saved"]["default"] < slept["reserved"]["default"]
    assert "sleep" not in json.loads(run("--trace", trace, "--policy", "default", "-o", "json")[1])


@pytest.mark.parametrize("arguments", [["--sleep", "1s"], ["--sleep", "8d"], ["--sleep", "soon"], ["--group"]])
def test_sleep_that_makes_no_sense_is_refused(arguments: list[str], trace: str) -> None:
    more = ["--sleep", "15m"] if arguments == ["--group"] else []
    code, _, error = run("--trace", trace, *arguments, *more)
    assert (code, "--sleep" in error) == (2, True)
