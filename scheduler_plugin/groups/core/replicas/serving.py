"""Which replicas the read endpoint lists (pure).

- A replica serves once its database accepts queries, streams from the primary and has caught up within the bound. It
  stops only when twice as far behind: a lag around the bound must not make clients reconnect.
- While the primary is away nothing is written, so a replica that served goes on serving.
- One that served and cannot be asked goes on for ``SILENCE``, and longer if no other serves that answers: it accepts
  connections, and stale reads are better than none.
- One that drains serves no new client.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from protocol.units import Seconds
from scheduler_plugin.groups.core.replicas.members import DatabaseState, GroupSpec, Member

SILENCE: Final = Seconds(30.0)
"""How long a replica that serves may leave questions unanswered: its agent may just be starting again."""

_LEEWAY: Final = 2.0
_UNSAID: Final = "its agent has not said how its database is"


def hindrances(replicas: Collection[Member], primary: Member | None, spec: GroupSpec) -> dict[str, str]:
    """The reason why the read endpoint leaves out each replica, by name; empty for those it lists."""
    reasons = {replica.name: hindrance(replica, primary, spec) for replica in replicas}
    silent = [replica for replica in replicas if not reasons[replica.name] and (replica.silent or 0.0) >= SILENCE]
    # If all of them are silent, they stay: stale reads are better than none at all.
    if len(silent) == sum(not why for why in reasons.values()):
        return reasons
    return reasons | {replica.name: _UNSAID for replica in silent}


def hindrance(member: Member, primary: Member | None, spec: GroupSpec) -> str:
    """The reason why the read endpoint leaves out the replica, by itself; empty if it does not."""
    if member.leaving or member.draining is not None:
        return "it leaves the group"
    if not member.available:
        return "its database does not accept connections yet"
    if not member.address:
        return "it has no address yet"
    if member.database is None:
        # One that served and cannot be asked stays here; `hindrances` judges how long it is silent.
        return "" if member.listed else _UNSAID
    if not member.database.is_standby:
        return "its database is not a standby"
    return _behind(member, member.database, primary, spec)


def _behind(member: Member, database: DatabaseState, primary: Member | None, spec: GroupSpec) -> str:
    if not database.streaming:
        writable = primary is not None and primary.available
        # While the primary is away nothing is written, so a replica that served is not behind.
        return "" if member.listed and not writable else "it does not stream from the primary"
    # Twice the bound for one that serves: a bound that is just reached must not make clients reconnect.
    bound = Seconds(spec.max_lag * (_LEEWAY if member.listed else 1.0))
    if database.lag is None:
        return "" if member.listed else "it is not known how far it is behind"
    return "" if database.lag <= bound else f"it is {database.lag:.0f} s behind, at most {bound:g} s are allowed"
