"""Savings by sleep in a simulated fleet (B.18).

The freed room is not reused, so that a day is the same with and without sleep.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from scripts.autoscale.replay.recording import UNIT, Floats
from scripts.autoscale.simulate.fleet import SimulatedFleet


class SleepSavings:
    """Sums after the warm-up; all 0 if the setting ``sleep`` is 0.

    ``vm_hours``: time asleep. ``vcpu_hours``, ``total_vcpu_hours``: vCPUs of sleeping VMs, and of all VMs, over time.
    """

    def __init__(self, fleet: SimulatedFleet, warm_up: int) -> None:
        settings = fleet.settings
        self._warm_up = warm_up
        self._hours = settings.step / 3600
        self._steps_until_sleep = ceil(settings.sleep / settings.step)
        self._idle_steps = np.zeros(settings.vms, dtype=np.int64)
        # Primaries with replicas, and replicas, never sleep.
        self._may_sleep = np.arange(settings.vms) >= (settings.groups.members if settings.groups.replicas else 0)
        self.vm_hours = self.vcpu_hours = self.total_vcpu_hours = 0.0

    def after_step(self, step: int, cores: Floats, sizes: Floats) -> None:
        """Add one step; ``cores`` and ``sizes`` contain each VM's demand and size in vCPUs."""
        if not self._steps_until_sleep:
            return
        self._idle_steps = np.where(cores < UNIT, self._idle_steps + 1, 0)
        if step < self._warm_up:
            return
        asleep = (self._idle_steps > self._steps_until_sleep) & self._may_sleep
        self.vm_hours += float(asleep.sum()) * self._hours
        self.vcpu_hours += float(sizes[asleep].sum()) * self._hours
        self.total_vcpu_hours += float(sizes.sum()) * self._hours
