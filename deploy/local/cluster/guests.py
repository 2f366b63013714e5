"""The guests of a cluster: QEMU (the image is built if it does not exist) or simulated, and their load."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from math import pi, sin
from pathlib import Path
from typing import Final

from deploy.local.cluster.progress import StepFailedError
from deploy.local.cluster.settings import LARGE_FLEET
from deploy.local.cluster.spec import ClusterSpec
from deploy.neonvm.guests.qemu_guests import QemuGuests
from deploy.neonvm.ports import PodSockets
from deploy.neonvm.simulated.recording_file import open_recording
from deploy.neonvm.simulated.recording_rows import RecordingError
from deploy.neonvm.simulated.simulated_guest import SimulatedGuests
from deploy.neonvm.simulated.simulated_load import IDLE_MEMORY, Demand, Load, LoadError, LoadStep, recorded_load
from protocol.messages import ObjectName
from protocol.runtime.clock import Clock
from protocol.units import Bytes, Seconds
from vm_image.build import cached_image, ensure_image
from vm_image.host import BuildError


async def make_guests(
    spec: ClusterSpec, sockets: PodSockets, clock: Clock, report: Callable[[str], None]
) -> QemuGuests | SimulatedGuests:
    """Prepare the guests. Raises ``StepFailedError`` and ``GuestError``, with a remedy."""
    if spec.guests == "simulated":
        load = spec.load or ("waves" if spec.vms else "idle")
        return SimulatedGuests(sockets, clock, load_of(load, spec.vms))
    try:
        image = cached_image()
        if image is None:
            image = await asyncio.to_thread(ensure_image, report)
    except BuildError as error:
        raise StepFailedError(f"the guest image cannot be built: {error}") from error
    return await QemuGuests.prepare(image, sockets, clock)


IDLE: Final = Load.constant(0.02, IDLE_MEMORY)
_PERIOD: Final = 180  # seconds
_STEPS: Final = 36
_PEAK_CPU: Final = 2.2
_PEAK_MEM: Final = Bytes(400 * 1024**2)


def load_of(name: str, vms: int = 0) -> Callable[[ObjectName], Load]:
    """The load of each of ``vms`` VMs: ``idle``, ``waves``, or a recording (CSV file, repeated).

    Raises ``StepFailedError``.
    """
    if name in {"", "idle"}:
        return lambda _: IDLE
    if name == "waves":
        period = wave_period(vms)
        # The phase depends on the VM's name only, so it is the same on every start.
        return lambda vm: waves(zlib.crc32(str(vm).encode()) % period, period)
    try:
        with open_recording(Path(name)) as rows:
            recorded = recorded_load(rows)
    except (RecordingError, LoadError) as error:
        raise StepFailedError(f"the load {name!r} is not idle, waves or a readable recording: {error}") from error
    return lambda _: recorded


def wave_period(vms: int) -> int:
    """Period of the waves of ``vms`` VMs, in seconds: three minutes; longer in large fleets, to limit the resizes.

    >>> wave_period(2), wave_period(2000)
    (180, 1800)
    """
    return _PERIOD * max(1, vms // LARGE_FLEET)


def waves(shift: int, period: int = _PERIOD) -> Load:
    """A load that rises from idle to over two busy CPUs and falls again every ``period`` s, shifted by ``shift`` s."""
    step = period // _STEPS
    steps = [LoadStep(Seconds(float(at)), _wave(at + shift, period)) for at in range(0, period, step)]
    return Load(steps, Seconds(period))


def _wave(at: int, period: int) -> Demand:
    # Squared for a gentle rise; the negative half of the sine is an idle phase.
    height = max(0.0, sin(2 * pi * at / period)) ** 2
    return Demand(0.02 + _PEAK_CPU * height, IDLE.steps[0].demand.mem + _PEAK_MEM.scaled(height))
