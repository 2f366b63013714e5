"""Recordings laid on the simulation's grid, and which of them a fleet plays (S4.13, B.5).

Rules that hold here:

- A step's demand is the mean over the step. A recording that ends begins again.
- Demand and memory are shares of the recording's own 99.5th percentile: the VM that plays it says how much that is.
- Where no memory was recorded, it follows the greatest demand of the last hour: databases warm up and keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.units import Seconds
from scripts.autoscale.replay.generate import DAY, generate
from scripts.autoscale.replay.recording import Floats, Recording, files_of, read_recording

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

MIX: Final = {"diurnal": 0.56, "step": 0.12, "spike": 0.18, "on-off": 0.12, "noisy": 0.02}
"""How much of a fleet plays each shape where no recordings are given."""

PEAK: Final = 99.5
WARM: Final = Seconds(3600.0)
COLD_SHARE: Final = 0.25
"""What of a VM's memory is in use even after an idle hour."""


@dataclass(frozen=True)
class Tracks:
    """All recordings on one grid, end to end.

    ``cores`` and ``mem`` are shares of the peak; ``is_new`` says where either differs from the step before. Recording
    ``r`` has the ``length[r]`` steps from ``base[r]`` on, and is played by the part ``weight[r]`` of the fleet.
    """

    cores: Floats
    mem: Floats
    is_new: Flags
    base: Ints
    length: Ints
    weight: Floats


def read_tracks(paths: Sequence[Path], step: Seconds, speed: float, seed: int) -> Tracks:
    """The recordings at ``paths`` (files and folders), or generated ones. Raises ``RecordingError``, ``OSError``."""
    if paths:
        recordings = [read_recording(path) for path in files_of(paths)]
        weights = [1.0] * len(recordings)
    else:
        recordings = [generate(shape, seed) for shape in MIX]
        weights = list(MIX.values())
    return lay(recordings, weights, step, speed)


def lay(recordings: Sequence[Recording], weights: Sequence[float], step: Seconds, speed: float) -> Tracks:
    """``recordings`` on a grid of ``step`` seconds, ``speed`` (> 0) times faster."""
    parts = [_lay_one(recording, step, speed) for recording in recordings]
    length = np.array([len(cores) for cores, _ in parts], dtype=np.int64)
    changed = [(cores != np.roll(cores, 1)) | (mem != np.roll(mem, 1)) for cores, mem in parts]
    return Tracks(
        cores=np.concatenate([cores for cores, _ in parts]),
        mem=np.concatenate([mem for _, mem in parts]),
        is_new=np.concatenate(changed),
        base=np.concatenate([[0], np.cumsum(length)[:-1]]).astype(np.int64),
        length=length,
        weight=np.array(weights) / sum(weights),
    )


def _lay_one(recording: Recording, step: Seconds, speed: float) -> tuple[Floats, Floats]:
    seconds = recording.seconds / speed
    cores = _shares(_means(seconds, recording.cores, step))
    if recording.mem_bytes is not None and recording.mem_bytes.max() > 0:
        return cores, np.round(_shares(_means(seconds, recording.mem_bytes, step)), 2)
    warm = _most_lately(np.minimum(cores, 1.0), max(1, round(WARM / speed / step)))
    return cores, np.round(COLD_SHARE + (1 - COLD_SHARE) * warm, 2)


def _means(seconds: Floats, values: Floats, step: Seconds) -> Floats:
    """The mean of ``values``, each in force until the next, over every whole step."""
    every = float(np.median(np.diff(seconds)))
    edges = np.append(seconds, seconds[-1] + every)
    amounts = np.append(0.0, np.cumsum(values * np.diff(edges)))
    steps = max(1, int(edges[-1] // step))
    return np.asarray(np.diff(np.interp(np.arange(steps + 1) * step, edges, amounts)) / step)


def _shares(values: Floats) -> Floats:
    """``values`` over their peak; rounded, so that what stays the same is the same number."""
    peak = float(np.percentile(values, PEAK)) or float(values.max())
    return np.asarray(np.round(values / peak, 5))


def _most_lately(values: Floats, steps: int) -> Floats:
    """The greatest of the last ``steps`` values, the recording being played round and round."""
    steps = min(steps, len(values))
    most, covered = values, 1
    while covered < steps:
        shift = min(covered, steps - covered)
        most = np.maximum(most, np.roll(most, shift))
        covered += shift
    return most


def steps_of_a_day(step: Seconds, speed: float) -> int:
    """How many steps a recorded day takes."""
    return max(1, round(DAY / speed / step))
