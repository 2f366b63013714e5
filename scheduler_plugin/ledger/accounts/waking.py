"""Room for waking VMs, and their order (B.18).

Rules:

- A node reserves room for its largest sleeping VMs (``WakeReserve``) and for everything denied to waking VMs. Only
  waking VMs may use it, not ordinary growth, new pods or incoming migrations.
- All or nothing: no guest wakes at part of its size.
- Smallest request for its weight first, so that most wake soon; then longest wait. Before these come the VMs that wait
  for longer than ``MAX_OVERTAKEN``: otherwise small VMs that keep waking would starve them. A VM that does not fit lets
  later waking VMs pass, but not ordinary growth.
- The number of concurrent wakes is limited: each reads its memory from the node's disk and keeps a CPU busy. A wake
  that hangs stops counting after a while.
- ``WakeReserve.share`` does not limit the room for denied VMs, which are about to use it. A VM denied for longer than
  ``PATIENCE`` does not count: the node keeps only its reserve for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from protocol.units import ZERO, Instant, Resources, Seconds
from scheduler_plugin.ledger.facts import DEFAULT_WEIGHT
from scheduler_plugin.ledger.wake_reserve import WakeReserve


class WakeNeed(NamedTuple):
    """Resources that a sleeping VM lacks to wake, and the part that it was denied."""

    missing: Resources = ZERO
    denied: Resources = ZERO


NO_WAKE_NEED: Final = WakeNeed()


def room_for_waking(needs: Iterable[WakeNeed], reserve: WakeReserve, total: Resources) -> Resources:
    """Room that a node with ``total`` reserves for its sleeping VMs."""
    missing, denied = [], ZERO
    for need in needs:
        missing.append(need.missing)
        denied = denied + need.denied
    return reserve.of(missing, total).at_least(denied)


MAX_OVERTAKEN: Final = Seconds(60.0)
"""How long smaller VMs wake first. A whole herd usually wakes in less time."""


class WakingVm(NamedTuple):
    """A VM that waits since ``since`` for its permit to wake, and lacks ``missing``.

    ``is_overdue``: it has waited for ``MAX_OVERTAKEN``.
    """

    uid: str
    missing: Resources
    since: Instant
    weight: int = DEFAULT_WEIGHT
    is_overdue: bool = False

    def rank(self, total: Resources) -> tuple[float, float, str]:
        """Sort key on a node with ``total``: longest wait first if overdue, then smallest."""
        if self.is_overdue:
            return -1.0, self.since, self.uid
        share = max(
            self.missing.cpu.value / max(1, total.cpu.value),
            self.missing.mem.value / max(1, total.mem.value),
        )
        return share / self.weight, self.since, self.uid


class Due(NamedTuple):
    """Room and number of other waking VMs that come first."""

    room: Resources = ZERO
    vms: int = 0


def due_before(waits: WakingVm, others: Iterable[WakingVm], left: Resources, total: Resources) -> Due:
    """The part of the ``left`` room that ``others`` get before ``waits``.

    >>> small, large = (WakingVm(str(cpus), Resources.parse(cpus, "1Gi"), Instant(0.0)) for cpus in (1, 4))
    >>> room = Resources.parse(4, "8Gi")
    >>> due_before(large, [small], room, room).vms, due_before(small, [large], room, room).vms
    (1, 0)
    """
    own, due, vms = waits.rank(total), ZERO, 0
    for rank, missing in sorted((other.rank(total), other.missing) for other in others):
        if rank >= own:
            break
        # Skip a VM that does not fit: it cannot use the room.
        if (due + missing).within(left):
            due, vms = due + missing, vms + 1
    return Due(due, vms)
