"""What holds a wish back now: update mode, pods that differ from what was ordered, delay, maintenance window and least
change, in this order (S1.8, S1.9, S1.12).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import ceil

from protocol.units import Seconds
from scheduler_plugin.groups.core.hvpa.min_change import DEFAULT_MIN_CHANGE, is_enough, threshold
from scheduler_plugin.groups.core.hvpa.settling import enough_since
from scheduler_plugin.groups.core.hvpa.spec import DirectionRules, HvpaSpec, ScalingTimes, UpdateMode
from scheduler_plugin.groups.core.hvpa.wishes import Recommendation
from scheduler_plugin.groups.core.workload import Rule


def delay_passed(last: datetime | None, now: datetime, delay: Seconds) -> bool:
    """Return True if ``delay`` has passed since ``last``; equality passes, and a time in the future proves nothing."""
    # A time in the future comes from another node's clock; waiting for it could take for ever.
    return last is None or last > now or (now - last).total_seconds() >= delay


@dataclass(frozen=True, slots=True)
class Gates:
    """Decides for one moment. A container in ``out_of_memory`` gets more memory without delay and least change.

    ``pods_differ`` says how pods differ from what was ordered while that is waited for.
    """

    spec: HvpaSpec
    memory: ScalingTimes
    now: datetime
    out_of_memory: frozenset[str] = frozenset()
    pods_differ: str = ""

    def rules(self, wish: Recommendation) -> DirectionRules:
        """The rules for the axis and direction of ``wish``."""
        axis = self.spec.vertical if wish.resource else self.spec.horizontal
        return axis.up if wish.grows else axis.down

    def is_urgent(self, wish: Recommendation) -> bool:
        """Return True if the wish is for the memory that ran out."""
        return wish.container in self.out_of_memory and wish.resource == "memory" and wish.grows

    def rule(self, wish: Recommendation) -> Rule | None:
        """By which rule the change from ``wish.current`` to ``wish.value`` is held back; None if it may go."""
        rules, urgent = self.rules(wish), self.is_urgent(wish)
        if rules.mode is UpdateMode.OFF:
            return Rule.UPDATE_MODE
        # While pods differ, recommendations still describe the old ones.
        if not urgent and self.pods_differ:
            return Rule.PODS_DIFFER
        if not urgent and not delay_passed(self._last(wish), self.now, rules.delay):
            return Rule.DELAY
        # Off and the maintenance window hold for urgent wishes as well.
        if rules.mode is UpdateMode.MAINTENANCE_WINDOW and not self._in_window():
            return Rule.MAINTENANCE_WINDOW
        if not urgent and not is_enough(wish.now, wish.value, self._least(wish)):
            return Rule.MIN_CHANGE
        # Settling is reported as a delay, so that people see a single time to wait for.
        return None if self._is_settled(wish) else Rule.DELAY

    def message(self, wish: Recommendation, rule: Rule) -> str:
        """Message for people when ``rule`` holds ``wish`` back."""
        if rule is Rule.DELAY:
            return f"until {self._until(wish).astimezone(UTC):%H:%M:%S} UTC"
        if rule is Rule.MAINTENANCE_WINDOW:
            return f"until the window, {self.spec.window}" if self.spec.window else "there is no window"
        if rule is Rule.MIN_CHANGE:
            return f"a change of less than {wish.shown(ceil(self._least(wish)))}"
        if rule is Rule.PODS_DIFFER:
            return f"until the pods are as ordered: {self.pods_differ}"
        return "update mode Off"

    def _until(self, wish: Recommendation) -> datetime:
        """The time when neither delay nor settling holds the wish back, if less is enough until then."""
        last, delay = self._last(wish) or self.now, timedelta(seconds=self.rules(wish).delay)
        # Only shrinking settles.
        if wish.grows or not self.spec.settle:
            return last + delay
        settled = enough_since(self.memory, wish, self.now) + timedelta(seconds=self.spec.settle)
        return max(last + delay, settled)

    def _is_settled(self, wish: Recommendation) -> bool:
        since = enough_since(self.memory, wish, self.now)
        return wish.grows or delay_passed(since, self.now, self.spec.settle)

    def _last(self, wish: Recommendation) -> datetime | None:
        return self.memory.last_up if wish.grows else self.memory.last_down

    def _in_window(self) -> bool:
        return self.spec.window is not None and self.spec.window.contains(self.now)

    def _least(self, wish: Recommendation) -> Fraction:
        if wish.resource is None:
            # Any change of the replicas is worth a write.
            return Fraction(0)
        params = self.rules(wish).min_change[wish.resource]
        return threshold(params, wish.now, DEFAULT_MIN_CHANGE[wish.resource].value)
