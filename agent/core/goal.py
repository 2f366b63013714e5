"""The need of a guest, computed from its metrics in named parts (S4.3, S4.13).

Rules that hold here:

- The need of a resource is its largest part.
- Busy time never exceeds the guest's CPUs, so it cannot show unmet demand. Stalled tasks can (PSI).
- A shrink itself makes the guest busy and stalls it: CPUs go offline, memory is unplugged. That noise ends once the
  guest is calm; anything later is load.
- Evidence ignored as noise causes no growth, but does not prove that less is enough either: see ``Goal.possible``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeVar

from msgspec import structs

from agent.core.guest import GuestSample, Rates
from agent.core.policy import CpuPolicy, MemoryPolicy, Policy
from protocol.units import Amount, Bytes, MilliCpu, Resources

SATURATED: Final = 0.9
"""Without PSI, CPUs count as saturated above this busy share."""

OBSERVER: Final = 1.0
"""The exporter's own task, which is runnable while it reads the metrics."""


MEMORY_USED: Final = "memory used"
"""Name of the part for memory in use."""

MEMORY_WAITING: Final = "memory waiting"
"""Name of the part for tasks stalled on memory."""

NOTHING: Final = Resources(MilliCpu(0), Bytes(0))
"""No need; also stands for an unknown one."""

A = TypeVar("A", bound=Amount)


@dataclass(frozen=True, slots=True)
class Part:
    """One reason for a size: its name, the amount, and the evidence."""

    name: str
    need: MilliCpu | Bytes
    because: str


@dataclass(frozen=True, slots=True)
class Goal:
    """The guest's need of each resource (None if unknown), and its parts.

    ``possible`` is the need if the ignored evidence counted. The VM must not shrink below it.
    """

    cpu: MilliCpu | None
    mem: Bytes | None
    parts: tuple[Part, ...]
    possible: Resources = NOTHING

    @property
    def need(self) -> Resources | None:
        """Both needs; None if either is unknown, because then nothing proves that less is enough."""
        return None if self.cpu is None or self.mem is None else Resources(self.cpu, self.mem)

    @property
    def at_least(self) -> Resources:
        """The proven need; an unknown need counts as zero."""
        return Resources(self.cpu or NOTHING.cpu, self.mem or NOTHING.mem)


NO_GOAL: Final = Goal(None, None, ())
"""The goal before the first sample."""


def goal(sample: GuestSample, over: Rates, has: Resources, policy: Policy, *, settling: bool) -> Goal:
    """The need of a guest of size ``has`` (the smaller of the sizes before and after the interval ``over``).

    ``settling``: it may still be busy with a recent shrink.
    """
    parts = _parts(sample, over, has, policy)
    possible = _possible_need(parts, over, has, policy) if settling or over.is_partial else NOTHING
    if not settling:
        return Goal(_largest_need(parts, MilliCpu), _largest_need(parts, Bytes), tuple(parts), possible)
    counted = _parts(sample, _without_noise(sample, over, has, policy), has, policy)
    return Goal(
        cpu=_largest_need(counted, MilliCpu),
        mem=_largest_need(counted, Bytes),
        parts=tuple(_as_counted(part, counted) for part in parts),
        possible=possible,
    )


def _possible_need(seen: list[Part], over: Rates, has: Resources, policy: Policy) -> Resources:
    """The maximum need: all evidence counts, and unknown time counts as busy or stalled."""
    most = Resources(_largest_need(seen, MilliCpu) or NOTHING.cpu, _largest_need(seen, Bytes) or NOTHING.mem)
    # Unknown cores may have been busy.
    if over.unknown and over.busy is not None:
        occupied = MilliCpu.cores((over.busy + over.unknown) / policy.cpu.target)
        most = most.at_least(Resources(occupied, NOTHING.mem))
    return most.at_least(
        Resources(
            has.cpu if "cpu_stall" in over.lost else NOTHING.cpu, has.mem if "mem_stall" in over.lost else NOTHING.mem
        )
    )


def without_waiting(known: Goal) -> Goal:
    """The goal without the part for tasks stalled on memory."""
    parts = tuple(part for part in known.parts if part.name != MEMORY_WAITING)
    return replace(known, mem=_largest_need(list(parts), Bytes), parts=parts)


def with_part(known: Goal, part: Part) -> Goal:
    """The goal with one more part for memory."""
    # An unknown need stays unknown, because this part does not replace the missing ones.
    mem = known.mem if known.mem is None or not isinstance(part.need, Bytes) else max(known.mem, part.need)
    return replace(known, mem=mem, parts=(*known.parts, part))


def is_calm(over: Rates, has: Resources, policy: Policy) -> bool:
    """Return True if the interval shows no effect of a shrink: neither excess kernel time nor stalls."""
    busy, worked, deadband = over.busy, _worked(over), policy.cpu.pressure_deadband
    if busy is None or worked is None or over.is_partial:
        return False
    is_quiet = busy - worked <= deadband * has.cpu.as_cores
    return (
        is_quiet and (over.cpu_stall or 0.0) <= deadband and (over.mem_stall or 0.0) < policy.memory.pressure_threshold
    )


def _parts(sample: GuestSample, over: Rates, has: Resources, policy: Policy) -> list[Part]:
    return [*_cpu_parts(sample, over, has.cpu.as_cores, policy.cpu), *_mem_parts(sample, over, has.mem, policy.memory)]


def _largest_need(parts: list[Part], kind: type[A]) -> A | None:
    return max((part.need for part in parts if isinstance(part.need, kind)), default=None)


def _as_counted(part: Part, counted: list[Part]) -> Part:
    """``part`` with the need that counts, and the ignored need in its reason."""
    need = next((other.need for other in counted if other.name == part.name), type(part.need)(0))
    if need == part.need:
        return part
    return Part(part.name, need, f"{part.because}; not {part.need}, because noise after a shrink is ignored")


def _without_noise(sample: GuestSample, over: Rates, has: Resources, policy: Policy) -> Rates:
    """``over`` without possible effects of a shrink: excess kernel time, and stalls without other evidence."""
    # Stalls count only if there are more runnable tasks than online CPUs, or if programs fill the VM's memory.
    is_crowded = sample.runnable is not None and sample.runnable - OBSERVER > has.cpu.whole_cpus
    return structs.replace(
        over,
        busy=_worked(over),
        cpu_stall=over.cpu_stall if over.cpu_stall is None or is_crowded else 0.0,
        mem_stall=over.mem_stall if _is_full(sample, has.mem, policy.memory) else None,
    )


def _is_full(sample: GuestSample, has: Bytes, policy: MemoryPolicy) -> bool:
    used = sample.mem_used
    return used is not None and _share_of(used + policy.kernel_allowance, policy.target) >= has


def _worked(over: Rates) -> float | None:
    """Busy cores, where kernel time counts at most as much as program time; steal is split in proportion."""
    if over.busy is None or not over.kernel:
        return over.busy
    # Unplugging CPUs and memory is kernel work.
    ran = over.busy - (over.steal or 0.0)
    programs = max(0.0, ran - over.kernel)
    return over.busy * min(1.0, 2.0 * programs / ran) if programs else 0.0


def _cpu_parts(sample: GuestSample, over: Rates, cores: float, policy: CpuPolicy) -> list[Part]:
    if over.busy is None:
        return []
    stolen = f", {over.steal:.2f} of it steal" if over.steal else ""
    unknown = f"; {over.unknown:.2f} cores unknown, so no shrink" if over.unknown else ""
    busy = Part(
        "cpu busy",
        MilliCpu.cores(over.busy / policy.target),
        f"{over.busy:.2f} cores busy{stolen}, target {policy.target:.0%}{unknown}",
    )
    unmet = _unmet(sample, over, over.busy, cores, policy)
    if unmet is None:
        return [busy]
    extra, because = unmet
    return [busy, Part("cpu waiting", MilliCpu.cores((over.busy + extra) / policy.target), because)]


def cpu_demand(sample: GuestSample, over: Rates, has: MilliCpu, policy: CpuPolicy) -> tuple[MilliCpu, str] | None:
    """The largest CPU need in ``over`` of a guest with ``has``, and why; None without CPU rates."""
    parts = _cpu_parts(sample, over, has.as_cores, policy)
    needs = [(part.need, part.because) for part in parts if isinstance(part.need, MilliCpu)]
    return max(needs, key=lambda need: need[0], default=None)


def _unmet(sample: GuestSample, over: Rates, busy: float, cores: float, policy: CpuPolicy) -> tuple[float, str] | None:
    """Cores needed beyond the busy ones, and the evidence; None if no task waited."""
    # Tasks that stall while most of the CPU is idle wait for the host or for each other's locks. So weigh stalls by how
    # busy the CPU is.
    if over.cpu_stall is not None:
        beyond = _between(over.cpu_stall, policy.pressure_deadband, 1.0) * _between(
            busy / cores, policy.pressure_from, policy.pressure_full
        )
        # The run queue limits the step, so that one or two decisions cover a jump in load.
        queue = cores if sample.runnable is None else max(cores, sample.runnable - OBSERVER)
        reach = min(queue, policy.reach * cores)
        count = "unknown number" if sample.runnable is None else f"{sample.runnable:.0f}"
        because = f"tasks waited {over.cpu_stall:.0%} of the time, {count} runnable"
        return (beyond * reach, because) if beyond else None
    # Without PSI, use the load average; it lags, so it counts only if the CPU is saturated.
    if busy < SATURATED * cores or sample.load1 is None or sample.load1 <= busy:
        return None
    return min(sample.load1 - busy, cores), f"saturated, load average {sample.load1:.2f} (no PSI)"


def _between(value: float, low: float, high: float) -> float:
    """The position of ``value`` between ``low`` (0) and ``high`` (1), clamped."""
    return min(1.0, max(0.0, (value - low) / (high - low)))


def _mem_parts(sample: GuestSample, over: Rates, has: Bytes, policy: MemoryPolicy) -> list[Part]:
    used = sample.mem_used
    if used is None:
        return []
    in_use = used + policy.kernel_allowance
    parts = [Part(MEMORY_USED, _share_of(in_use, policy.target), f"{_gib(in_use)} in use, target {policy.target:.0%}")]
    stall = over.mem_stall
    # With refault metrics, ``probing`` finds out if more page cache helps.
    is_for_cache = policy.cache.enabled and sample.shows_rereading and not _is_full(sample, has, policy)
    if stall is not None and stall >= policy.pressure_threshold and not is_for_cache:
        grown = has + has.scaled(policy.pressure_step)
        parts.append(Part(MEMORY_WAITING, grown, f"tasks waited for memory {stall:.0%} of the time"))
    return parts


def _share_of(held: Bytes, target: float) -> Bytes:
    """``held / target``, rounded up."""
    # Floor division of the negative value rounds up.
    return Bytes(-int(-held.value // target))


def _gib(amount: Bytes) -> str:
    return f"{amount.as_gib:.2f} GiB"
