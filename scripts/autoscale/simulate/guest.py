"""What a guest of a given size says of a given demand: the model of the guest, all of it (S4.3).

Rules that hold here:

- A guest serves its demand as far as it has CPU. What it cannot serve shows as waiting: the share of the demand that is
  left over is the share of the time in which tasks wait, and as many tasks are runnable as there is demand for CPUs.
- Memory in use is the demand as far as there is memory; a guest that has too little waits for memory.
- The disk never limits, the host steals nothing, and memory that is not in use can be taken away at once.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from agent.core.goal import OBSERVER
from agent.core.guest import GuestSample, Rates
from protocol.units import Bytes, Resources

SWAPPING: Final = 0.5
"""The share of the time that tasks wait for memory in a guest that has less than is in use."""


def look(cores: float, mem: float, size: Resources) -> tuple[GuestSample, Rates]:
    """What the guest of ``size`` says of a demand of ``cores`` (above zero) and ``mem`` bytes that has stood."""
    has, total = size.cpu.as_cores, size.mem.value
    sample = GuestSample(
        runnable=ceil(cores) + OBSERVER,
        load1=cores,
        load5=cores,
        mem_total=size.mem,
        mem_available=Bytes(max(0, total - int(mem))),
    )
    waits = max(0.0, 1.0 - has / cores)
    return sample, Rates(busy=min(cores, has), steal=0.0, cpu_stall=waits, mem_stall=SWAPPING if mem > total else 0.0)
