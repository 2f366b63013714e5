"""Which replicas the read endpoint lists (pure).

- A replica serves once its database accepts queries, streams from the primary and has caught up within the bound; one
  that serves may be twice as far behind before it stops: a bound that is just reached must not make clients reconnect.
- While the primary is away nothing is written, so a replica that served goes on serving. The same holds for one that
  cannot be asked for the moment.
- One that drains serves no new client.
"""

from __future__ import annotations

from typing import Final

from protocol.units import Seconds
from scheduler_plugin.groups.core.replicas.members import DatabaseState, GroupSpec, Member

_LEEWAY: Final = 2.0


def hindrance(member: Member, primary: Member | None, spec: GroupSpec) -> str:
    """Why the read endpoint does not list the replica; empty where it does."""
    if member.leaving or member.draining is not None:
        return "it leaves the group"
    if not member.available:
        return "its database does not accept connections yet"
    if not member.address:
        return "it has no address yet"
    if member.database is None:
        return "" if member.listed else "its agent has not said how its database is"
    if not member.database.is_standby:
        return "its database is not a standby"
    return _behind(member, member.database, primary, spec)


def _behind(member: Member, database: DatabaseState, primary: Member | None, spec: GroupSpec) -> str:
    if not database.streaming:
        writable = primary is not None and primary.available
        return "" if member.listed and not writable else "it does not stream from the primary"
    bound = Seconds(spec.max_lag * (_LEEWAY if member.listed else 1.0))
    if database.lag is None:
        return "" if member.listed else "it is not known how far it is behind"
    return "" if database.lag <= bound else f"it is {database.lag:.0f} s behind, at most {bound:g} s are allowed"
