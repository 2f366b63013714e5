"""States of databases and nodes and their texts: one table for page, terminal and documents. Pure.

The page gets the tables as a JavaScript module (``script``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from protocol.units import Instant, Seconds


class VmState(NamedTuple):
    """A state, its symbol ``mark`` and its explanation ``means``. If ``is_problem``, the page lists it as a problem."""

    word: str
    mark: str
    means: str
    is_problem: bool = True


UNHEALTHY: Final = VmState("unhealthy", "✕", "the guest or the pod failed, or its object is unreadable")
WAITING: Final = VmState("waiting", "◌", "the database has been pending for a minute or more")
DENIED: Final = VmState("denied", "▲", "the database got less than it requested")
AGENT_PROBLEM: Final = VmState("agent-problem", "!", "its agent reports a problem, or is unreachable")
MIGRATING: Final = VmState("migrating", "⇢", "the VM is migrating")
WAKING: Final = VmState("waking", "◐", "the VM is waking; it may be waiting for room")
ASLEEP: Final = VmState(
    "asleep", "☾", "the VM is asleep: it reserves nothing, and the first packet wakes it", is_problem=False
)
# Worst first, because only one state is shown.
VM_STATES: Final = (UNHEALTHY, WAITING, DENIED, AGENT_PROBLEM, MIGRATING, WAKING, ASLEEP)

CANNOT_DRAIN: Final = VmState("cannot-drain", "▲", "the scheduler wants to move VMs off the node, but none can move")
OVER_WATERMARK: Final = VmState("over-watermark", "▲", "the node's reservations are above its watermark")
CORDONED: Final = VmState("cordoned", "⊘", "the node accepts no new databases")
NODE_STATES: Final = (CANNOT_DRAIN, OVER_WATERMARK, CORDONED)

CALM: Final = "calm"
FAILED: Final = "Failed"
"""Phase of a VM whose guest has failed."""


def worst(states: tuple[VmState, ...], true: Mapping[VmState, object]) -> str:
    """The first of ``states`` that is ``true``; empty if none.

    >>> worst(VM_STATES, {MIGRATING: True, DENIED: True, UNHEALTHY: False})
    'denied'
    """
    return next((state.word for state in states if true.get(state)), "")


def script() -> bytes:
    """The tables as a JavaScript module."""
    tables = {"VM_STATES": VM_STATES, "NODE_STATES": NODE_STATES}
    return b"".join(
        b"export const %s = %s;\n" % (name.encode(), msgspec.json.encode([state._asdict() for state in states]))
        for name, states in tables.items()
    )


LONG: Final = Seconds(60.0)


@dataclass(slots=True)
class ConditionTimes:
    """The VMs to which a condition applies, and since when by our own clock."""

    _since: dict[str, Instant] = field(default_factory=dict)

    @property
    def keys(self) -> set[str]:
        """The VMs to which the condition applies."""
        return set(self._since)

    def update(self, key: str, now: Instant, *, is_so: bool) -> None:
        """Update whether the condition applies to the VM."""
        if is_so:
            # Keep the time at which it began.
            self._since.setdefault(key, now)
        else:
            self._since.pop(key, None)

    def is_long(self, key: str, now: Instant) -> bool:
        """Return True if the condition has applied for ``LONG``."""
        since = self._since.get(key)
        return since is not None and now - since >= LONG

    def long(self, now: Instant) -> list[str]:
        """The VMs to which the condition has applied for ``LONG``."""
        return [key for key in self._since if self.is_long(key, now)]
