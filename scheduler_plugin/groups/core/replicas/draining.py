"""How a replica leaves: marked, out of the read endpoint, empty of clients, deleted (pure).

    stays ── marked ──► drains ── no session, or grace and its transactions over ──► is deleted
      ▲                   │
      └── wanted again ───┘

- The mark is an annotation of the VM, so a controller that starts again goes on from there.
- One that the read endpoint still lists, because it could not be written, stays: clients are still sent to it.
- A transaction that began before the end of the grace period has until the time-out.
- Clients that looked the endpoint up just before the mark still come: an empty replica is not deleted at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.units import Seconds
from scheduler_plugin.groups.core.replicas.members import DatabaseState, GroupSpec, Member

SETTLE: Final = Seconds(5.0)
"""How long clients may still come that looked up the endpoint before it changed."""

_LOOK: Final = Seconds(1.0)


@dataclass(frozen=True, slots=True)
class Drain:
    """Progress of a replica's drain. ``look_again`` is when that may have changed, None once it is ``done``."""

    done: bool
    because: str
    look_again: Seconds | None = None


def drain(member: Member, age: Seconds, spec: GroupSpec) -> Drain:
    """Decide if a replica that has been draining for ``age`` may be deleted now."""
    # A database that does not run has no clients to wait for.
    if not member.available:
        return Drain(True, "its database does not run: it has no clients")
    # Clients are still sent to it, so its sessions would never end.
    if member.listed:
        return _waits("the read endpoint still lists it")
    if age >= spec.drain_timeout:
        return Drain(True, f"it has been draining for {spec.drain_timeout:g} s")
    if age < SETTLE:
        return _waits("clients may still have its address")
    if member.database is None:
        return _waits("its database cannot be asked for its sessions")
    return _asked(member.database, age, spec)


def _asked(database: DatabaseState, age: Seconds, spec: GroupSpec) -> Drain:
    if not database.sessions:
        return Drain(True, "it has no session left")
    if age < spec.grace:
        return _waits(f"{database.sessions} sessions, {age:.0f} s of {spec.grace:g} s")
    oldest = database.oldest_transaction
    # It began before the grace period was over, so it has until the time-out.
    if oldest is not None and oldest >= age - spec.grace:
        return _waits("a transaction that began within the grace period is not over")
    return Drain(True, f"the grace period of {spec.grace:g} s is over and no transaction of it is open")


def _waits(because: str) -> Drain:
    return Drain(False, because, _LOOK)
