"""Reconciles groups of one kind: gathers facts, decides, and writes.

- Every patch has the resourceVersion that was read as a precondition. Failures are retried after a pause.
- A failure affects only its group.
"""

from __future__ import annotations

import logging
import zlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from protocol.kubernetes.api import ApiCall, ApiRefusedError
from protocol.kubernetes.conditions import condition, condition_of, stamped
from protocol.kubernetes.objects import (
    Json,
    JsonObject,
    child,
    is_terminating,
    items,
    name_of,
    text,
    uid_of,
    version_of,
)
from protocol.kubernetes.refusals import RefusalKind
from protocol.kubernetes.resources import CNPG_CLUSTERS, HORIZONTAL_AUTOSCALERS, VERTICAL_AUTOSCALERS, Resource
from protocol.kubernetes.timestamps import timestamp
from protocol.messages import ObjectName
from protocol.runtime.kubernetes.events import EventRecord, EventSubject
from scheduler_plugin.groups import texts
from scheduler_plugin.groups.controllers.companions import StopError, hpa_write, must_restore, restore
from scheduler_plugin.groups.controllers.controller import STALE_CACHE, TIMEOUT, GroupsContext, QueuedController
from scheduler_plugin.groups.controllers.denials import Denials
from scheduler_plugin.groups.controllers.disputes import Disputes, dispute_message
from scheduler_plugin.groups.controllers.pod_resizing import PodResizer
from scheduler_plugin.groups.controllers.policies import DEPENDENCIES, GroupFacts, GroupPolicy
from scheduler_plugin.groups.controllers.reconcile import (
    CONTESTED,
    RESIZABLE,
    SIZED,
    WRITABLE,
    ReconcileResult,
    reconcile,
)
from scheduler_plugin.groups.controllers.tandem import TandemWrites, plan_tandem, switchable_primary
from scheduler_plugin.groups.controllers.watches import GroupWatches
from scheduler_plugin.groups.core.tandem import NO_DENIALS, DenialHistory
from scheduler_plugin.groups.objects.targets import workload_of
from scheduler_plugin.groups.objects.vm_group import ABLE
from scheduler_plugin.groups.objects.writes import Intent, Write, progress, resize, scale, write_intent

LOG: Final = logging.getLogger(__name__)

REMEMBERED: Final = 10_000
"""Maximum number of no-op writes to remember."""


class GroupController(QueuedController):
    """Reconciles the groups of one kind."""

    def __init__(
        self, context: GroupsContext, policy: GroupPolicy, watches: GroupWatches, denials: Denials | None = None
    ) -> None:
        super().__init__(context, policy.kind)
        self.policy = policy
        self._watches = watches
        self._denials = denials
        # In memory only, because its loss delays a switchover by at most five minutes.
        self._recent_denials: dict[ObjectName, DenialHistory] = {}
        self._disputes = Disputes()
        self._pods = PodResizer(context.writer, context.cache, watches.pods.of, self._disputes)
        self._unchanged: dict[str, tuple[Json, Json]] = {}

    async def reconcile(self, name: ObjectName) -> None:
        """Reconcile one group. Raises ``ApiError`` and ``NotLeadingError``."""
        context = self._context
        group = context.cache.get(self.kind, name)
        desired = None if group is None else self._watches.desired(self.policy, group)
        target = () if desired is None else (desired.target.resource,)
        # A standby only keeps its caches up to date. All groups are queued again once a kind is listed.
        if not context.acts(*DEPENDENCIES, *target):
            return
        # Before the check below, because a terminating group must restore its changes too.
        await self._restore(name, group)
        if group is None or is_terminating(group):
            self._recent_denials.pop(name, None)
            return
        outcome = "failed"
        try:
            facts = await self._with_denial(await self._with_disputes(self._watches.facts(self.policy, group)))
            # Wall time, because a policy's memory survives the process.
            now = datetime.fromtimestamp(context.clock.wall(), UTC)
            denials = self._recent_denials.pop(name, NO_DENIALS)
            facts, tandem = plan_tandem(replace(facts, denials=denials), now)
            if tandem.denials.spans:
                self._recent_denials[name] = tandem.denials
            result = reconcile(self.policy, facts, now)
            await self._carry_out(facts, result)
            # A stopped group writes nothing.
            await self._keep_in_tandem(TandemWrites() if result.problem else tandem)
            if result.intent is None and not result.status.get("kept"):
                # All that was to be written is written.
                await self._report_refusal(name, "")
            outcome = "stopped" if result.problem else "done"
        except ApiRefusedError as error:
            # The next reconcile sees the newer object, or completes the intent.
            if error.kind not in STALE_CACHE and error.kind is not RefusalKind.TOO_MANY_REQUESTS:
                await self._report_refusal(name, str(error))
            raise
        finally:
            self._count(outcome)
        self._queue.add(name, context.interval)

    def enqueue_all(self) -> None:
        """Queue every group, and deleted ones that left a changed HPA or VPA behind."""
        super().enqueue_all()
        # Deleted groups are only in the records on HPAs and VPAs.
        for name in self._watches.adopting_groups(self.kind.kind):
            self._queue.add(name)

    async def _restore(self, name: ObjectName, group: JsonObject | None) -> None:
        """Restore HPAs and VPAs that the group changed and no longer refers to.

        After a refusal the others are still restored. The refusal is raised if the group was deleted or the cache was
        stale; otherwise it is logged and the reconcile continues.
        """
        desired = None if group is None else self._watches.desired(self.policy, group)
        failed: ApiRefusedError | None = None
        for resource, obj in self._watches.adopted_by(self.kind.kind, name):
            write = restore(resource, obj) if must_restore(resource, obj, group, desired) else None
            if write is None:
                continue
            try:
                await self._do(write)
            except ApiRefusedError as error:
                if group is None or is_terminating(group) or error.kind in STALE_CACHE:
                    # Raised after the loop, so that the others are restored.
                    failed = error
                    continue
                LOG.warning(texts.NOT_RESTORED, extra={"object": str(write.name), "why": str(error)})
        if failed is not None:
            raise failed

    async def _with_disputes(self, facts: GroupFacts) -> GroupFacts:
        """Add the writes that must pause because another writer keeps overwriting them, and the reasons."""
        now, wall = self._context.clock.now(), self._context.clock.wall()
        paused: set[str] = set()
        disputes: list[str] = []
        target = None if facts.desired is None else facts.desired.target.resource
        pairs = ((target, facts.target), (HORIZONTAL_AUTOSCALERS, facts.hpa), (VERTICAL_AUTOSCALERS, facts.vpa))
        for resource, obj in pairs:
            if resource is None or obj is None:
                continue
            name = name_of(obj)
            self._disputes.check(resource, obj, now)
            # One request per dispute, because the cache has no `managedFields`.
            if self._disputes.lacks_manager(resource, name):
                self._disputes.identify_manager(resource, await self._with_managers(resource, obj))
            paused |= self._disputes.paused_writes(resource, name, now)
            disputes += [
                dispute_message(resource, name.name, what, claim, wall + claim.until - now)
                for what, claim in self._disputes.current(resource, name, now)
            ]
        return replace(facts, paused=frozenset(paused), disputes=tuple(disputes))

    async def _with_denial(self, facts: GroupFacts) -> GroupFacts:
        primary = switchable_primary(facts)
        if self._denials is None or primary is None:
            return facts
        return replace(facts, denied=await self._denials.of(primary))

    async def _with_managers(self, resource: Resource, obj: JsonObject) -> JsonObject:
        """Read the object with its ``managedFields``, which are not cached.

        This is a list with the object's name, because GET would need another permission than the watch.
        """
        name = name_of(obj)
        query = {"fieldSelector": f"metadata.name={name.name}"}
        call = ApiCall("GET", resource.path(name.namespace), TIMEOUT, query=query)
        try:
            listed = await self._context.writer.api.call(call)
        except ApiRefusedError:
            # Report the dispute without the manager's name.
            return obj
        return next(iter(items(listed, "items")), obj)

    async def _carry_out(self, facts: GroupFacts, result: ReconcileResult) -> None:
        for write in result.companion_writes:
            await self._write_companion(write)
        # Try a scaling that was refused before as a dry run first: otherwise each reconcile would write its intent and
        # drop it again.
        if result.intent is not None and condition_of(facts.group, WRITABLE):
            await self._dry_run(facts, result.intent)
        # Write memory and intent to the status before the target: if two processes reconcile the group, one is refused.
        group = await self._write_status(facts.group, result.status)
        about = (self.kind, facts.group)
        event = stopped(*about, result.problem) if result.problem else contested(*about, result.status)
        if event is not None:
            await self._context.writer.create_event(event)
        if result.intent is not None and facts.target is not None and facts.desired is not None:
            if (on_hpa := hpa_write(facts, result.intent.hpa)) is not None:
                await self._do(on_hpa)
            await self._scale(group, facts.target, facts.desired.target.resource, result.intent)
            # Otherwise a successor would carry out the intent again.
            group = await self._write_status(group, without_intent(group, result.intent))
        if result.drop is not None:
            await self._context.writer.delete(HORIZONTAL_AUTOSCALERS, result.drop)
        if facts.target is not None and facts.desired is not None:
            unresized = await self._pods.resize_pods(facts.target, facts.desired.target.resource, result.sizes)
            group = await self._write_status(group, refused(group, RESIZABLE, unresized, self._context.clock.wall()))
        if result.scale_reset is not None:
            # The status write changed the version.
            await self._context.writer.do(replace(result.scale_reset, version=version_of(group)))

    async def _keep_in_tandem(self, tandem: TandemWrites) -> None:
        for write in tandem.floors:
            await self._do(write)
        if tandem.promotion is not None:
            cluster = await self._do(tandem.promotion)
            self._context.telemetry.switchovers.inc()
            await self._context.writer.create_event(
                EventRecord(_about(CNPG_CLUSTERS, cluster), "Switchover", tandem.why)
            )

    async def _write_companion(self, write: Write) -> None:
        """Write to the group's HPA or VPA, unless the write is known to be a no-op."""
        current = self._context.cache.get(write.resource, write.name)
        # An equal value in another spelling (`1000m` for `1`) looks different each time. Do not repeat such a no-op for
        # the same spec.
        if current is not None and self._unchanged.get(write.path) == (write.body, child(current, "spec")):
            return
        if self._disputes.paused_until(write, self._context.clock.now()) is not None:
            return
        after = await self._do(write)
        self._unchanged.pop(write.path, None)
        # A no-op patch keeps the resourceVersion.
        if version_of(after) == write.version:
            # Clearing is simpler than eviction, and costs only one more write per object.
            if len(self._unchanged) >= REMEMBERED:
                self._unchanged.clear()
            self._unchanged[write.path] = (write.body, child(after, "spec"))

    async def _dry_run(self, facts: GroupFacts, intent: Intent) -> None:
        """Raise ``ApiRefusedError`` if the scaling would be refused again."""
        if facts.target is None or facts.desired is None:
            return
        kind, writer = facts.desired.target.resource, self._context.writer
        remaining = progress(intent, workload_of(facts.target, kind))
        if (write := hpa_write(facts, intent.hpa)) is not None:
            await writer.dry_run(write)
        if remaining.containers:
            await writer.dry_run(resize(facts.target, kind, remaining.containers))
        if remaining.replicas is not None:
            await writer.dry_run(scale(facts.target, kind, remaining.replicas))

    async def _scale(self, group: JsonObject, target: JsonObject, kind: Resource, intent: Intent) -> None:
        remaining = progress(intent, workload_of(target, kind))
        if remaining.containers:
            target = await self._do(resize(target, kind, remaining.containers))
        if remaining.replicas is not None:
            write = scale(target, kind, remaining.replicas)
            scaled_to = await self._context.writer.do(write)
            self._disputes.record(write, scaled_to, self._context.clock.now())
            # `/scale` returns a Scale, not the object.
            name = name_of(target)
            call = ApiCall("GET", kind.path(name.namespace, name.name), TIMEOUT)
            self._context.cache.learn(kind, await self._context.writer.api.call(call))
        self._count_scaling(intent)
        await self._context.writer.create_event(scaled(self.kind, group, intent))

    def _count_scaling(self, intent: Intent) -> None:
        scalings, kind = self._context.telemetry.scalings, self.kind.kind
        if intent.replicas is not None:
            scalings.labels(kind, "horizontal", "up" if intent.replicas[1] > intent.replicas[0] else "down").inc()
        if intent.after:
            scalings.labels(kind, "vertical", "up" if intent.grows else "down").inc()

    async def _do(self, write: Write) -> Json:
        response = await super()._do(write)
        self._disputes.record(write, response, self._context.clock.now())
        return response

    async def _report_refusal(self, name: ObjectName, why: str) -> None:
        """Write the refusal to the group's status, and drop its intent, so that the next reconcile decides again."""
        group = self._context.cache.get(self.kind, name)
        # The status write needs a precondition.
        if group is not None and text(group, "metadata", "resourceVersion"):
            await self._write_status(group, refused(group, WRITABLE, why, self._context.clock.wall()))


_LONGEST: Final = 200  # characters of a group's name in an event's name, which has at most 253


def scaled(kind: Resource, group: JsonObject, intent: Intent) -> EventRecord:
    """Event for a completed scaling."""
    note = str(intent)
    # Deterministic, so that the API server refuses a repeated event.
    code = zlib.crc32(f"{uid_of(group)}{intent.at}{note}".encode())
    name = f"{name_of(group).name[:_LONGEST]}.scaled.{code:08x}"
    return EventRecord(_about(kind, group), "Scaled", note, is_warning=False, name=name)


def stopped(kind: Resource, group: JsonObject, problem: StopError) -> EventRecord | None:
    """Event for a group that stops scaling; None if its status has the same problem already."""
    able_condition = condition_of(group, ABLE)
    if (text(able_condition, "reason"), text(able_condition, "message")) == (problem.reason, problem.message):
        return None
    return EventRecord(_about(kind, group), problem.reason, problem.message)


def contested(kind: Resource, group: JsonObject, status: JsonObject) -> EventRecord | None:
    """Event for a dispute with another writer; None unless it is new in ``status``."""
    before, after = (text(condition_of(obj, CONTESTED), "message") for obj in (group, {"status": status}))
    return EventRecord(_about(kind, group), CONTESTED, after) if after and not before else None


def without_intent(group: JsonObject, intent: Intent) -> Json:
    """The group's status once ``intent`` has been carried out."""
    status = _status_with(group, WRITABLE, [])
    if intent.replicas is not None:
        status["replicas"] = intent.replicas[1]
    if intent.after:
        # Earlier OOM kills do not count after a resize.
        status[SIZED] = intent.at
    return {**status, "lastScaled": write_intent(intent)}


def refused(group: JsonObject, kind: str, why: str, wall: float) -> Json:
    """The group's status with the condition ``kind`` on refused writes, and then without its intent.

    ``why`` is empty if no write is refused any more. ``wall`` is in Unix seconds.
    """
    if not why and not condition_of(group, kind):
        return child(group, "status")
    refusals = [condition(group, kind, "False", "Refused", why)] if why else []
    return stamped(_status_with(group, kind, refusals), timestamp(wall))


def _status_with(group: JsonObject, kind: str, new: list[Json]) -> Json:
    """The group's status without its intent, and with ``new`` in place of the condition ``kind``."""
    status = {key: value for key, value in child(group, "status").items() if key != "intent"}
    others = [existing for existing in items(status, "conditions") if text(existing, "type") != kind]
    return {**status, "conditions": [*others, *new]}


def _about(kind: Resource, group: JsonObject) -> EventSubject:
    return EventSubject(kind, name_of(group), uid_of(group))
