"""The order in which VMs that wait to wake on a node are served, and the limit of wakes at once (B.18)."""

from __future__ import annotations

from typing import Final

from protocol.units import Instant, Resources
from scheduler_plugin.ledger.accounts.claims import Claim
from scheduler_plugin.ledger.accounts.node_account import NodeAccount
from scheduler_plugin.ledger.accounts.sharing import rivals_of
from scheduler_plugin.ledger.accounts.waking import WakingVm, due_before

LEAST_AT_ONCE: Final = 8
"""A small node wakes this many at once."""

_EACH_CPU: Final = 2
"""Half of them wait for their disk, or for an agent that asks every 2 s."""


def wakes_at_once(node: NodeAccount) -> int:
    """The number of VMs that wake on the node at once: by its policy, or two per CPU that pods may reserve."""
    by_policy = None if node.policy is None else node.policy.wakes_at_once
    return by_policy or max(LEAST_AT_ONCE, _EACH_CPU * node.room.total.cpu.value // 1000)


def wakes_under_way(node: NodeAccount, now: Instant, besides: Claim | None = None) -> int:
    """The number of VMs on the node, other than that of ``besides``, that have the permit to wake and may not run."""
    return sum(claim.is_waking(now) for claim in node.claims.values() if claim is not besides)


def is_next_to_wake(node: NodeAccount, claim: Claim, wanted: Resources, reach: Resources, now: Instant) -> bool:
    """Return True if the VM of ``claim`` may wake with ``wanted`` now. ``reach`` is the limit of its size by room."""
    # The cheap checks first: in a herd all VMs ask every other second.
    at_once = wakes_at_once(node) - wakes_under_way(node, now, claim)
    if at_once <= 0 or not wanted.within(reach):
        return False
    waits = _waits(claim, (wanted + claim.pod.around).minus_or_zero(claim.reserved), now)
    others = (_waits(rival, rival.unmet, now) for rival in rivals_of(claim, node, now) if rival.sleeps)
    due = due_before(waits, others, node.room.left, node.room.total)
    return due.vms < at_once and wanted.within(reach.minus_or_zero(due.room))


def _waits(claim: Claim, wish: Resources, now: Instant) -> WakingVm:
    return WakingVm(claim.pod.uid, wish, now if claim.denied_since is None else claim.denied_since, claim.weight)
