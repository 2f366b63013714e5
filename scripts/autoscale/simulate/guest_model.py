"""The model of a guest: the metrics that a guest of a given size reports under a given demand (S4.3)."""

from __future__ import annotations

from math import ceil
from typing import Final

from agent.core.goal import OBSERVER
from agent.core.guest import GuestSample, Rates
from protocol.units import Bytes, Resources

SWAPPING: Final = 0.5
"""The share of time that tasks stall on memory in a guest with less memory than its demand."""


def observe_guest(cores: float, mem: float, size: Resources) -> tuple[GuestSample, Rates]:
    """The metrics of a guest of ``size`` under a steady demand of ``cores`` (>= 0) vCPUs and ``mem`` bytes."""
    has, total = size.cpu.as_cores, size.mem.value
    sample = GuestSample(
        # The agent's own observer is a runnable task, too, which its policy subtracts again.
        runnable=ceil(cores) + OBSERVER,
        load1=cores,
        load5=cores,
        mem_total=size.mem,
        # Memory in use is the demand, capped at the guest's memory; all of the rest can be unplugged at once.
        mem_available=Bytes(max(0, total - int(mem))),
    )
    # A guest serves as much demand as it has CPU. The share that it cannot serve is the share of time that tasks
    # wait.
    waits = 1.0 - has / cores if cores > has else 0.0
    # The disk is never the limit, and the host steals no time.
    return sample, Rates(busy=min(cores, has), steal=0.0, cpu_stall=waits, mem_stall=SWAPPING if mem > total else 0.0)
