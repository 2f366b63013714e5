"""Resamples recordings to the simulation's steps; each has a weight in the fleet (S4.13, B.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.units import Seconds
from scripts.autoscale.replay.generate import DAY, generate
from scripts.autoscale.replay.recording import Floats, Recording, read_recordings, step_means, times_at

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

MIX: Final = {"diurnal": 0.56, "step": 0.12, "spike": 0.18, "on-off": 0.12, "noisy": 0.02}
"""Share of the fleet per generated shape, if no recordings are given."""

PEAK: Final = 99.5
"""Percentile of a recording that counts as its peak."""
CACHE_WINDOW: Final = Seconds(3600.0)
IDLE_MEM_SHARE: Final = 0.25
"""Share of its peak memory that a VM uses after an idle hour."""


@dataclass(frozen=True)
class RecordingGrid:
    """All recordings, resampled and concatenated.

    ``cores``, ``mem`` and ``is_new`` have one value per step: shares of the peak, and True if either differs from the
    step before. ``base``, ``length`` and ``weight`` have one value per recording: its first step, its number of steps,
    and the share of the fleet that replays it.
    """

    cores: Floats
    mem: Floats
    is_new: Flags
    base: Ints
    length: Ints
    weight: Floats


def read_grid(paths: Sequence[Path], step: Seconds, speed: float, seed: int) -> RecordingGrid:
    """Resample recordings: files, folders, or generated ones. Raises ``RecordingError`` and ``OSError``."""
    if paths:
        recordings = read_recordings(paths)
        weights = [1.0] * len(recordings)
    else:
        recordings = [generate(shape, seed) for shape in MIX]
        weights = list(MIX.values())
    return resample(recordings, weights, step, speed)


def resample(recordings: Sequence[Recording], weights: Sequence[float], step: Seconds, speed: float) -> RecordingGrid:
    """Resample ``recordings`` to steps of ``step`` seconds, replayed ``speed`` (> 0) times faster.

    Raises ``RecordingError``.
    """
    parts = [_resample_one(recording, step, speed) for recording in recordings]
    length = np.array([len(cores) for cores, _ in parts], dtype=np.int64)
    # Recordings repeat, so the first step follows the last one.
    changed = [(cores != np.roll(cores, 1)) | (mem != np.roll(mem, 1)) for cores, mem in parts]
    return RecordingGrid(
        cores=np.concatenate([cores for cores, _ in parts]),
        mem=np.concatenate([mem for _, mem in parts]),
        is_new=np.concatenate(changed),
        base=np.concatenate([[0], np.cumsum(length)[:-1]]).astype(np.int64),
        length=length,
        weight=np.array(weights) / sum(weights),
    )


def _resample_one(recording: Recording, step: Seconds, speed: float) -> tuple[Floats, Floats]:
    seconds = times_at(recording, speed, step)
    cores = _shares_of_peak(_step_means(seconds, recording.cores, step))
    if recording.mem_bytes is not None and recording.mem_bytes.max() > 0:
        # Rounded, because each change wakes an agent.
        return cores, np.round(_shares_of_peak(_step_means(seconds, recording.mem_bytes, step)), 2)
    # Not recorded: memory follows the highest demand of the last hour, as a database's cache does.
    cached = _rolling_maximum(np.minimum(cores, 1.0), max(1, round(CACHE_WINDOW / speed / step)))
    return cores, np.round(IDLE_MEM_SHARE + (1 - IDLE_MEM_SHARE) * cached, 2)


def _step_means(seconds: Floats, values: Floats, step: Seconds) -> Floats:
    """Means over whole steps; each of ``values`` holds until the next one."""
    # The last value holds for the median interval.
    end = float(seconds[-1] + np.median(np.diff(seconds)))
    return step_means(seconds, values, step, max(1, int(end // step)))


def _shares_of_peak(values: Floats) -> Floats:
    """``values`` divided by their peak; rounded, so that equal demands compare equal."""
    # If all demand is in the last, partial step, the percentile is 0.
    peak = float(np.percentile(values, PEAK)) or float(values.max()) or 1.0
    return np.asarray(np.round(values / peak, 5))


def _rolling_maximum(values: Floats, steps: int) -> Floats:
    """Maximum of the last ``steps`` values at each step of a repeating recording."""
    steps = min(steps, len(values))
    most, covered = values, 1
    while covered < steps:
        # The covered span doubles with each pass.
        shift = min(covered, steps - covered)
        most = np.maximum(most, np.roll(most, shift))
        covered += shift
    return most


def steps_of_a_day(step: Seconds, speed: float) -> int:
    """Number of steps in a recorded day."""
    return max(1, round(DAY / speed / step))
