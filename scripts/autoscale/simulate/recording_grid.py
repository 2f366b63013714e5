"""Resamples recordings to the simulation's time grid, with the weight that each has in a fleet (S4.13, B.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.units import Seconds
from scripts.autoscale.replay.generate import DAY, generate
from scripts.autoscale.replay.recording import Floats, Recording, read_recordings, step_means

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

MIX: Final = {"diurnal": 0.56, "step": 0.12, "spike": 0.18, "on-off": 0.12, "noisy": 0.02}
"""The share of the fleet that plays each generated shape when no recordings are given."""

PEAK: Final = 99.5
"""The percentile of a recording that counts as its peak."""
WARM: Final = Seconds(3600.0)
COLD_SHARE: Final = 0.25
"""The share of a VM's memory that is still in use after an idle hour."""


@dataclass(frozen=True)
class RecordingGrid:
    """All recordings on one grid, end to end.

    ``cores`` and ``mem`` are shares of the peak; ``is_new`` marks steps where either differs from the step before.
    Recording ``r`` occupies ``length[r]`` steps from ``base[r]`` on; the share ``weight[r]`` of the fleet plays it.
    """

    cores: Floats
    mem: Floats
    is_new: Flags
    base: Ints
    length: Ints
    weight: Floats


def read_grid(paths: Sequence[Path], step: Seconds, speed: float, seed: int) -> RecordingGrid:
    """The recordings at ``paths`` (files and folders), or generated ones. Raises ``RecordingError``, ``OSError``."""
    if paths:
        recordings = read_recordings(paths)
        weights = [1.0] * len(recordings)
    else:
        recordings = [generate(shape, seed) for shape in MIX]
        weights = list(MIX.values())
    return lay_on_grid(recordings, weights, step, speed)


def lay_on_grid(
    recordings: Sequence[Recording], weights: Sequence[float], step: Seconds, speed: float
) -> RecordingGrid:
    """Resamples ``recordings`` to a grid of ``step`` seconds, ``speed`` (> 0) times faster."""
    parts = [_lay_one(recording, step, speed) for recording in recordings]
    length = np.array([len(cores) for cores, _ in parts], dtype=np.int64)
    # A recording repeats when it ends, so its first step follows its last one.
    changed = [(cores != np.roll(cores, 1)) | (mem != np.roll(mem, 1)) for cores, mem in parts]
    return RecordingGrid(
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
        # Rounded: a change of less than a hundredth is not worth a recheck of every agent.
        return cores, np.round(_shares(_means(seconds, recording.mem_bytes, step)), 2)
    # Without recorded memory, memory follows the highest demand of the last hour, as a database's cache does.
    warm = _rolling_maximum(np.minimum(cores, 1.0), max(1, round(WARM / speed / step)))
    return cores, np.round(COLD_SHARE + (1 - COLD_SHARE) * warm, 2)


def _means(seconds: Floats, values: Floats, step: Seconds) -> Floats:
    """The mean over every whole step of ``values``, each of which holds until the next."""
    # The last value holds as long as the others usually do.
    end = float(seconds[-1] + np.median(np.diff(seconds)))
    return step_means(seconds, values, step, max(1, int(end // step)))


def _shares(values: Floats) -> Floats:
    """``values`` divided by their peak; rounded, so that equal demand is an equal number."""
    peak = float(np.percentile(values, PEAK)) or float(values.max()) or 1.0  # the last, partial step may have it all
    return np.asarray(np.round(values / peak, 5))


def _rolling_maximum(values: Floats, steps: int) -> Floats:
    """The maximum of the last ``steps`` values of a recording that repeats."""
    steps = min(steps, len(values))
    most, covered = values, 1
    while covered < steps:
        # The covered span doubles with each round, so an hour of steps takes only a few.
        shift = min(covered, steps - covered)
        most = np.maximum(most, np.roll(most, shift))
        covered += shift
    return most


def steps_of_a_day(step: Seconds, speed: float) -> int:
    """The number of steps of a recorded day."""
    return max(1, round(DAY / speed / step))
