"""States of databases and nodes, in words: one table for page, terminal and documents. Pure.

The page gets the tables as a module (``script``), so that no word is written twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from protocol.units import Instant, Seconds


class VmState(NamedTuple):
    """A state; ``mark`` is its symbol, ``means`` its explanation. ``is_problem``: listed among the problems."""

    word: str
    mark: str
    means: str
    is_problem: bool = True


UNHEALTHY: Final = VmState("unhealthy", "✕", "the guest or the pod failed, or its object cannot be read")
WAITING: Final = VmState("waiting", "◌", "the database has been pending for a minute or more")
DENIED: Final = VmState("denied", "▲", "the database asked for more than it got")
AGENT_PROBLEM: Final = VmState("agent-problem", "!", "its agent reports a problem, or is unreachable")
MIGRATING: Final = VmState("migrating", "⇢", "the VM is migrating")
WAKING: Final = VmState("waking", "◐", "the VM is waking; it may be waiting for room")
ASLEEP: Final = VmState(
    "asleep", "☾", "the VM is asleep: it reserves nothing, and the first packet wakes it", is_problem=False
)
# Worst first: only one state is shown.
VM_STATES: Final = (UNHEALTHY, WAITING, DENIED, AGENT_PROBLEM, MIGRATING, WAKING, ASLEEP)

CANNOT_DRAIN: Final = VmState("cannot-drain", "▲", "VMs should leave the node, but none can")
OVER_WATERMARK: Final = VmState("over-watermark", "▲", "the node's reservations are above its watermark")
CORDONED: Final = VmState("cordoned", "⊘", "the node takes no new databases")
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
class Lasting:
    """VMs with a condition, and since when by our own clock; a returning one restarts."""

    _since: dict[str, Instant] = field(default_factory=dict)

    @property
    def keys(self) -> set[str]:
        """VMs with the condition, however long."""
        return set(self._since)

    def see(self, key: str, now: Instant, *, is_so: bool) -> None:
        """Update whether the VM has the condition."""
        if is_so:
            # Keeps the start.
            self._since.setdefault(key, now)
        else:
            self._since.pop(key, None)

    def is_long(self, key: str, now: Instant) -> bool:
        """Return True if it has lasted for ``LONG``."""
        since = self._since.get(key)
        return since is not None and now - since >= LONG

    def long(self, now: Instant) -> list[str]:
        """VMs for which it has lasted for ``LONG``."""
        return [key for key in self._since if self.is_long(key, now)]
