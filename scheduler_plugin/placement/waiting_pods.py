"""Pods that no node had room for, so that freed room can wake them (facts: freed room wakes nobody by itself)."""

from __future__ import annotations

from protocol.units import Resources
from scheduler_plugin.placement.verdict import FITS, Room, verdict


class WaitingPods:
    """What each waiting pod needs, by UID."""

    def __init__(self) -> None:
        self._claims: dict[str, Resources] = {}
        self._least: Resources | None = None

    def __len__(self) -> int:
        return len(self._claims)

    def add(self, uid: str, claim: Resources) -> None:
        """The pod was refused everywhere."""
        self._claims[uid] = claim
        self._least = claim if self._least is None else self._least.at_most(claim)

    def forget(self, uid: str) -> None:
        """The pod has found its place, or is gone."""
        if self._claims.pop(uid, None) is not None and not self._claims:
            self._least = None

    def would_use(self, before: Room, after: Room) -> bool:
        """Whether a node has gained room, or has opened, and some waiting pod fits there now."""
        if self._least is None or not self._least.within(after.free):
            return False
        if before.is_open >= after.is_open and after.free.within(before.free):
            return False
        return any(verdict(after, claim) is FITS for claim in self._claims.values())
