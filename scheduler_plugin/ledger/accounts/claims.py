"""A pod's claim on a node's resources, and a VM's account with the claims of its pods."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from protocol.messages import Metrics
from protocol.units import ZERO, Instant, Resources
from scheduler_plugin.ledger.accounts.permit_account import PermitAccount
from scheduler_plugin.ledger.facts import PodFacts


class ClaimState(Enum):
    """How sure it is that the pod is bound to the claim's node. Each state keeps the whole reservation.

    An incoming claim has no pod yet: its ``pod`` only says for which migration and VM it is kept.
    """

    TENTATIVE = "tentative"  # reserved by a bind whose API call has not been answered
    UNKNOWN = "unknown"  # the API call's outcome is unknown until the pod is read again
    CONFIRMED = "confirmed"  # the API accepted the bind; the pod has not been seen with its node
    BOUND = "bound"  # the pod was seen with its node
    INCOMING = "incoming"  # kept for the target pod of a migration, which is not placed yet


@dataclass(slots=True, eq=False)
class Claim:
    """What a pod reserves on ``node``.

    ``reserved`` is the amount that the node's sum contains; ``unmet`` what its VM last asked for and did not get;
    ``kept`` a floor from facts that the VM's account no longer holds. ``attempts`` counts bind calls in flight.
    """

    pod: PodFacts
    node: str
    state: ClaimState
    vm: VmAccount | None
    reserved: Resources = ZERO
    unmet: Resources = ZERO
    kept: Resources = ZERO
    attempts: int = 0
    is_migrating: bool = False
    metrics: Metrics | None = None
    denied_since: Instant | None = field(default=None)

    @property
    def size(self) -> Resources:
        """What the claim must reserve by what is known now: the VM's account, or the pod's own requests."""
        if self.vm is None or self.vm.facts is None:
            return self.kept.at_least(self.pod.requests)
        if self.kept is ZERO:
            return self.vm.reserved
        return self.vm.reserved.at_least(self.kept)


@dataclass(slots=True, eq=False)
class VmAccount(PermitAccount):
    """One VM: what it may use, and what its pods claim (two of them while it migrates)."""

    claims: list[Claim] = field(default_factory=list)
