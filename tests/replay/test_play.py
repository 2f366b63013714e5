"""Playing: every peer by its published rule on a demand small enough to follow, and the scores by hand."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from protocol.smoothing.policy import SmoothingPolicyError, parse_policy
from scripts.autoscale.replay.generate import SHAPES, generate
from scripts.autoscale.replay.peers import DAY, PLAYERS, play_policy
from scripts.autoscale.replay.play import Score, as_json, choose_players, overall, play, score, totals
from scripts.autoscale.replay.recording import Recording, Timeline, timeline
from tests.examples import examples


def line(demand: list[float], step: float = 5.0, warm_up: int = 0) -> Timeline:
    return Timeline("t", step, np.array(demand), warm_up, cap=8.0)


def test_floor_keeps_half_of_yesterdays_need() -> None:
    day = [0.25] * 9 * 12 + [4.0] * 3 * 12 + [0.25] * 12 * 12
    days = line(day * 2, step=300.0)
    plain, floored = (PLAYERS[name](days)[288:] for name in ("default", "default-floor"))
    before_nine = 9 * 12 - 1
    assert (plain[before_nine + 1], floored[before_nine + 1], plain.max()) == (0.25, 2.5, 5.0)
    assert (floored >= plain).all()
    assert floored[:before_nine].tolist() == plain[:before_nine].tolist()


def test_score_has_cost_shortage_and_changes() -> None:
    played = line([1.0, 1.0, 2.1, 1.9], step=900.0, warm_up=1)
    found = score(played, np.array([9.0, 1.0, 1.0, 2.0]))
    assert msgspec.structs.astuple(found) == pytest.approx((4.0 / 5.25, 100 * 1.1 / 5.0, 100 / 3, 1 / 0.75))


def test_score_of_zero_demand_has_no_cost() -> None:
    found = score(line([0.0, 0.0]), np.array([1.0, 1.0]))
    assert (np.isnan(found.cost), found.insufficient_percent) == (True, 0.0)
    assert np.isnan(overall([found]).cost)


def test_overall_averages_costs_geometrically() -> None:
    found = overall([Score(1, 1, 2, 3), Score(4, 3, 4, 5)])
    assert msgspec.structs.astuple(found) == pytest.approx((2.0, 2, 3, 4))


def test_decision_applies_at_next_step_in_units() -> None:
    as_needed = play_policy(parse_policy([{"model": {}}]))
    assert as_needed(line([1, 1.1, 20, 0, 0])).tolist() == [1, 1, 1.25, 8, 0.25]


@pytest.mark.parametrize(
    ("name", "demand", "step", "allocation"),
    [
        ("fixed-peak", [1, 2.1, 1], 5.0, [2.25, 2.25, 2.25]),
        ("fixed-p99.5", [1, 1, 1], 5.0, [1.25, 1.25, 1.25]),
        ("agent-last", [0.9, 1.8, 0.9], 5.0, [1, 1, 2]),
        ("agent-last", [0.9, 1.8, 1.8, 1.8, 1.8, 1.8, 1.8], 1.0, [1, 1, 1, 1, 1, 1, 2]),
        ("agent-1m", [0.9, 7.2, 7.2], 5.0, [1, 1, 1.75]),
        ("hpa-load", [0.9, 1.8] + [0.9] * 62, 5.0, [1, 1] + [2] * 61 + [2]),
        ("hpa", [0.8, 0.85, 0.95, 4, 4, 4, 4, 4, 4, 4], 15.0, [1, 1, 1, 1.25, 1.75, 2.25, 3, 3.75, 4.75, 4.75]),
        ("vpa", [1, 1, 1], 60.0, [1, 1, 1]),
    ],
)
def test_a_peer_follows_its_published_rule(
    name: str, demand: list[float], step: float, allocation: list[float]
) -> None:
    assert PLAYERS[name](line(demand, step)).tolist() == allocation


def test_vpa_follows_lasting_change() -> None:
    allocation = PLAYERS["vpa"](line([1.0] * 1440 + [0.1] * 4 * 1440, step=60.0))
    assert (allocation[1440], allocation[-1]) == (1.25, 0.25)


def test_percentile_rule_grows_after_two_fifths_of_window() -> None:
    allocation = PLAYERS["percentile"](line([1.0] * 60 + [2.0] * 40))
    assert np.flatnonzero(np.diff(allocation)).tolist() == [84]


def test_no_policy_exceeds_the_cap() -> None:
    recordings = [generate(shape, 3) for shape in SHAPES]
    played = play(recordings, PLAYERS, speed=200.0)
    for one in played:
        assert one.scores.keys() == PLAYERS.keys()
        for name, allocation in one.allocations.items():
            assert len(allocation) == len(one.timeline.demand)
            assert allocation.min() >= 0.25
            assert name.startswith("fixed") or allocation.max() <= one.timeline.cap


def test_default_policy_beats_original_and_fixed_size() -> None:
    recordings = [generate(shape, 5) for shape in ("diurnal", "step", "spike", "on-off")]
    names = ["default", "agent-last", "fixed-peak"]
    found = totals(play(recordings, choose_players(names), speed=100.0))
    assert found["default"].insufficient_percent < found["agent-last"].insufficient_percent
    assert found["default"].cost < 0.7 * found["fixed-peak"].cost


def beginning(recording: Recording, days: int) -> Recording:
    """The first days of a recording without memory."""
    kept = recording.seconds < days * DAY
    return replace(recording, seconds=recording.seconds[kept], cores=recording.cores[kept])


@pytest.mark.parametrize(
    ("shapes", "speed", "most"),
    [
        (["diurnal", "step", "spike", "on-off"], 20.0, Score(1.65, 1.5, 2.0, 17)),
        (["diurnal", "step", "spike", "on-off"], 1.0, Score(1.25, 0.2, 0.5, 3)),
        (["noisy"], 1.0, Score(2.2, 2.8, 6.0, 70)),
    ],
)
def test_default_policy_keeps_its_figures(shapes: list[str], speed: float, most: Score) -> None:
    recordings = [beginning(generate(shape, 1), days=examples(2, 14)) for shape in shapes]
    found = totals(play(recordings, choose_players(["default"]), speed))["default"]
    figures, limits = msgspec.structs.astuple(found), msgspec.structs.astuple(most)
    assert [figure <= limit for figure, limit in zip(figures, limits, strict=True)] == [True] * 4, found


def test_a_policy_file_is_played_under_its_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("stages:\n- model: {slope: 2}\n")
    players = choose_players([str(path), "fixed-peak"])
    assert list(players) == ["mine", "fixed-peak"]
    assert players["mine"](line([1, 1])).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "nor a readable file"),
        ("stages: [", "invalid YAML"),
        ("[" * 3000, "levels of nesting"),
        ("stages:\n- segments: {}\n", r"stages\[0\].segments: Object missing required field `steps`"),
    ],
)
def test_error_of_policy_names_file_and_field(text: str | None, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SmoothingPolicyError, match=problem):
        choose_players([str(path)])


def test_json_holds_every_score_by_recording_and_policy() -> None:
    recording = Recording("r", np.array([0.0, 600.0]), np.array([1.0, 1.0]))
    document = json.loads(as_json(play([recording], choose_players(["fixed-peak"]), 1.0), 1.0))
    figures = {"cost": 1.0, "insufficient_percent": 0.0, "throttled_percent": 0.0, "actions_per_hour": 0.0}
    hours = timeline(recording).scored_hours
    assert document == {
        "speed": 1.0,
        "recordings": [
            {"name": "r", "step_seconds": 5.0, "scored_hours": hours, "scores": {"fixed-peak": figures}},
        ],
        "overall": {"fixed-peak": figures},
    }


@pytest.mark.parametrize(("name", "numbers"), [("agent-1m", 7), ("hpa", 4)])
def test_long_replay_takes_little_memory(name: str, numbers: int) -> None:
    """Ten million steps once took a gigabyte as Python objects."""
    steps = 200_000
    line = Timeline("long", 5.0, np.linspace(0.1, 3.9, steps), 0, 4.5)
    tracemalloc.start()
    try:
        PLAYERS[name](line)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < steps * 8 * numbers
