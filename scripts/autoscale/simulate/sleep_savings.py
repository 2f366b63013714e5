"""What sleep would save in a simulated fleet: the sizes of the VMs that would be asleep (B.18).

The room that sleepers free is given to nobody here, so that a day is the same with and without sleep.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from scripts.autoscale.replay.recording import UNIT, Floats
from scripts.autoscale.simulate.fleet import SimulatedFleet


class SleepSavings:
    """Sums over the steps counted, all 0 if ``sleep`` is: VM-hours asleep, the vCPU-hours that those VMs had, and
    ``had``, those of all VMs.
    """

    def __init__(self, fleet: SimulatedFleet, warm_up: int) -> None:
        settings = fleet.settings
        self._warm_up = warm_up
        self._hours = settings.step / 3600
        self._after = ceil(settings.sleep / settings.step)
        self._idle = np.zeros(settings.vms, dtype=np.int64)
        # A primary with standbys never sleeps, and neither do they.
        self._may_sleep = np.arange(settings.vms) >= (settings.groups.members if settings.groups.replicas else 0)
        self.vm_hours = self.vcpu_hours = self.had = 0.0

    def after_step(self, step: int, cores: Floats, sizes: Floats) -> None:
        """Take in a step in which guests of ``sizes`` vCPUs needed ``cores``."""
        if not self._after:
            return
        self._idle = np.where(cores < UNIT, self._idle + 1, 0)
        if step < self._warm_up:
            return
        asleep = (self._idle > self._after) & self._may_sleep
        self.vm_hours += float(asleep.sum()) * self._hours
        self.vcpu_hours += float(sizes[asleep].sum()) * self._hours
        self.had += float(sizes.sum()) * self._hours
