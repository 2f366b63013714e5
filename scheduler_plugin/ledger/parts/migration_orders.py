"""Migrations that the scheduler orders, and what became of the orders (S4.9)."""

from __future__ import annotations

from dataclasses import replace

from protocol.messages import ObjectName
from protocol.units import Instant
from scheduler_plugin.ledger import migration_reservations
from scheduler_plugin.ledger.moves import Creation, Move
from scheduler_plugin.ledger.outcomes import MoveReservation
from scheduler_plugin.ledger.parts.part import Effects, LedgerPart


class MigrationOrders(LedgerPart):
    """Reserves room for moves, and hears of their creation."""

    def reserve_move(self, move: Move, migration: ObjectName, now: Instant) -> MoveReservation:
        """Reserves room on the target and gives the order to the source, or refuses (S4.9). Raises ``NotReadyError``.

        ``migration`` is the name that the object will have. Carry out the effects, then report what became of it.
        """
        self._require_ready()
        reservation = migration_reservations.reserve_move(self._state, move, migration, now)
        return replace(reservation, effects=(*reservation.effects, *self._finish(outside=False)))

    def migration_created(self, name: ObjectName) -> Effects:
        """The API made a migration that we ordered; it will be seen."""
        return migration_reservations.migration_answered(self._state, name, Creation.DONE)

    def migration_refused(self, name: ObjectName) -> Effects:
        """The API certainly did not make it, or was never asked to: reservation and order end."""
        migration_reservations.migration_refused(self._state, name)
        return self._finish(outside=False)

    def migration_unsure(self, name: ObjectName) -> Effects:
        """It is unknown whether the API made it: reservation and order stay until it is read."""
        return migration_reservations.migration_answered(self._state, name, Creation.UNSURE)
