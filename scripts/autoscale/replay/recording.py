"""Recordings of demand as arrays, resampled to an even grid.

A value holds until the next one, and a step of the grid contains the mean over 5 s, or 1 s for finer recordings.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from deploy.neonvm.simulated.recording_file import open_recording
from deploy.neonvm.simulated.recording_rows import COLUMNS, RecordingError

Floats = NDArray[np.float64]

UNIT: Final = 0.25
"""Step of all allocations in vCPUs."""

COARSE_STEP: Final = 5.0
FINE_STEP: Final = 1.0
COARSE_WARM_UP: Final = 86_400.0
FINE_WARM_UP: Final = 600.0
CAP_UTILISATION: Final = 0.9
MOST_STEPS: Final = 20_000_000
"""Three years every 5 s, or eight months every second."""

_NEAR: Final = 1e-6
"""Tolerance, as a share of a step, for rounding errors in the time of a value."""

_SPARSE: Final = 900.0
"""Values further apart than this (s) are probably in milliseconds."""

_GAP: Final = 3600.0
_GAP_TIMES: Final = 20
"""A gap is at least this long in seconds, and this many times as long as the usual step."""

_ANNOUNCED: Final = 200_000
"""Rows between two messages."""

Announce = Callable[[str], None]
"""Shows what is being done."""


@dataclass(frozen=True)
class Recording:
    """Demand in vCPUs, and memory in bytes if recorded, from the times ``seconds`` on, which begin at 0.

    ``notes`` say how the file's columns are read.
    """

    name: str
    seconds: Floats
    cores: Floats
    mem_bytes: Floats | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_fine(self) -> bool:
        """True if values are less than 5 s apart."""
        return float(np.median(np.diff(self.seconds))) < COARSE_STEP


@dataclass(frozen=True)
class Timeline:
    """Demand in vCPUs at each step of ``step`` seconds; scores begin at index ``warm_up``."""

    name: str
    step: float
    demand: Floats
    warm_up: int
    cap: float

    @property
    def scored_hours(self) -> float:
        """Hours of the scored part."""
        return (len(self.demand) - self.warm_up) * self.step / 3600


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The files of ``paths``, and all CSV files of folders, also compressed. Raises ``RecordingError``."""
    files: list[Path] = []
    for path in paths:
        # Sorted, so that a replay has the same order on every machine.
        files_here = (
            sorted(entry for entry in path.glob("*") if entry.name.lower().endswith((".csv", ".csv.gz")))
            if path.is_dir()
            else [path]
        )
        if not files_here:
            raise RecordingError(f"{path}: no CSV file in this folder")
        files.extend(files_here)
    return files


def read_recordings(paths: Sequence[Path], announce: Announce = lambda _: None) -> list[Recording]:
    """Reads the files of ``files_of``, and prints warnings to standard error. Raises ``RecordingError``."""
    recordings = [read_recording(path, announce) for path in files_of(paths)]
    for warning in (warning for recording in recordings for warning in warnings_of(recording)):
        print(warning, file=sys.stderr)
    return recordings


def read_recording(path: Path, announce: Announce = lambda _: None) -> Recording:
    """Reads a recording (``deploy.neonvm.simulated.recording_rows``). Raises ``RecordingError``."""
    name = path.name[:-3] if path.name.lower().endswith(".gz") else path.name
    name = Path(name).stem
    with open_recording(path) as recorded:
        # Millions of rows as Python objects would take gigabytes.
        numbers, has_memory, notes = array("d"), recorded.has_memory, recorded.notes
        for number, row in enumerate(recorded.rows):
            if number % _ANNOUNCED == 0:
                announce(f"reading {name}" + (f" ({number:,} rows)" if number else ""))
            numbers.extend(row)
    table = np.asarray(numbers, dtype=np.float64).reshape(-1, len(COLUMNS))
    if len(table) < 2 or table[:, 1].max() <= 0:
        raise RecordingError(f"{path}: expected at least two rows, and a demand above zero")
    return Recording(name, table[:, 0], table[:, 1], table[:, 2] if has_memory else None, notes)


def warnings_of(recording: Recording) -> list[str]:
    """Warnings about columns, and times that are probably wrong.

    >>> warnings_of(Recording("a", np.array([0.0, 60.0]), np.array([1.0, 2.0]), notes=("ignored the columns 'host'",)))
    ["a: ignored the columns 'host'"]
    """
    steps, name = np.diff(recording.seconds), recording.name
    usual, longest = float(np.median(steps)), int(np.argmax(steps))
    warnings = [f"{name}: {note}" for note in recording.notes]
    if usual > _SPARSE:
        warnings += [f"{name}: a value every {usual:g} s; if its times are milliseconds, divide them by 1000"]
    elif steps[longest] >= max(_GAP, _GAP_TIMES * usual):
        hours, since = steps[longest] / 3600, recording.seconds[longest]
        warnings += [f"{name}: no value for {hours:.1f} h from second {since:g} on: the last one is used"]
    return warnings


def write_recording(recording: Recording, path: Path) -> None:
    """Writes ``seconds,cpu_cores``, and memory if recorded, such that reading gives the same numbers."""
    columns = [recording.seconds, recording.cores, *([] if recording.mem_bytes is None else [recording.mem_bytes])]
    rows = (",".join(map(_text, row)) for row in np.column_stack(columns).tolist())
    header = ",".join(COLUMNS[: len(columns)])
    path.write_text("\n".join((header, *rows, "")), encoding="utf-8")


def _text(number: float) -> str:
    """The shortest text of a number."""
    return str(int(number)) if number.is_integer() else repr(number)


def timeline(recording: Recording, speed: float = 1.0) -> Timeline:
    """Resamples a recording, ``speed`` (> 0) times faster, to its grid. Raises ``RecordingError`` if too long."""
    # Policies learn from the first 24 h (10 min of a fine recording), which are not scored.
    step, unscored = (FINE_STEP, FINE_WARM_UP) if recording.is_fine else (COARSE_STEP, COARSE_WARM_UP)
    seconds = times_at(recording, speed, step)
    demand = step_means(seconds, recording.cores, step, floor(seconds[-1] / step + _NEAR) + 1)
    # At a higher speed, the warm-up is shorter, too.
    warm_up = round(unscored / speed / step)
    if warm_up >= len(demand):
        # For a recording shorter than that, the warm-up is a tenth of it.
        warm_up = len(demand) // 10
    # The maximum size of the VM is peak / 0.9.
    return Timeline(recording.name, step, demand, warm_up, round_up(float(demand.max()) / CAP_UTILISATION))


def times_at(recording: Recording, speed: float, step: float) -> Floats:
    """The times of a recording, ``speed`` (> 0) times faster. Raises ``RecordingError`` if too long or too short."""
    seconds = recording.seconds / speed
    if seconds[-1] / step > MOST_STEPS:
        raise RecordingError(f"{recording.name}: {seconds[-1] / 86400:g} days at this speed are too long to replay")
    # A single step would need no decision.
    if speed > 1 and seconds[-1] < step:
        lasts = f"at this speed it lasts {seconds[-1]:g} s"
        raise RecordingError(f"{recording.name}: {lasts}, too short to replay: use a lower --speed")
    return seconds


def step_means(seconds: Floats, values: Floats, step: float, steps: int) -> Floats:
    """The mean over each of ``steps`` steps from 0 on. ``seconds`` start at 0; the last value holds forever.

    If one value holds for a whole step, the mean is exactly this value.

    >>> step_means(np.array([0.0, 2.5, 10.0]), np.array([1.0, 3.0, 2.0]), 5.0, 3).tolist()
    [2.0, 3.0, 2.0]
    """
    at = seconds / step
    rounded = np.rint(at)
    # Correct rounding errors of the division.
    at = np.where(np.abs(at - rounded) < _NEAR, rounded, at)
    edges = np.arange(steps + 1, dtype=np.float64)
    # Neither the value nor the step changes between two points.
    points = np.union1d(edges, at[at < steps])
    constant_values = values[np.searchsorted(at, points[:-1], side="right") - 1]
    begins = np.searchsorted(points, edges[:-1])
    return np.asarray(np.add.reduceat(constant_values * np.diff(points), begins), dtype=np.float64)


def round_up(cores: float) -> float:
    """Rounds up to at least one whole unit."""
    return max(1, ceil(cores / UNIT - 1e-9)) * UNIT


def round_up_all(cores: Floats) -> Floats:
    """``round_up`` of every value."""
    return np.maximum(1.0, np.ceil(cores / UNIT - 1e-9)) * UNIT
