"""Pods by their address."""

from __future__ import annotations

from protocol.messages import ObjectName
from scheduler_plugin.ledger import PodFacts


class PodAddresses:
    """The pods that have an address of their own, by that address."""

    def __init__(self) -> None:
        self._at: dict[str, dict[ObjectName, PodFacts]] = {}

    def change(self, before: PodFacts | None, after: PodFacts | None) -> None:
        """Takes in a change of one pod; ``before`` is None for a new pod, ``after`` for a deleted one."""
        if before is not None:
            for address in before.addresses:
                self._at[address].pop(before.name, None)
                # Addresses come and go for as long as the process runs; empty tables would pile up.
                if not self._at[address]:
                    del self._at[address]
        if after is not None:
            for address in after.addresses:
                self._at.setdefault(address, {})[after.name] = after

    def only_pod_at(self, address: str) -> PodFacts | None:
        """The pod with that address; None if there is none, or more than one."""
        pods = self._at.get(address, {})
        # When an address is reused, two pods may show it for a moment, and neither is certain to own it.
        return next(iter(pods.values())) if len(pods) == 1 else None
