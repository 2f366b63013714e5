"""Reconciles VirtualMachineGroups: VMs, read endpoint (Service and EndpointSlice, S4.3), and status.

A failure affects only its group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from protocol.kubernetes.api import ApiRefusedError
from protocol.kubernetes.conditions import condition_of
from protocol.kubernetes.objects import Json, child, controller_of, is_terminating, name_of, text, uid_of, version_of
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import VIRTUAL_MACHINES, VM_GROUPS
from protocol.kubernetes.timestamps import timestamp
from protocol.messages import ObjectName
from protocol.names import ANNOTATION_DRAINING
from protocol.runtime.kubernetes.events import EventRecord, EventSubject
from protocol.runtime.kubernetes.watches.kinds import FactChange
from protocol.units import Seconds
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.controllers.controller import (
    REPLICA_WRITERS,
    STALE_CACHE,
    GroupsContext,
    QueuedController,
)
from scheduler_plugin.groups.controllers.member_agents import (
    CHANGING_MAX_AGE,
    SERVING_MAX_AGE,
    WAITING_WORKERS,
    MemberAgents,
    MemberObservations,
)
from scheduler_plugin.groups.controllers.read_endpoint import (
    ReadEndpoint,
    read_endpoint,
    read_object,
    write_endpoint,
)
from scheduler_plugin.groups.controllers.watches import Index, is_status_only
from scheduler_plugin.groups.core.replicas.group_plan import GroupPlan, plan_group
from scheduler_plugin.groups.core.replicas.members import NOT_QUERIED, Member, Role, member_name, replicas_of, role_of
from scheduler_plugin.groups.core.replicas.scaling import ScalingDecision, decide
from scheduler_plugin.groups.objects.group_members import (
    belongs_to,
    is_available,
    is_impostor,
    member_vm,
    read_member,
    relevant_state,
)
from scheduler_plugin.groups.objects.vm_group import (
    ABLE,
    MOST_REPLICAS,
    TAKEN,
    InvalidGroupError,
    VmGroup,
    group_status,
    parse_vm_group,
    refused_status,
    scaling_status,
    taken_by,
)
from scheduler_plugin.groups.objects.writes import Write

DEPENDENCIES: Final = (VM_GROUPS, VIRTUAL_MACHINES, *REPLICA_WRITERS)

LOAD_INTERVAL: Final = Seconds(5.0)
"""Interval of reconciles of a group that scales itself."""


@dataclass(frozen=True, slots=True)
class _ObservedGroup:
    """One group: object, spec, members, and read endpoint.

    ``decision`` is None if the group does not scale itself. It does not while ``rivals`` write its replicas.
    """

    obj: Json
    group: VmGroup
    members: tuple[Member, ...]
    endpoint: ReadEndpoint
    decision: ScalingDecision | None = None
    rivals: tuple[str, ...] = ()


class VmGroupController(QueuedController):
    """Reconciles the groups of VMs."""

    workers = waiting_workers = WAITING_WORKERS

    def __init__(
        self, context: GroupsContext, agents: MemberAgents, writers: Callable[[ObjectName], Sequence[str]]
    ) -> None:
        """``writers`` returns other writers of a group's replicas."""
        super().__init__(context, VM_GROUPS)
        self._writers = writers
        self._observations = MemberObservations(agents, context.clock)
        self._vms: Index[ObjectName, ObjectName] = Index()
        self._not_scaled: dict[ObjectName, str] = {}
        """Why the last scaling of each group was refused, while its load needs one."""
        context.cache.listen(VM_GROUPS, self._group_changed)
        context.cache.listen(VIRTUAL_MACHINES, self._vm_changed)

    async def reconcile(self, name: ObjectName) -> None:
        """Reconcile one group. Raises ``ApiError`` and ``NotLeadingError``."""
        obj = self._context.cache.get(VM_GROUPS, name)
        # Only the leader acts. All progress is in the objects (names, marks, slice), so a successor can continue.
        if obj is None or is_terminating(obj) or not self._context.acts(*DEPENDENCIES):
            self._not_scaled.pop(name, None)
            return
        try:
            group = parse_vm_group(obj)
        except InvalidGroupError as error:
            # Keep the rest of the status: members may serve despite a broken spec.
            refused = {**child(obj, "status"), **refused_status(obj, str(error), self._now())}
            await self._write_status(obj, refused)
            self._count("stopped")
            return
        observed = await self._scaled(await self._observe(obj, group))
        group = observed.group
        plan = plan_group(group.spec, observed.members, bool(group.primary_uid), self._taken_names(group))
        await self._carry_out(observed, plan)
        self._count("stopped" if plan.fault else "done")
        # The load window needs regular samples.
        interval = self._context.interval if group.scaling is None else LOAD_INTERVAL
        self._queue.add(name, interval if plan.requeue_after is None else min(plan.requeue_after, interval))

    async def _scaled(self, observed: _ObservedGroup) -> _ObservedGroup:
        """Scale the group if its load requires it; return the group with the new count."""
        group = observed.group
        refusal = self._not_scaled.pop(group.name, "")
        if group.scaling is None:
            return observed
        # Replicas may have only one writer, so report the other one.
        if rivals := tuple(self._writers(group.name)):
            # The condition shows whether an earlier reconcile has reported it.
            message, able_condition = taken_by(rivals), condition_of(observed.obj, ABLE)
            if (text(able_condition, "reason"), text(able_condition, "message")) != (TAKEN, message):
                await self._write_event(observed, TAKEN, message, is_warning=True)
            return replace(observed, rivals=rivals)
        current = group.spec.replicas
        decision = decide(
            group.scaling, current, replicas_of(observed.members), group.scaled, self._context.clock.wall()
        )
        if decision.replicas == current:
            # It is retried after the delay.
            if refusal and decision.desired != current:
                self._not_scaled[group.name] = refusal
            return replace(observed, decision=decision)
        remembered = {**child(observed.obj, "status"), "scaling": scaling_status(decision)}
        # Before the scaling: a crash in between delays it, but no successor scales twice within the delays.
        updated = await self._write_status(observed.obj, remembered)
        body: Json = {"spec": {"replicas": decision.replicas}}
        # The status write changed the version.
        scale = Write("replicas", VM_GROUPS, group.name, body, "scale", version_of(updated))
        try:
            await self._context.writer.do(scale)
        except ApiRefusedError as error:
            if error.kind in STALE_CACHE or error.kind is RefusalKind.TOO_MANY_REQUESTS:
                raise
            # Members and endpoint must not wait for it.
            self._not_scaled[group.name] = texts.NOT_SCALED.format(replicas=decision.replicas, why=error)
            return replace(observed, obj=dict(updated), decision=replace(decision, replicas=current))
        direction = "up" if decision.replicas > current else "down"
        self._context.telemetry.scalings.labels(VM_GROUPS.kind, "horizontal", direction).inc()
        await self._write_event(observed, "Scaled", texts.SCALED.format(before=current, decision=decision))
        # `/scale` returns a Scale, not the group.
        again = await read_object(self._context.writer.api, VM_GROUPS, group.name)
        if again is not None:
            self._context.cache.learn(VM_GROUPS, again)
        # The plan needs the new count, even if an older one was read.
        scaled = replace(group, spec=replace(group.spec, replicas=decision.replicas))
        return replace(observed, obj=again or observed.obj, group=scaled, decision=decision)

    async def _observe(self, obj: Json, group: VmGroup) -> _ObservedGroup:
        endpoint = await read_endpoint(self._context.writer.api, group)
        listed, by_name = endpoint.listed, self._context.cache.objects(VIRTUAL_MACHINES)
        vms = [by_name[name] for name in sorted(self._vms.at(group.name)) if name in by_name]
        # A VM that was created late under the primary's name has an empty database.
        vms = [vm for vm in vms if belongs_to(vm, group) and not is_impostor(vm, group)]
        queries = [
            (
                vm,
                SERVING_MAX_AGE
                # A draining replica stays listed until the slice is written, but its sessions matter now.
                if uid_of(vm) in listed and ANNOTATION_DRAINING not in child(vm, "metadata", "annotations")
                else CHANGING_MAX_AGE,
            )
            for vm in vms
            # The primary is neither drained nor in the read endpoint, so do not query it.
            if name_of(vm).name != member_name(group.name.name, Role.PRIMARY)
        ]
        # At the same time, because an agent that does not respond delays each query by seconds.
        observations, loads = await asyncio.gather(self._observations.observe(queries), self._loads(vms, group))
        wall = self._context.clock.wall()
        members = (read_member(vm, group, listed, observations.get(uid_of(vm), NOT_QUERIED), wall) for vm in vms)
        present = [replace(member, busy_cores=loads.get(member.uid)) for member in members if member is not None]
        return _ObservedGroup(obj, group, tuple(present), endpoint)

    async def _loads(self, vms: Sequence[Json], group: VmGroup) -> dict[str, float | None]:
        """Loads of serving replicas, by UID, if the group scales by them."""
        if group.scaling is None:
            return {}
        serving = list[Json]()
        for vm in vms:
            role = role_of(group.name.name, name_of(vm).name)
            if role is not None and role[0] is Role.REPLICA and is_available(vm):
                serving.append(vm)
            else:
                # Otherwise the window would include booting and copying.
                self._observations.drop_load(uid_of(vm))
        return await self._observations.loads(serving, group.scaling.window)

    def _taken_names(self, group: VmGroup) -> frozenset[str]:
        # Twice the maximum, because terminating replicas still use their numbers.
        name, numbers = group.name, range(MOST_REPLICAS * 2)
        names = [
            member_name(name.name, Role.PRIMARY),
            *(member_name(name.name, Role.REPLICA, ordinal) for ordinal in numbers),
        ]
        vms = [self._context.cache.get(VIRTUAL_MACHINES, ObjectName(name.namespace, vm_name)) for vm_name in names]
        return frozenset(name_of(vm).name for vm in vms if vm is not None and not belongs_to(vm, group))

    async def _carry_out(self, observed: _ObservedGroup, plan: GroupPlan) -> None:
        # Collect refusals, so that a quota that refuses one member does not block marks, the endpoint and deletions.
        refusals = await self._create_members(observed, plan)
        try:
            await self._change_members(observed, plan)
        except ApiRefusedError as error:
            if error.kind in STALE_CACHE:
                raise
            refusals[texts.NOT_CHANGED.format(why=error)] = error
        # Do not report refusals that only mean a stale cache.
        unwritten = [message for message, why in refusals.items() if why.kind not in STALE_CACHE]
        unwritten += [self._not_scaled[name]] if (name := observed.group.name) in self._not_scaled else []
        if observed.endpoint.foreign:
            unwritten += [texts.FOREIGN_ENDPOINT.format(object=observed.endpoint.foreign)]
        status = group_status(
            observed.obj, observed.group, observed.members, plan, "; ".join(unwritten), observed.rivals, self._now()
        )
        if observed.decision is not None:
            status["scaling"] = scaling_status(observed.decision)
        await self._write_status(observed.obj, status)
        # Raise at the end, so that the queue retries.
        if refusals:
            raise next(iter(refusals.values()))

    async def _change_members(self, observed: _ObservedGroup, plan: GroupPlan) -> None:
        """Write marks and the read endpoint, and delete VMs. The first refusal is raised."""
        namespace = observed.group.name.namespace
        for member in plan.undrain:
            await self._mark(namespace, member, None)
            await self._write_event(observed, "MemberStays", texts.MEMBER_STAYS.format(vm=member.name))
        for drained in plan.drain:
            # Mark before the endpoint drops the replica, so that a successor knows why it is not listed.
            await self._mark(namespace, drained.member, self._now())
            await self._write_event(
                observed, "MemberDrains", texts.MEMBER_DRAINS.format(vm=drained.member.name, why=drained.reason)
            )
        await write_endpoint(self._context.writer, observed.group, observed.endpoint, plan)
        # Delete last: the read endpoint must not list a deleted VM.
        for deleted in plan.delete:
            vm = self._context.cache.get(VIRTUAL_MACHINES, ObjectName(namespace, deleted.member.name))
            # The name may have been reused.
            if vm is not None and uid_of(vm) == deleted.member.uid:
                await self._context.writer.delete(VIRTUAL_MACHINES, vm)
            await self._write_event(
                observed, "MemberDeleted", texts.MEMBER_DELETED.format(vm=deleted.member.name, why=deleted.reason)
            )

    async def _create_members(self, observed: _ObservedGroup, plan: GroupPlan) -> dict[str, ApiRefusedError]:
        """Create the VMs of new members; return refusals by message."""
        refusals: dict[str, ApiRefusedError] = {}
        for new in plan.create:
            name = ObjectName(observed.group.name.namespace, new.name)
            try:
                await self._do(Write("member", VIRTUAL_MACHINES, name, member_vm(observed.group, new), creates=True))
            except ApiRefusedError as error:
                refusals[texts.NOT_CREATED.format(vm=new.name, why=error)] = error
                continue
            await self._write_event(observed, "MemberCreated", texts.MEMBER_CREATED.format(vm=new.name))
        return refusals

    async def _mark(self, namespace: str, member: Member, since: str | None) -> None:
        name = ObjectName(namespace, member.name)
        body: Json = {"metadata": {"annotations": {ANNOTATION_DRAINING: since}}}
        version = version_of(self._context.cache.get(VIRTUAL_MACHINES, name) or {})
        await self._do(Write("draining", VIRTUAL_MACHINES, name, body, version=version))

    async def _write_event(self, observed: _ObservedGroup, reason: str, note: str, *, is_warning: bool = False) -> None:
        subject = EventSubject(VM_GROUPS, observed.group.name, observed.group.uid)
        await self._context.writer.create_event(EventRecord(subject, reason, note, is_warning=is_warning))

    def _group_changed(self, change: FactChange[Json]) -> None:
        # Ignore our own status writes.
        if not is_status_only(change):
            self._queue.add(change.name)

    def _vm_changed(self, change: FactChange[Json]) -> None:
        # The owner of a VM may have changed.
        owners = [controller_of(vm or {}) for vm in (change.before, change.after)]
        before, after = (
            [ObjectName(change.name.namespace, text(owner, "name"))] if text(owner, "kind") == VM_GROUPS.kind else []
            for owner in owners
        )
        self._vms.move(change.name, before, after)
        # Ignore resizes: agents make many, and each reconcile reads the endpoint.
        if relevant_state(change.before or {}) != relevant_state(change.after or {}):
            for group in (*before, *after):
                self._queue.add(group)
        if change.after is None and change.before is not None:
            # By UID, because a recreated VM has another one.
            self._observations.drop(uid_of(change.before))

    def _now(self) -> str:
        return timestamp(self._context.clock.wall())
