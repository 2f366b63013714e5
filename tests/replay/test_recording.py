"""Recordings: read with the line of what is wrong, laid on a grid, shrunk by speed, generated from a seed."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from deploy.neonvm.simulated.recording_rows import RecordingError
from scripts.autoscale.replay.generate import SHAPES, generate
from scripts.autoscale.replay.recording import (
    Recording,
    files_of,
    read_recording,
    round_up,
    round_up_all,
    timeline,
    warnings_of,
    write_recording,
)


def recording(seconds: list[float], cores: list[float]) -> Recording:
    return Recording("r", np.array(seconds), np.array(cores))


def test_recording_starts_at_zero(tmp_path: Path) -> None:
    plain, with_memory = tmp_path / "plain.csv", tmp_path / "memory.csv"
    plain.write_text("seconds,cpu_cores\n100,1.5\n\n160,2\n")
    with_memory.write_text("seconds,cpu_cores,mem_bytes\n0,1,1000\n60,2,2000\n")
    first, second = read_recording(plain), read_recording(with_memory)
    assert (first.name, first.seconds.tolist(), first.cores.tolist(), first.mem_bytes) == (
        "plain",
        [0, 60],
        [1.5, 2],
        None,
    )
    assert second.mem_bytes is not None
    assert second.mem_bytes.tolist() == [1000, 2000]


@pytest.mark.parametrize("text", ["seconds,cpu_cores\n0,1\n", "seconds,cpu_cores\n0,0\n1,0\n"])
def test_recording_without_demand_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(RecordingError, match=r"bad\.csv: expected at least two rows, and a demand above zero$"):
        read_recording(path)


def test_reading_is_announced(tmp_path: Path) -> None:
    path, seen = tmp_path / "r.csv", list[str]()
    path.write_text("seconds,cpu_cores\n" + "".join(f"{second},1\n" for second in range(200_001)))
    read_recording(path, seen.append)
    assert seen == ["reading r", "reading r (200,000 rows)"]


def test_suffix_of_recordings_has_any_case(tmp_path: Path) -> None:
    for name in ("b.csv", "a.CSV", "c.csv.GZ", "notes.txt", "notes.gz"):
        (tmp_path / name).touch()
    assert [path.name for path in files_of([tmp_path])] == ["a.CSV", "b.csv", "c.csv.GZ"]


def test_value_holds_until_the_next() -> None:
    line = timeline(recording([0, 7, 60, 67], [1, 2, 3, 1]))
    assert (line.step, line.demand.tolist()) == (5.0, pytest.approx([1, 1.6] + [2] * 10 + [3, 1.8]))


def test_steps_of_fine_recordings_are_means() -> None:
    seconds = [0.25 * at for at in range(4000)]
    line = timeline(recording(seconds, [1.0, 8.0, 8.0, 8.0] * 1000))
    assert (line.step, set(line.demand.tolist())) == (1.0, {6.25})
    faster = timeline(recording([float(at) for at in range(4000)], [1.0, 8.0, 8.0, 8.0] * 1000), speed=20)
    assert (len(line.demand), faster.demand.tolist()) == (1000, pytest.approx([6.25] * 200, rel=1e-12))


@pytest.mark.parametrize("speed", [1, 3, 7, 20])
def test_constant_step_is_exact(speed: int) -> None:
    cores = [0.1 + at % 7 / 3 for at in range(50_000)]
    line = timeline(recording([at * 5.0 * speed for at in range(50_000)], cores), speed)
    assert line.demand.tolist() == cores


def test_warm_up_is_a_day_or_ten_minutes() -> None:
    coarse = recording([0, 300, 3 * 86_400], [1, 2, 4.4])
    fine = recording(list(range(7200)), [1.0] * 7200)
    assert [timeline(coarse, speed).warm_up for speed in (1, 20)] == [17_280, 864]
    assert [(timeline(fine, speed).step, timeline(fine, speed).warm_up) for speed in (1, 2)] == [(1.0, 600), (1.0, 300)]
    assert timeline(coarse).cap == 5.0
    assert timeline(coarse, 20).scored_hours == pytest.approx(2 * 24 / 20, rel=0.001)


def test_warm_up_of_short_recording_is_a_tenth() -> None:
    assert timeline(recording([0, 3600], [1, 2])).warm_up == 72


@pytest.mark.parametrize(
    ("cores", "expected"), [(0, 0.25), (0.25, 0.25), (0.26, 0.5), (3, 3), (0.1 + 0.2 + 0.45, 0.75)]
)
def test_sizes_are_whole_units_and_at_least_one(cores: float, expected: float) -> None:
    assert (round_up(cores), round_up_all(np.array([cores])).tolist()) == (expected, [expected])


@pytest.mark.parametrize("shape", SHAPES)
def test_seed_determines_the_recording(shape: str, tmp_path: Path) -> None:
    first, again, other = generate(shape, 1), generate(shape, 1), generate(shape, 2)
    assert np.array_equal(first.cores, again.cores)
    assert not np.array_equal(first.cores, other.cores)
    assert 0 < first.cores.min() <= first.cores.max() <= 8
    write_recording(first, tmp_path / "r.csv")
    assert np.array_equal(read_recording(tmp_path / "r.csv").cores, first.cores)


def test_written_recording_reads_back_exactly(tmp_path: Path) -> None:
    late = np.array([0.0, 1_000_000.0, 1_000_001.0, 1_000_002.25])
    written = Recording("r", late, np.array([0.1, 1 / 3, 2.0, 1e-9]), np.array([3_447_423_795.0, 1, 2, 2**53]))
    write_recording(written, tmp_path / "r.csv")
    found = read_recording(tmp_path / "r.csv")
    assert found.mem_bytes is not None
    assert written.mem_bytes is not None
    assert np.array_equal(
        np.column_stack((found.seconds, found.cores, found.mem_bytes)),
        np.column_stack((written.seconds, written.cores, written.mem_bytes)),
    )


def test_memory_is_written_where_there_is_some(tmp_path: Path) -> None:
    write_recording(Recording("r", np.array([0.0, 1]), np.array([1.0, 2]), np.array([10.0, 20])), tmp_path / "r.csv")
    assert (tmp_path / "r.csv").read_text() == "seconds,cpu_cores,mem_bytes\n0,1,10\n1,2,20\n"


def test_long_file_is_read_in_little_memory(tmp_path: Path) -> None:
    """A month of seconds once took gigabytes, because each number was a Python object."""
    path = tmp_path / "r.csv"
    path.write_text("seconds,cpu_cores\n" + "".join(f"{second},1.5\n" for second in range(20_000)))
    tracemalloc.start()
    try:
        found = read_recording(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(found.seconds), found.seconds[-1]) == (20_000, 19_999.0)
    # Two numbers of eight bytes each, in at most six copies.
    assert peak < 20_000 * 2 * 8 * 6


def test_too_long_recording_is_refused() -> None:
    with pytest.raises(RecordingError, match=r"^r: 1\.15741e\+07 days at this speed are too long to replay$"):
        timeline(recording([0, 10, 1e12], [1, 1, 1]))


@pytest.mark.parametrize(
    ("seconds", "note"),
    [
        ([0, 60, 120, 180], None),
        ([0, 60, 1200, 1260, 1320], None),
        ([0, 300, 3900, 4200], None),
        ([0, 60_000, 120_000], "r: a value every 60000 s; if its times are milliseconds, divide them by 1000"),
        (
            [0, 60, 120, 86_520, 86_580],
            "r: no value for 24.0 h from second 120 on: the last one is used",
        ),
        ([0, 1, 2, 3602, 3603], "r: no value for 1.0 h from second 2 on: the last one is used"),
    ],
)
def test_odd_times_are_told(seconds: list[float], note: str | None) -> None:
    assert warnings_of(recording(seconds, [1.0] * len(seconds))) == ([] if note is None else [note])


def test_notes_on_columns_are_warnings() -> None:
    odd = Recording("r", np.array([0.0, 60_000]), np.array([1.0, 1]), notes=("ignored the columns 'host'",))
    assert warnings_of(odd) == [
        "r: ignored the columns 'host'",
        "r: a value every 60000 s; if its times are milliseconds, divide them by 1000",
    ]
