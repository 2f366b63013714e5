"""What simulated VMs play: idle, waves shifted from VM to VM, or a recording."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from math import pi, sin
from pathlib import Path
from typing import Final

from deploy.local.cluster.progress import StepFailedError
from deploy.neonvm.simulated.simulated_load import Demand, Load, LoadError, Step, parse_recording
from protocol.messages import ObjectName
from protocol.units import Bytes, Seconds

IDLE: Final = Load.constant(0.02, Bytes(48 * 1024**2))
_PERIOD: Final = 180
_STEP: Final = 5
_PEAK_CPU: Final = 2.2
_PEAK_MEM: Final = Bytes(400 * 1024**2)


def load_of(name: str) -> Callable[[ObjectName], Load]:
    """The load of each VM: ``idle``, ``waves``, or that of the recording in the file ``name`` (CSV, repeated)."""
    if name in {"", "idle"}:
        return lambda _: IDLE
    if name == "waves":
        return lambda vm: waves(zlib.crc32(str(vm).encode()) % _PERIOD)
    try:
        recorded = parse_recording(Path(name).read_text(), repeat=True)
    except (OSError, LoadError) as error:
        raise StepFailedError(f"the load {name!r} is not idle, waves or a readable recording: {error}") from error
    return lambda _: recorded


def waves(shift: int) -> Load:
    """Three minutes from idle to more than two busy CPUs and back, beginning ``shift`` seconds into them."""
    return Load([Step(Seconds(float(at)), _wave(at + shift)) for at in range(0, _PERIOD, _STEP)], Seconds(_PERIOD))


def _wave(at: int) -> Demand:
    height = max(0.0, sin(2 * pi * at / _PERIOD)) ** 2
    return Demand(0.02 + _PEAK_CPU * height, IDLE.steps[0].demand.mem + _PEAK_MEM.scaled(height))
