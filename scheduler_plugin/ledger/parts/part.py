"""Base of every part of the ledger: the shared state, and the end of each step."""

from __future__ import annotations

from scheduler_plugin.ledger import migration_reservations
from scheduler_plugin.ledger.accounts.claims import Claim
from scheduler_plugin.ledger.outcomes import Effect, NotReadyError, UnknownPodError
from scheduler_plugin.ledger.state import LedgerState

Effects = tuple[Effect, ...]


class LedgerPart:
    """One part of the ledger. ``is_ready`` is false until a complete list has been taken in."""

    def __init__(self) -> None:
        self._state = LedgerState()
        self.is_ready = False

    def _claim(self, uid: str) -> Claim:
        claim = self._state.claims.get(uid)
        if claim is None:
            raise UnknownPodError(f"no pod with UID {uid} holds a claim")
        return claim

    def _finish(self, *, outside: bool) -> Effects:
        # Before ``finish`` publishes the rooms: a reservation that follows from this step must be in them.
        migration_reservations.settle(self._state)
        return self._state.finish(outside=outside)

    def _require_ready(self) -> None:
        if not self.is_ready:
            raise NotReadyError("the ledger has not read the cluster yet")
