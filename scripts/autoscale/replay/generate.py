"""Generates recordings: five shapes of demand.

Four are sampled every 5 min for 14 days, like the traces that clouds publish; ``noisy`` every second for two hours. The
same seed gives the same recordings on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from scripts.autoscale.replay.recording import Floats, Recording

FIVE_MINUTES: Final = 300.0
DAY: Final = 86_400.0
_DAYS: Final = 14
_NOISY_SECONDS: Final = 7_800

Random = np.random.Generator
Shape = Callable[[Floats, Random], Floats]
"""Demand in vCPUs at times in seconds."""


def _diurnal(at: Floats, random: Random) -> Floats:
    """Low at night, high during the day, half of that at weekends."""
    day = 0.5 - 0.5 * np.cos(2 * np.pi * (at / DAY - 0.125))
    weekday = np.where((at // DAY) % 7 < 5, 1.0, 0.5)
    # Gamma-distributed noise with mean 1 keeps demand positive.
    return 0.4 + 3.2 * weekday * day**2 * random.gamma(60, 1 / 60, at.size)


def _step(at: Floats, random: Random) -> Floats:
    """Levels that last for most of a day, and then change abruptly."""
    # 200 samples of five minutes.
    level = np.repeat(random.uniform(0.4, 5.0, at.size // 200 + 1), 200)[: at.size]
    return level * random.gamma(400, 1 / 400, at.size)


def _spike(at: Floats, random: Random) -> Floats:
    """Almost idle, with rare spikes that rise abruptly and fade within an hour."""
    demand = 0.2 * random.gamma(20, 1 / 20, at.size)
    for start in _starts(random, at.size, 1 / 90):
        height, length = random.uniform(1.5, 6.0), int(random.integers(2, 12))
        end = min(at.size, start + length)
        # A time constant of four samples: 20 minutes.
        demand[start:end] += height * np.exp(-np.arange(end - start) / 4)
    return demand


def _starts(random: Random, count: int, probability: float) -> list[int]:
    """Random indices below ``count``, each with this probability."""
    return [int(index) for index in np.flatnonzero(random.random(count) < probability)]


def _on_off(at: Floats, random: Random) -> Floats:
    """Batches: one or two hours of work, then a few idle hours."""
    demand, index = np.empty(at.size), 0
    while index < at.size:
        busy, idle = int(random.integers(10, 24)), int(random.integers(24, 60))
        demand[index : index + busy] = random.uniform(2.0, 4.0)
        demand[index + busy : index + busy + idle] = 0.15
        index += busy + idle
    return demand * random.gamma(300, 1 / 300, at.size)


def _noisy(at: Floats, random: Random) -> Floats:
    """Per-second transactions: a level that changes every two minutes, bursts, and sometimes all four CPUs."""
    level = np.repeat(random.choice([0.1, 0.7, 1.0, 1.5], at.size // 120 + 1), 120)[: at.size]
    demand = level * random.gamma(8, 1 / 8, at.size)
    for start in _starts(random, at.size, 1 / 30):
        demand[start : start + int(random.integers(1, 5))] += random.uniform(0.5, 2.2)
    # Every 15 minutes all four CPUs are busy for 20 to 69 s.
    for start in range(400, at.size, 900):
        demand[start : start + int(random.integers(20, 70))] = 4.0
    return demand


SHAPES: Final[Mapping[str, tuple[Shape, float, float]]] = {
    "diurnal": (_diurnal, FIVE_MINUTES, _DAYS * DAY),
    "step": (_step, FIVE_MINUTES, _DAYS * DAY),
    "spike": (_spike, FIVE_MINUTES, _DAYS * DAY),
    "on-off": (_on_off, FIVE_MINUTES, _DAYS * DAY),
    "noisy": (_noisy, 1.0, _NOISY_SECONDS),
}
"""All shapes by name, with sampling interval and length in seconds."""


def generate(shape: str, seed: int) -> Recording:
    """Generates a recording of a shape of ``SHAPES``."""
    make, every, length = SHAPES[shape]
    seconds = np.arange(0.0, length, every)
    # The shape is part of the seed, so that shapes have independent noise.
    random = np.random.Generator(np.random.PCG64([seed, *shape.encode()]))
    return Recording(shape, seconds, np.clip(make(seconds, random), 0.01, 8.0))
