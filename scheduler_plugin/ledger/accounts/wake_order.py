"""The order in which VMs of a node may wake, and the limit of concurrent wakes (B.18)."""

from __future__ import annotations

from typing import Final

from protocol.units import Instant, Resources
from scheduler_plugin.ledger.accounts.claims import Claim
from scheduler_plugin.ledger.accounts.node_account import NodeAccount
from scheduler_plugin.ledger.accounts.sharing import rivals_of
from scheduler_plugin.ledger.accounts.waking import MAX_OVERTAKEN, WakingVm, due_before

MIN_CONCURRENT_WAKES: Final = 8
"""Minimum limit, for small nodes."""

_EACH_CPU: Final = 2
"""Half of them wait for the disk, or for an agent that polls every 2 s."""


def wakes_at_once(node: NodeAccount) -> int:
    """Limit of concurrent wakes on the node: by its policy, or two per allocatable CPU."""
    by_policy = None if node.policy is None else node.policy.wakes_at_once
    return by_policy or max(MIN_CONCURRENT_WAKES, _EACH_CPU * node.room.total.cpu.value // 1000)


def active_wakes(node: NodeAccount, now: Instant, excluding: Claim | None = None) -> int:
    """Number of VMs on the node, without ``excluding``, that may wake and may not be running yet."""
    return sum(claim.is_waking(now) for claim in node.claims.values() if claim is not excluding)


def is_next_to_wake(node: NodeAccount, claim: Claim, wanted: Resources, limit: Resources, now: Instant) -> bool:
    """Return True if the VM of ``claim`` may wake with ``wanted`` now. ``limit`` is its size limit by room."""
    # Cheap checks first: in a thundering herd every VM asks every 2 s.
    at_once = wakes_at_once(node) - active_wakes(node, now, claim)
    if at_once <= 0 or not wanted.within(limit):
        return False
    waits = _waking_vm(claim, (wanted + claim.pod.overhead).minus_or_zero(claim.reserved), now)
    others = (_waking_vm(rival, rival.unmet, now) for rival in rivals_of(claim, node, now) if rival.sleeps)
    due = due_before(waits, others, node.room.unreserved, node.room.total)
    return due.vms < at_once and wanted.within(limit.minus_or_zero(due.room))


def _waking_vm(claim: Claim, missing: Resources, now: Instant) -> WakingVm:
    since = now if claim.denied_since is None else claim.denied_since
    return WakingVm(claim.pod.uid, missing, since, claim.weight, now - since >= MAX_OVERTAKEN)
