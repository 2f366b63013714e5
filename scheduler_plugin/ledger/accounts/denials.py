"""The cost of a VM's denials in vCPU-seconds: short ones that repeat add up (B.14). Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from protocol.units import Bytes, Instant, Resources, Seconds

MEM_PER_VCPU: Final = Bytes.parse("4Gi")
"""Memory worth one vCPU."""

HALF_LIFE: Final = Seconds(3600.0)
"""Time after which a past denial counts half."""

PAST_SHARE: Final = 0.25
"""Share of a past denial's cost that counts; with all of it, a fleet that is short would move VMs all the time."""

MAX_PAST: Final = 90.0
"""Maximum cost of past denials: about the cost of a move. One long denial must not make moves hasty for hours."""


def vcpus_worth(lacking: Resources) -> float:
    """The vCPUs that ``lacking`` is worth, at least one.

    >>> vcpus_worth(Resources.parse("500m", "1Gi")), vcpus_worth(Resources.parse("500m", "8Gi"))
    (1.0, 2.0)
    """
    return max(lacking.cpu.as_cores, lacking.mem.ratio(MEM_PER_VCPU), 1.0)


class DenialCost(NamedTuple):
    """``past``: cost of ended denials, as counted when the last one ended, at ``ended_at``.

    ``present``: cost of the present denial up to ``changed_at``, when its amount last changed.
    """

    past: float = 0.0
    ended_at: Instant = Instant(0.0)
    present: float = 0.0
    changed_at: Instant = Instant(0.0)

    def counted(self, now: Instant) -> Seconds:
        """The cost of ended denials that still counts at ``now``."""
        return Seconds(self.past * 0.5 ** ((now - self.ended_at) / HALF_LIFE))

    def changed(self, before: Resources, after: Resources, now: Instant) -> DenialCost:
        """Update after the VM lacked ``before`` until now, and lacks ``after`` from now on."""
        present = self.present + vcpus_worth(before) * (now - self.changed_at) if before.any else 0.0
        if after.any:
            return self._replace(present=present, changed_at=now)
        return DenialCost(min(MAX_PAST, self.counted(now) + PAST_SHARE * present), now)


NO_DENIALS: Final = DenialCost()
