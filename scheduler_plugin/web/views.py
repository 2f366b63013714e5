"""Explanations: nodes with their pods, migrations, and the reasons for a VM's size. Read-only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import fields, is_dataclass
from fractions import Fraction
from itertools import islice
from typing import Final

import msgspec

from protocol.kubernetes.objects import Json
from protocol.kubernetes.timestamps import timestamp
from protocol.messages import Metrics, ObjectName
from protocol.units import Bytes, Instant, MilliCpu, Resources
from scheduler_plugin.cluster.migrations import ClusterMigration
from scheduler_plugin.cluster.problems import notes_on, unreadable_objects
from scheduler_plugin.context import SchedulerContext
from scheduler_plugin.ledger.accounts.claims import Claim, FreedRoom
from scheduler_plugin.ledger.accounts.node_account import NodeAccount, Pressure
from scheduler_plugin.ledger.accounts.sharing import promised_to, recently_freed
from scheduler_plugin.ledger.explain import ClaimExplanation
from scheduler_plugin.ledger.facts import MigrationPhase
from scheduler_plugin.ledger.moves import Migration, current_migration
from scheduler_plugin.planner.beneficiaries import no_room_to_grow, room_being_made
from scheduler_plugin.planner.victims import PlanningTime, stays_because
from scheduler_plugin.service.service import LeaderStatus
from scheduler_plugin.settings.document import SchedulerSettings
from scheduler_plugin.texts import explanations
from scheduler_plugin.web import models

MAX_UNREADABLE: Final = 100
"""Maximum number of unreadable objects in ``/nodes``; the metric counts all of them."""


MAX_MIGRATIONS: Final = 100
"""Maximum number of others' migrations in ``/nodes``, and of one VM's: a tenant may create thousands, and a response
with all of them would keep the scheduler busy.
"""


def amount(resources: Resources) -> models.Amounts:
    """Both amounts as quantities."""
    return models.Amounts(resources.cpu.quantity(), resources.mem.quantity())


def nodes_view(context: SchedulerContext, leadership: LeaderStatus) -> models.NodesModel:
    """Every node with its pods, by name, and migrations that have not ended, oldest first."""
    ledger, now, today = context.ledger, context.clock.now(), _now(context)
    # Agents call only the leader: on a standby all look silent.
    silent = _silent_agents(context) if leadership.leads else frozenset()
    active = [migration for migration in ledger.migrations.values() if migration.is_active]
    # Thousands of users' migrations must not hide ours.
    ours = [migration for migration in active if migration.is_ours]
    others = islice((migration for migration in active if not migration.is_ours), MAX_MIGRATIONS)
    listed = sorted([*ours, *others], key=lambda migration: migration.since)
    return models.NodesModel(
        ready=ledger.is_ready,
        leading=leadership.leads,
        leader=leadership.leader,
        waiting_pods=ledger.waiting,
        # Thousands of reasons would make the page useless.
        unreadable=[
            models.UnreadableModel(resource.kind, str(unreadable.name), unreadable.version, unreadable.reason)
            for resource, unreadable in islice(unreadable_objects(context.feed), MAX_UNREADABLE)
        ],
        migrations_idle=context.migration_status.idle,
        migrations=[
            _migration(migration, context.feed.migrations.facts.get(migration.name), now) for migration in listed
        ],
        nodes=[_node(context, ledger.nodes[name], silent, today) for name in sorted(ledger.nodes)],
    )


def _silent_agents(context: SchedulerContext) -> Set[ObjectName]:
    ledger, now = context.ledger, context.clock.now()
    return {name for name, vm in ledger.vms.items() if ledger.is_silent(vm, now)}


def vm_view(context: SchedulerContext, vm: ObjectName, leadership: LeaderStatus) -> models.VmModel | None:
    """Explanation of the VM, for each pod that runs it (two during a migration), and of its last moves.

    None if no pod runs it and its object has no known problem.
    """
    ledger, now = context.ledger, context.clock.now()
    uids = [uid for uid, claim in ledger.claims.items() if claim.pod.vm == vm]
    problems = notes_on(context.feed, vm)
    # A VM with an unreadable object may have problems but no pod.
    if not uids and not problems:
        return None
    account = ledger.claims[uids[0]].vm if uids else None
    migrations = ledger.migrations_of(vm)
    current, latest = current_migration(migrations), migrations[-MAX_MIGRATIONS:]
    if current is not None and current not in latest:
        latest = [current, *latest[1:]]
    moves = [_migration(migration, context.feed.migrations.facts.get(migration.name), now) for migration in latest]
    nodes = {ledger.claims[uid].node for uid in uids}
    movable = None if account is None else account.facts
    explained = {uid: ledger.explain(uid, now) for uid in uids}
    freed_rooms = [pod.last_freed for pod in explained.values() if pod.last_freed is not None]
    opt_in = context.feed.settings.migration.opt_in
    why = explanations.NOT_KNOWN if movable is None else stays_because(movable, opt_in=opt_in)
    return models.VmModel(
        vm=str(vm),
        leading=leadership.leads,
        leader=leadership.leader,
        may_move=why is None,
        stays_because=why,
        unreadable_constraints=None if movable is None else movable.constraints.unreadable or None,
        refused_targets={} if movable is None else _refused_targets(context, vm),
        problems=problems,
        migrations_idle=context.migration_status.idle,
        stuck={node: why for node, why in context.migration_status.stuck.items() if node in nodes},
        making_room=[text for uid in uids for text in room_being_made(ledger, ledger.claims[uid], now)],
        no_room_to_grow=_no_room_to_grow(context, [ledger.claims[uid] for uid in uids]),
        gave_back=_freed(max(freed_rooms, key=lambda freed: freed.at, default=None), _now(context)),
        migrations=moves,
        pods=[
            _explained(ledger.claims[uid], ledger.nodes[ledger.claims[uid].node], pod) for uid, pod in explained.items()
        ],
    )


def _refused_targets(context: SchedulerContext, vm: ObjectName) -> dict[str, models.RefusedTarget]:
    now, refused = context.clock.now(), context.migration_status.refused.of(vm)
    return {
        node: models.RefusedTarget(refusal.why, round(max(0.0, refusal.until - now), 3))
        for node, refusal in sorted(refused.items())
    }


def _migration(migration: Migration, observed: ClusterMigration | None, now: Instant) -> models.MigrationModel:
    return models.MigrationModel(
        name=str(migration.name),
        vm=str(migration.vm),
        # Not seen yet: only the state of its creation is known.
        phase=migration.phase.value if migration.facts is not None else migration.creation.value,
        source=migration.source,
        target=migration.destination,
        by_scheduler=migration.is_ours,
        leaving=migration.is_terminating,
        seen_for_seconds=round(now - migration.since, 3),
        reason=migration.reason or (observed.reason if observed is not None else ""),
        problem=migration.problem
        or (observed.why if observed is not None and migration.phase is MigrationPhase.FAILED else None),
        total_seconds=None if observed is None else observed.total,
        downtime_seconds=None if observed is None else observed.downtime,
    )


def _node(
    context: SchedulerContext, node: NodeAccount, silent: Set[ObjectName], today: PlanningTime
) -> models.NodeModel:
    room = node.room
    # Fast path: most nodes have room for each of their VMs to grow.
    is_crowded = node.name in context.ledger.crowded
    promised = promised_to(node.unmet, node, today.monotonic)
    return models.NodeModel(
        name=node.name,
        open=room.is_open,
        known=node.facts is not None,
        compute_unit=None if node.policy is None else amount(node.policy.compute_unit),
        total=amount(room.total),
        reserved=amount(node.reserved),
        free=amount(room.free),
        for_waking=amount(room.for_waking),
        watermark=amount(room.watermark),
        denied=amount(node.unmet),
        promised=amount(promised),
        pressure=_pressure(node.pressure),
        stuck=context.migration_status.stuck.get(node.name),
        no_room_to_grow=_no_room_to_grow(context, node.claims.values()) if is_crowded else None,
        pods=[
            _pod(claim, promised, silent, today)
            for claim in sorted(node.claims.values(), key=lambda claim: claim.pod.name)
        ],
    )


def _no_room_to_grow(context: SchedulerContext, claims: Iterable[Claim]) -> str | None:
    settings, status, now = context.feed.settings, context.migration_status, context.clock.now()
    return (
        no_room_to_grow(
            context.ledger,
            claims,
            settings.ranking.score.growth,
            lambda node: status.idle or status.growth_obstacle(node, settings.migration, now),
        )
        or None
    )


def _now(context: SchedulerContext) -> PlanningTime:
    return PlanningTime(context.clock.now(), context.clock.wall())


def _stamp(at: Instant, today: PlanningTime) -> str:
    """``at`` in RFC 3339."""
    # Rounded, so that the result does not change between calls: the clocks are read one after the other.
    return timestamp(round(today.wall - (today.monotonic - at)))


def _freed(freed: FreedRoom | None, today: PlanningTime) -> models.FreedRoomModel | None:
    return (
        None
        if freed is None
        else models.FreedRoomModel(amount(freed.amount), _stamp(freed.at, today), [str(vm) for vm in freed.to])
    )


def _pod(claim: Claim, promised: Resources, silent: Set[ObjectName], today: PlanningTime) -> models.PodModel:
    account = claim.vm
    facts = None if account is None else account.facts
    return models.PodModel(
        pod=str(claim.pod.name),
        vm=None if claim.pod.vm is None else str(claim.pod.vm),
        state=claim.state.value,
        reserved=amount(claim.reserved),
        permit=None if account is None or account.permit is None else amount(account.permit),
        use=None if facts is None else amount(facts.use),
        actual=None if facts is None or facts.actual is None else amount(facts.actual),
        denied=amount(claim.unmet),
        promised=amount(promised.at_most(claim.unmet)),
        deferred=amount(claim.deferred.all),
        migrating=claim.is_migrating,
        agent_silent=claim.pod.vm in silent,
        gave_back=_freed(recently_freed(claim, today.monotonic), today),
    )


def _pressure(pressure: Pressure) -> models.PressureModel:
    return models.PressureModel(
        logical=amount(pressure.logical),
        capacity=amount(pressure.capacity),
        migrating=amount(pressure.migrating),
        excess=amount(pressure.excess),
    )


def _explained(claim: Claim, node: NodeAccount, explained: ClaimExplanation) -> models.ExplainedPod:
    account, requests, secured = claim.vm, explained.requests, explained.requests_secured
    return models.ExplainedPod(
        pod=str(claim.pod.name),
        node=claim.node,
        state=claim.state.value,
        reserved=amount(claim.reserved),
        reserved_because={source: amount(floor) for source, floor in explained.floors.items()},
        permit=None if account is None or account.permit is None else amount(account.permit),
        permit_stored=account is not None and account.is_stored,
        permit_problem=None if account is None else account.refusal or None,
        denied=amount(claim.unmet),
        denied_for_seconds=explained.denied_for,
        denied_by=explained.denied_by,
        promised=amount(explained.promised),
        migrating=claim.is_migrating,
        holds_still=claim.is_frozen,
        weight=claim.weight,
        metrics=None if claim.metrics is None else _metrics(claim.metrics),
        requests=None if requests is None else amount(requests),
        requests_secured=None if secured is None else amount(secured),
        requests_problem=explained.requests_problem or None,
        sleep=explained.sleep or None,
        node_total=amount(node.room.total),
        node_reserved=amount(node.reserved),
        node_pressure=_pressure(node.pressure),
    )


def _metrics(metrics: Metrics) -> models.MetricsModel:
    return models.MetricsModel(
        load1=metrics.load1,
        load5=metrics.load5,
        mem_used=None if metrics.mem_used is None else metrics.mem_used.quantity(),
    )


def settings_view(settings: SchedulerSettings) -> Json:
    """All settings by name. Files are named, not read, so no secrets are shown."""
    return {field.name: _setting(getattr(settings, field.name)) for field in fields(settings)}


def _setting(value: object) -> object:
    if isinstance(value, MilliCpu | Bytes):
        return value.quantity()
    if (names := _names(value)) is not None:
        return {name: _setting(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): _setting(member) for key, member in value.items()}
    if isinstance(value, frozenset | set | list | tuple):
        members = [_setting(member) for member in value]
        # Sorted, so that replicas show the same text.
        return members if isinstance(value, list | tuple) else sorted(members, key=str)
    return _plain(value)


def _names(value: object) -> tuple[str, ...] | None:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    # ``is_dataclass`` is true for classes too.
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(field.name for field in fields(value))
    return None


def _plain(value: object) -> object:
    # JSON has no fractions.
    if isinstance(value, Fraction):
        return float(value)
    return value if isinstance(value, str | int | float) or value is None else str(value)
