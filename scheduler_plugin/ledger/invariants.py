"""Invariants of the ledger, checked after every test step and in debug builds.

Rules:

- Guest use <= permit held by the agent <= reservation <= node. The ledger shows the last two; a ``World`` that knows
  agents and guests shows the rest.
- A migrating VM has one reservation on each node where it runs or will run; migrations reserve nothing else.
- A database in an ordinary pod has no permit to write, and it never moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from protocol.messages import ObjectName
from protocol.units import ZERO, Resources
from scheduler_plugin.ledger.accounts.claims import NONE_DEFERRED, Claim, ClaimState
from scheduler_plugin.ledger.accounts.node_account import NodeAccount
from scheduler_plugin.ledger.accounts.waking import room_for_waking
from scheduler_plugin.ledger.facts import PodFacts
from scheduler_plugin.ledger.ledger import Ledger
from scheduler_plugin.ledger.migration_reservations import is_source, is_target, target_has_node
from scheduler_plugin.ledger.moves import Migration, current_migration
from scheduler_plugin.ledger.wake_reserve import NO_RESERVE


@dataclass(frozen=True, slots=True)
class VmTruth:
    """Ground truth of one VM's pod: the guest's size, and the permit that its agent holds."""

    guest: Resources
    permit: Resources


World = Mapping[str, VmTruth]
"""Ground truth by pod UID, known to tests and simulations only."""


def violations(ledger: Ledger, world: World | None = None) -> list[str]:
    """All violated rules, in words; empty if none."""
    broken = _state(ledger) + _broken(ledger, ledger.nodes, ledger.claims, world or {})
    for name, migration in ledger.migrations.items():
        broken += _migration(name, migration, ledger)
    return broken


def violations_on(ledger: Ledger, nodes: Iterable[str], world: World) -> list[str]:
    """Violations on these nodes and of the pods in ``world``: all that one small step can cause.

    For fleets that are too large to run ``violations`` after every step.
    """
    return _broken(ledger, nodes, [uid for uid in world if uid in ledger.claims], world)


def _broken(ledger: Ledger, nodes: Iterable[str], pods: Iterable[str], world: World) -> list[str]:
    broken: list[str] = []
    for name in nodes:
        broken += _node(name, ledger.nodes[name], ledger)
    for uid in pods:
        broken += _claim(uid, ledger.claims[uid], ledger)
    for uid, truth in world.items():
        broken += _truth(uid, truth, ledger)
    return broken


def overcommitted(ledger: Ledger) -> dict[str, Resources]:
    """Nodes overcommitted by facts from outside, and by how much."""
    return {name: node.overcommit for name, node in ledger.nodes.items() if node.overcommit.any}


def _state(ledger: Ledger) -> list[str]:
    broken = []
    names = {name for name, node in ledger.nodes.items() if node.facts is not None}
    if names != set(ledger.rooms):
        broken.append(f"rooms are published for {sorted(ledger.rooms)}, known nodes are {sorted(names)}")
    counted = [uid for node in ledger.nodes.values() for uid in node.claims]
    if sorted(counted) != sorted(ledger.claims):
        broken.append(f"nodes count the pods {sorted(counted)}, the claims are of {sorted(ledger.claims)}")
    return broken


def _node(name: str, node: NodeAccount, ledger: Ledger) -> list[str]:
    claims = node.claims.values()
    leaving = [claim for claim in claims if claim.is_migrating]
    # The sums are updated incrementally; compute them here from the claims.
    checks = {
        "reserved": (node.reserved, Resources.sum(claim.reserved for claim in claims)),
        "unmet": (node.unmet, Resources.sum(claim.unmet for claim in claims)),
        "migrating": (node.migrating, Resources.sum(claim.reserved + claim.unmet for claim in leaving)),
        "waits": (node.deferred, sum((claim.deferred for claim in claims), NONE_DEFERRED)),
        "left": (node.room.unreserved, ZERO if node.unbounded else node.room.total.minus_or_zero(node.reserved)),
        "waking": (node.waking, Resources.sum(claim.need_to_wake(claim.unmet).denied for claim in claims)),
        "growth": (node.room.growth, Resources.most(claim.growth_beyond(claim.reserved) for claim in claims)),
        "for_waking": (node.room.for_waking, _for_waking(node, claims)),
    }
    broken = [
        f"node {name}: {what} is {counted}, its claims say {real}"
        for what, (counted, real) in checks.items()
        if counted != real
    ]
    # Overcommitment from outside is no violation (``overcommitted``); by a grant it is.
    if not node.overcommit.within(node.forced):
        broken.append(f"node {name}: granted {node.overcommit} above its total, of which facts forced {node.forced}")
    pods = [claim.pod.traits for claim in claims if claim.state is not ClaimState.INCOMING]
    if [pod.traits for pod in node.placed.pods] != pods:
        broken.append(f"node {name}: the planner would see other pods there than its claims are of")
    if node.facts is None and not node.claims:
        broken.append(f"node {name} is gone and holds nothing, but is still kept")
    if node.facts is not None and ledger.rooms.get(name) is not node.room:
        broken.append(f"node {name}: the published room is not the current one")
    for kind, is_one, names in (
        ("strained", node.is_strained, ledger.strained),
        ("crowded", node.is_crowded, ledger.crowded),
    ):
        if is_one is not (name in names):
            broken.append(f"node {name}: is_{kind} is {is_one}, the list of {kind} nodes says otherwise")
    return broken


def _for_waking(node: NodeAccount, claims: Iterable[Claim]) -> Resources:
    needs = [claim.need_to_wake(claim.unmet) for claim in claims if claim.sleeps]
    reserve = NO_RESERVE if node.policy is None else node.policy.wake_reserve
    return room_for_waking(needs, reserve, node.room.total).at_most(node.room.unreserved)


def _claim(uid: str, claim: Claim, ledger: Ledger) -> list[str]:
    broken = []
    node = ledger.nodes.get(claim.node)
    if node is None or node.claims.get(uid) is not claim:
        broken.append(f"pod {uid}: claims node {claim.node}, which does not count it")
    if claim.reserved != claim.size:
        broken.append(f"pod {uid}: reserves {claim.reserved}, it must be {claim.size}")
    if claim.attempts and claim.state in (ClaimState.CONFIRMED, ClaimState.BOUND):
        broken.append(f"pod {uid}: is {claim.state.value} and still has {claim.attempts} bind calls in flight")
    broken += _order(uid, claim, ledger)
    if claim.vm is None and claim.pod.vm is not None and claim.pod.migration is None:
        broken += _stranger(uid, claim.pod, claim.pod.vm, ledger)
    account = claim.vm
    if account is not None:
        if claim.left_with is None and not (account.max_usable + claim.pod.overhead).within(claim.reserved):
            broken.append(f"pod {uid}: reserves {claim.reserved}, less than its VM may use")
        # It would move VMs for no one's benefit.
        if claim.unmet.any and not account.has_agent:
            broken.append(f"pod {uid}: is denied {claim.unmet}, which no agent wants")
        if not account.stored_low.within(account.stored_high):
            broken.append(f"pod {uid}: stored permits {account.stored_low} to {account.stored_high}")
        if account.facts is not None and account.facts.is_pod and (account.orders or claim.is_migrating):
            broken.append(f"pod {uid}: is an ordinary pod with a permit to write or a migration")
    return broken


def _stranger(uid: str, pod: PodFacts, vm: ObjectName, ledger: Ledger) -> list[str]:
    """Check that a pod owned by a VM counts as an ordinary pod only if the VM cannot run in it."""
    account = ledger.vms.get(vm)
    facts = None if account is None or account.uid != pod.vm_uid else account.facts
    signs = {
        "has a runner": pod.has_runner,
        "is in the VM's status": facts is not None and facts.pod in (None, pod.name),
        "is in a migration": any(
            pod.name in (migration.source_pod, migration.target_pod) for migration in ledger.migrations_of(vm)
        ),
    }
    return [f"pod {uid}: counts as any pod and {sign}" for sign, is_so in signs.items() if is_so]


def _order(uid: str, claim: Claim, ledger: Ledger) -> list[str]:
    """Check migrations against claims: the source leaves, and room is reserved once and only while needed."""
    broken = []
    migrations = () if claim.pod.vm is None else ledger.migrations_of(claim.pod.vm)
    if claim.is_migrating is not any(is_source(migration, claim) for migration in migrations):
        broken.append(f"pod {uid}: is_migrating is {claim.is_migrating}, its migrations say otherwise")
    if claim.is_frozen is not any(
        is_source(migration, claim) and target_has_node(migration, [] if claim.vm is None else claim.vm.claims)
        for migration in migrations
    ):
        broken.append(f"pod {uid}: is_frozen is {claim.is_frozen}, its migrations say otherwise")
    if claim.state is ClaimState.INCOMING:
        needed = [
            migration for migration in migrations if migration.reservation_uid == uid and migration.target == claim.node
        ]
        if not any(
            (migration.is_active and not migration.is_terminating) or migration.arrived_unseen for migration in needed
        ):
            broken.append(f"{uid}: room is kept on node {claim.node} for a migration that does not need it")
        if claim.node not in ledger.rooms or not ledger.rooms[claim.node].is_open:
            broken.append(f"{uid}: room is kept on node {claim.node}, which takes no pod")
        if claim.vm is not None and [host.node for host in claim.vm.hosts].count(claim.node) > 1:
            broken.append(f"{uid}: the VM is reserved more than once on node {claim.node}")
    return broken


def _migration(name: ObjectName, migration: Migration, ledger: Ledger) -> list[str]:
    """Check that the current migration has reserved its target, or a known problem."""
    broken = []
    if migration.name != name or migration not in ledger.migrations_of(migration.vm):
        broken.append(f"migration {name}: is not filed under its name and its VM {migration.vm}")
    account = ledger.vms.get(migration.vm)
    waits = current_migration(ledger.migrations_of(migration.vm)) is migration and migration.problem is None
    if not waits or migration.target is None or account is None or account.facts is None or account.is_deleted:
        return broken
    # Its pod's own claim holds the room.
    is_placed = any(claim.node == migration.target or is_target(migration, claim) for claim in account.hosts)
    if not is_placed and migration.reservation_uid not in ledger.claims:
        broken.append(f"migration {name}: nothing is reserved on its target {migration.target}")
    return broken


def _truth(uid: str, truth: VmTruth, ledger: Ledger) -> list[str]:
    broken = []
    claim = ledger.claims.get(uid)
    reserved = ZERO if claim is None else claim.reserved
    if not truth.guest.within(truth.permit):
        broken.append(f"pod {uid}: the guest has {truth.guest}, its agent holds {truth.permit}")
    is_unbounded = claim is not None and claim.is_unbounded  # then nothing on its node is free
    if not truth.permit.within(reserved) and not is_unbounded:
        broken.append(f"pod {uid}: its agent holds {truth.permit}, reserved is {reserved}")
    return broken
