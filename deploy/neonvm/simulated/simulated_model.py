"""A simulated guest: its kernel's counters under a demand and a size, as Linux would have them, and what it says of the
database that it does not have (pure).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import exp
from typing import Final

import msgspec

from deploy.neonvm.simulated.simulated_load import Demand, Load
from protocol.names import KERNEL_PRIMARY
from protocol.units import Bytes, Resources, Seconds

_MINUTES: Final = (1, 5, 15)


@dataclass(frozen=True, slots=True)
class Counters:
    """The kernel's counters, in seconds since the guest's start; CPUs by number, offline ones pause."""

    busy: tuple[float, ...]
    idle: tuple[float, ...]
    load: tuple[float, float, float] = (0.0, 0.0, 0.0)
    cpu_waiting: float = 0.0
    mem_waiting: float = 0.0


@dataclass(frozen=True, slots=True)
class SimulatedKernel:
    """A simulated guest at one age. ``asked`` is the size that was ordered, ``size`` the one it has. ``pressed`` is a
    demand that replaces the load's until it is lifted.
    """

    load: Load
    asked: Resources
    size: Resources
    counters: Counters
    age: Seconds = field(default=Seconds(0.0))
    pressed: Demand | None = None

    @classmethod
    def booted(cls, load: Load, size: Resources, most_cpus: int) -> SimulatedKernel:
        """A guest that starts now with ``size`` and may get up to ``most_cpus``."""
        return cls(load, size, size, Counters((0.0,) * most_cpus, (0.0,) * most_cpus))

    @property
    def demand(self) -> Demand:
        """The present demand."""
        return self.pressed if self.pressed is not None else self.load.at(self.age)

    @property
    def mem_used(self) -> Bytes:
        """The memory in use: the demand, at most all memory."""
        return min(self.demand.mem, self.size.mem)

    def resized(self, asked: Resources) -> SimulatedKernel:
        """The same guest told to have another size; memory in use stays as it is."""
        # Memory is given back only as far as it is not in use; the rest follows when the use falls.
        return replace(self, asked=asked, size=Resources(asked.cpu, max(asked.mem, self.mem_used)))

    def under(self, pressed: Demand | None) -> SimulatedKernel:
        """The same guest under another demand than its load's; None gives it back to its load."""
        return replace(self, pressed=pressed).resized(self.asked)

    def advanced(self, age: Seconds) -> SimulatedKernel:
        """The same guest at a later ``age``; exact, because demand only changes at steps."""
        kernel = self
        while kernel.age < age:
            change = None if kernel.pressed is not None else kernel.load.next_change(kernel.age)
            until = age if change is None else min(age, change)
            counters = _counted(kernel.counters, kernel.size, kernel.demand, until - kernel.age)
            kernel = replace(kernel, counters=counters, age=Seconds(until))
            # Memory in use may have fallen with this step.
            kernel = kernel.resized(kernel.asked)
        return kernel


def _counted(before: Counters, size: Resources, demand: Demand, span: float) -> Counters:
    """The counters after ``span`` seconds of a constant size and demand."""
    cores, online = size.cpu.as_cores, size.cpu.whole_cpus
    # Busy time grows by the demand, but never by more than the guest has.
    share = min(demand.cpu, cores) / online if online else 0.0
    return Counters(
        busy=tuple(spent + (share * span if number < online else 0.0) for number, spent in enumerate(before.busy)),
        idle=tuple(rest + ((1 - share) * span if number < online else 0.0) for number, rest in enumerate(before.idle)),
        load=_decayed(before.load, demand.cpu, span),
        cpu_waiting=before.cpu_waiting + _waiting(demand.cpu, cores) * span,
        mem_waiting=before.mem_waiting + _waiting(demand.mem.value, size.mem.value) * span,
    )


def _waiting(wanted: float, have: float) -> float:
    """The share of time in which a task waits: the missing amount relative to the size, at most all."""
    if wanted <= have:
        return 0.0
    # PSI's `some`: all of the time if twice the size is wanted.
    return min(1.0, (wanted - have) / have) if have else 1.0


def _decayed(load: tuple[float, float, float], tasks: float, span: float) -> tuple[float, float, float]:
    one, five, fifteen = (
        # As Linux computes load averages, which follow the number of tasks exponentially.
        average * exp(-span / (60 * minutes)) + tasks * (1 - exp(-span / (60 * minutes)))
        for average, minutes in zip(load, _MINUTES, strict=True)
    )
    return one, five, fifteen


class SimulatedDatabase(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The answer of the daemon in a real guest to ``GET /database``."""

    standby: bool
    streaming: bool = False
    lag_seconds: float | None = 0.0
    sessions: int = 0
    oldest_transaction_seconds: float | None = None

    @classmethod
    def told(cls, kernel_arguments: str) -> SimulatedDatabase:
        """The database of a guest with these words on its kernel command line."""
        standby = any(word.startswith(f"{KERNEL_PRIMARY}=") for word in kernel_arguments.split())
        return cls(standby, streaming=standby)
