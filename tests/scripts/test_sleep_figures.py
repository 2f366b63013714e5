"""Figures of many sleeps: medians and maxima, and what is not clean."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from scripts.bench.sleep_figures import STEPS, SleepFigures, table

FIGURES = SleepFigures(
    idle=[0.2, 0.3, 0.7],
    new=[0.5, 0.9],
    moved=[0.4, 0.6],
    steps=[[0.5, 0.1, 0.2, 0.1, 0.6, 0.1], [0.6, 0.1, 0.2, 0.1, 0.7, 0.2]],
    sizes=[60.0, 64.0, 91.0],
    sessions=13,
    lost=0,
)


def printed(figures: SleepFigures) -> list[str]:
    """The lines, without frames and padding."""
    console = Console(width=100, record=True)
    console.print(table(figures))
    return [" ".join(line.replace("│", " ").split()) for line in console.export_text().splitlines()]


def test_median_and_longest_stand_beside_each_other() -> None:
    lines = printed(FIGURES)
    assert FIGURES.is_clean
    assert "0 of 13 sessions lost" in lines
    assert "idle session answered 0.30 s 0.70 s" in lines
    assert "idle session answered on another node 0.50 s 0.60 s" in lines
    assert "falling asleep 1.75 s 1.90 s" in lines
    assert f"{STEPS[4]} 0.65 s 0.70 s" in lines
    assert "image 64 MiB 91 MiB" in lines


def test_lost_session_is_not_clean() -> None:
    lost = replace(FIGURES, lost=1)
    assert not lost.is_clean
    assert "1 of 13 sessions lost" in printed(lost)


def test_bench_without_move_proves_too_little() -> None:
    assert not replace(FIGURES, moved=[]).is_clean


def test_no_answer_proves_nothing() -> None:
    nothing = SleepFigures()
    assert not nothing.is_clean
    assert not any("answered" in line for line in printed(nothing))
